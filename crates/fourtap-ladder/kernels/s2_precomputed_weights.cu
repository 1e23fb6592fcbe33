// Suite 2, precomputed weights: a first kernel works out where every sample lies, the second only gathers.
//
// First kernel: a thread a sample, which becomes 16 bytes of scratch memory. Second: a group of VECTORS lanes takes a
// row and reads these instead of coordinates and weights. Spares the second three quarters of A3's arithmetic on places
// and more, about a quarter of its instructions. But 16 bytes a sample are written and read back, 0.76 GB in seed-full,
// three times all that A3 moves through DRAM: 0.2 ms more, 0.1 ms less. Should lose a quarter.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

constexpr int RUN = largest_divisor(POINTS, 4);

extern "C" __global__ void __launch_bounds__(THREADS) ladder_s2_precomputed_places(const __grid_constant__ Problem p) {
    __shared__ Level levels[LEVELS]; // lanes ask for different ones at a time
    if (threadIdx.x < LEVELS) levels[threadIdx.x] = p.levels[threadIdx.x];
    __syncthreads();
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= static_cast<u64>(row_count(p)) * SAMPLES) return;
    const Level level = levels[at % SAMPLES / POINTS];
    reinterpret_cast<Record *>(p.scratch)[at] = record_of(p.locations[at], p.weights[at], level);
}

KERNEL ladder_s2_precomputed(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    if (!place.live) return;
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
    const Record *next = reinterpret_cast<const Record *>(p.scratch) + static_cast<u64>(place.row) * SAMPLES;
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Corners corners = corners_of(value, stride, p.levels[l]);
#pragma unroll 1
        for (int point = 0; point < POINTS; point += RUN, next += RUN) {
            Record records[RUN];
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                const Words words = load(reinterpret_cast<const char *>(next + i));
                records[i] = {words.x, __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
            }
#pragma unroll
            for (int i = 0; i < RUN; i++) add_sample(sums, load_taps(corners, records[i].pixel, stride), records[i]);
        }
    }
    store_sums(out_of(p, place), sums);
}
