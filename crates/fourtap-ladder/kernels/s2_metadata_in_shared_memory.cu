// Suite 2, metadata in shared memory: a warp keeps where its samples lie, a few points at a time.
//
// As A4, but warp by warp: the lanes of a warp work out RUN points of a level for all its rows, each a few, put them
// into shared memory as 16 bytes a sample and gather as in A3. No barrier of the block, and 1 KB a warp instead of 4,
// which leaves the rest to L1. Spares three quarters of A3's arithmetic on places (of 32 channels), about a fifth of
// all instructions, for one shared load a sample: should gain 5 to 10 %.
//
// Records of a sample lie side by side for all rows, in an order turned by the sample's number: neither writing the
// samples of a row nor reading one sample of several rows then meets a bank twice.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

constexpr int GROUPS = 32 / VECTORS, WARPS = THREADS / 32;
constexpr int RUN = largest_divisor(POINTS, 8);
constexpr int UNROLLED = largest_divisor(RUN, 4);

__device__ __forceinline__ u32 record_at(u32 sample, u32 group) {
    constexpr u32 SAMPLES_A_LINE = GROUPS < 8 ? 8 / GROUPS : 1; // of 128 bytes
    return sample * GROUPS + (group ^ (sample / SAMPLES_A_LINE & (GROUPS - 1)));
}

KERNEL ladder_s2_metadata(const __grid_constant__ Problem p) {
    __shared__ Record records[WARPS][RUN * GROUPS];
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 first_row = (static_cast<u64>(blockIdx.x) * WARPS + warp) * GROUPS, last_row = row_count(p) - 1;
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const Corners corners = corners_of(value, stride, level);
#pragma unroll 1
        for (int first = l * POINTS; first < (l + 1) * POINTS; first += RUN) {
            __syncwarp();
#pragma unroll
            for (u32 i = lane; i < RUN * GROUPS; i += 32) {
                const u32 point = i % RUN, group = i / RUN;
                const u64 at = min(first_row + group, last_row) * SAMPLES + first + point;
                records[warp][record_at(point, group)] = record_of(p.locations[at], p.weights[at], level);
            }
            __syncwarp();
#pragma unroll UNROLLED
            for (int point = 0; point < RUN; point++) {
                const Record record = records[warp][record_at(point, lane / VECTORS)];
                add_sample(sums, load_taps(corners, record.pixel, stride), record);
            }
        }
    }
    if (place.live) store_sums(out_of(p, place), sums);
}
