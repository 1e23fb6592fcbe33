// A4, optimized: where a query's samples lie is worked out once and kept in shared memory.
//
// A block takes THREADS / VECTORS rows. First all its threads work out their samples, one a thread, so that coordinates
// are read in whole lines; a sample becomes 16 bytes in shared memory. After a barrier the VECTORS lanes of a row read
// them and gather as in A3. Every thread is busy in both halves. Spares three quarters of A3's arithmetic on places (of
// 32 channels), about a fifth of all instructions, for one shared load a sample and 32 KB a block that L1 loses: should
// gain 5 to 10 %.
//
// Records of a sample lie side by side for all rows, in an order turned by the sample's number: neither writing the
// samples of a row nor reading one sample of several rows then meets a bank twice.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; PASS: samples of a row worked out between two barriers, whole
// levels or an even part of one.

constexpr int ROWS = THREADS / VECTORS;
constexpr int RUN = PASS < POINTS ? PASS : POINTS; // samples of one level in a pass
constexpr int UNROLLED = largest_divisor(RUN, 4);
constexpr int TURNS = (PASS + VECTORS - 1) / VECTORS; // samples that a thread works out in a pass
constexpr int TOGETHER = largest_divisor(TURNS, 4);

__device__ __forceinline__ u32 record_at(u32 sample, u32 row) { return sample * ROWS + (row ^ (sample & 7)); }

KERNEL ladder_a04(const __grid_constant__ Problem p) {
    static_assert(ROWS % 8 == 0, "turning the order stays within the rows");
    static_assert(SAMPLES % PASS == 0 && PASS % RUN == 0 && POINTS % RUN == 0, "passes and runs are whole");
    extern __shared__ __align__(16) char memory[];
    __shared__ Level levels[LEVELS]; // lanes ask for different ones at a time
    Record *records = reinterpret_cast<Record *>(memory);
    if (threadIdx.x < LEVELS) levels[threadIdx.x] = p.levels[threadIdx.x];
    __syncthreads();

    const u64 first_row = static_cast<u64>(blockIdx.x) * ROWS;
    const u32 last_row = static_cast<u32>(min(static_cast<u64>(ROWS), row_count(p) - first_row)) - 1;
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES, mine = threadIdx.x / VECTORS;
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int first = 0; first < SAMPLES; first += PASS) {
        if (first > 0) __syncthreads();
#pragma unroll TOGETHER
        for (int turn = 0; turn < TURNS; turn++) {
            const u32 i = turn * THREADS + threadIdx.x, sample = i % PASS, row = i / PASS;
            if (ROWS * PASS % THREADS != 0 && i >= ROWS * PASS) break;
            const u64 at = (first_row + min(row, last_row)) * SAMPLES + first + sample;
            const Level level = levels[(first + sample) / POINTS];
            records[record_at(sample, row)] = record_of(p.locations[at], p.weights[at], level);
        }
        __syncthreads();
        if (!place.live) continue;
#pragma unroll 1
        for (int run = 0; run < PASS; run += RUN) {
            const Corners corners = corners_of(value, stride, p.levels[(first + run) / POINTS]);
#pragma unroll UNROLLED
            for (int sample = run; sample < run + RUN; sample++) {
                const Record record = records[record_at(sample, mine)];
                add_sample(sums, load_taps(corners, record.pixel, stride), record);
            }
        }
    }
    if (place.live) store_sums(out_of(p, place), sums);
}
