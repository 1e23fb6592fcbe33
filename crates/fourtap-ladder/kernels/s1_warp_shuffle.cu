// Suite 1, warp shuffle: where a sample lies is worked out by one lane of its row and handed to the others by shuffles.
//
// A group of VECTORS lanes takes a row, as in A3. Each lane works out PER_LANE samples of its own; then the group goes
// through them together, four words a sample by `shfl`. Spares three quarters of A3's arithmetic on places (of 32
// channels), about a fifth of all instructions; but each word shuffled takes the load pipe as long as 128 bytes from
// L1, and there are four of them to four loads. Should gain 5 to 10 %.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

constexpr int PER_LANE = POINTS % (2 * VECTORS) == 0 ? 2 : 1;
constexpr int ROUND = PER_LANE * VECTORS; // samples a group works out at a time

__device__ __forceinline__ Record record_from(const Record &own, int lane) {
    return {__shfl_sync(ALL, own.pixel, lane, VECTORS), __shfl_sync(ALL, own.second, lane, VECTORS),
            __shfl_sync(ALL, own.upper, lane, VECTORS), __shfl_sync(ALL, own.lower, lane, VECTORS)};
}

KERNEL ladder_s1_shuffle(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const Corners corners = corners_of(value, stride, level);
        const u64 sample = static_cast<u64>(place.row) * SAMPLES + l * POINTS;
#pragma unroll 1
        for (int first = 0; first < POINTS; first += ROUND) {
            // A lane without a sample of its own repeats the last one, which nobody asks it for.
            const u64 mine = sample + min(first + static_cast<int>(place.vector) * PER_LANE, POINTS - PER_LANE);
            const Samples<PER_LANE> samples(p.locations + mine, p.weights + mine);
            Record own[PER_LANE];
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) own[i] = samples.record(i, level);
#pragma unroll
            for (int i = 0; i < (ROUND < POINTS ? ROUND : POINTS); i++) {
                if (POINTS % ROUND != 0 && first + i >= POINTS) break;
                const Record record = record_from(own[i % PER_LANE], i / PER_LANE);
                add_sample(sums, load_taps(corners, record.pixel, stride), record);
            }
        }
    }
    if (place.live) store_sums(out_of(p, place), sums);
}
