// Backward, sorting samples, first step: how many of each chunk fall into each bin. See bins.cuh.
//
// VALUE, LOCATION: element types; PAIRED, WIDE: see bins.cuh.

constexpr int AHEAD = 8;

extern "C" __global__ void __launch_bounds__(32 * COUNT_WARPS)
    msda_backward_count(const __grid_constant__ Arguments a, const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ u32 table[BAND / 2]; // two 16-bit counts a word
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 bands = bands_of_all(a, grids);
    const u64 jobs = static_cast<u64>(bands) * work.planes * work.chunks;
    for (u64 number = blockIdx.x; number < jobs; number += gridDim.x) {
        const Job job = job_of(number, bands, work, grids);
        const Grid grid = grids[job.level];
        const u32 first = job.band * BAND, bins = min(BAND, grid.bins - first);
        for (u32 i = threadIdx.x; i < (bins + 1) / 2; i += 32 * COUNT_WARPS) table[i] = 0;
        __syncthreads();

        const u32 plane = work.first_plane + job.plane, n = plane / a.heads, m = plane - n * a.heads;
        const auto *const locations = static_cast<const Location *>(a.locations) + n * a.location_strides[0] +
                                      m * a.location_strides[2] + job.level * a.location_strides[3];
        Samples at(a, work, job.chunk, warp, COUNT_WARPS, lane);
        while (at.index < at.end) {
            Real x[AHEAD], y[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                x[i] = y[i] = -100;
                if (at.index < at.end) {
                    const i64 bytes = steps<Location>(at.query, a.location_strides[1], at.point, a.location_strides[4]);
                    load_location(moved(locations, bytes), a.location_strides[5], x[i], y[i]);
                }
                at.advance();
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const u32 bin = bin_of(grid, in_pixels(x[i], grid.width), in_pixels(y[i], grid.height)) - first;
                if (bin < bins) atomicAdd(&table[bin / 2], 1u << bin % 2 * 16);
            }
        }
        __syncthreads();
        u32 *const counts = work.counts + (static_cast<u64>(job.plane) * work.chunks + job.chunk) * work.capacity +
                            grid.first + first;
        // The last band is filled up to a multiple of four: so many are read at a time.
        for (u32 i = threadIdx.x; i < (bins + 3) / 4 * 4; i += 32 * COUNT_WARPS) {
            counts[i] = i < bins ? table[i / 2] >> i % 2 * 16 & 0xffffu : 0;
        }
        __syncthreads();
    }
}
