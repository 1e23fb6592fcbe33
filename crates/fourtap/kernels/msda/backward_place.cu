// Backward, sorting samples, third step: each to its place. See bins.cuh.
//
// VALUE, LOCATION, WEIGHT: element types; PAIRED, WIDE: see bins.cuh.

constexpr int AHEAD = 8;

typedef Element<WEIGHT>::Storage Weight;

extern "C" __global__ void __launch_bounds__(32 * SORT_WARPS)
    msda_backward_place(const __grid_constant__ Arguments a, const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ u16 tables[SORT_WARPS][BAND]; // how many of the chunk have got their places so far
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u16 *const table = tables[warp];
    const u32 bands = bands_of_all(a, grids);
    const u64 jobs = static_cast<u64>(bands) * work.planes * work.chunks, warps = gridDim.x * SORT_WARPS;
    for (u64 number = static_cast<u64>(blockIdx.x) * SORT_WARPS + warp; number < jobs; number += warps) {
        const Job job = job_of(number, bands, work, grids);
        const Grid grid = grids[job.level];
        const u32 first = job.band * BAND, bins = min(BAND, grid.bins - first);
        const int bits = 32 - __clz(bins - 1);
        for (u32 i = lane; i < (bins + 1) / 2; i += 32) reinterpret_cast<u32 *>(table)[i] = 0;
        __syncwarp();

        const u32 plane = work.first_plane + job.plane, n = plane / a.heads, m = plane - n * a.heads;
        const auto *const locations = static_cast<const Location *>(a.locations) + n * a.location_strides[0] +
                                      m * a.location_strides[2] + job.level * a.location_strides[3];
        const u32 *const places = work.counts +
                                  (static_cast<u64>(job.plane) * work.chunks + job.chunk) * work.capacity + grid.first +
                                  first;
        const auto *const weights = static_cast<const Weight *>(a.weights) + n * a.weight_strides[0] +
                                    m * a.weight_strides[2] + job.level * a.weight_strides[3];
        Record *const sorted = sorted_of(work, job.plane, job.level);
        float largest = 0;
        Samples at(a, work, job.chunk, lane);
        while (__any_sync(ALL, at.index < at.end)) {
            Record record[AHEAD];
            u32 bin[AHEAD], place[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                record[i] = {-100, -100, 0, at.query};
                if (at.index < at.end) {
                    const i64 bytes = steps<Location>(at.query, a.location_strides[1], at.point, a.location_strides[4]);
                    load_location(moved(locations, bytes), a.location_strides[5], record[i].x, record[i].y);
                    const i64 to_weight = steps<Weight>(at.query, a.weight_strides[1], at.point, a.weight_strides[4]);
                    record[i].weight = Element<WEIGHT>::widen(*moved(weights, to_weight));
                }
                at.advance();
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                record[i].x = in_pixels(record[i].x, grid.width);
                record[i].y = in_pixels(record[i].y, grid.height);
                bin[i] = bin_of(grid, record[i].x, record[i].y) - first;
                place[i] = bin[i] < bins ? places[bin[i]] : 0;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                // Lanes with the same bin, by the bits of its number.
                const bool mine = bin[i] < bins;
                u32 equals = __ballot_sync(ALL, mine);
                for (int bit = 0; bit < bits; bit++) {
                    const bool set = bin[i] >> bit & 1;
                    const u32 voted = __ballot_sync(ALL, set);
                    equals &= set ? voted : ~voted;
                }
                const u32 before = mine ? table[bin[i]] : 0, rank = __popc(equals & ((1u << lane) - 1));
                __syncwarp();
                if (mine) {
                    if (rank == 0) table[bin[i]] = before + __popc(equals);
                    sorted[place[i] + before + rank] = record[i];
                    const float weight = magnitude(static_cast<float>(record[i].weight));
                    if (weight <= 3.402823466e38f) largest = fmaxf(largest, weight);
                }
                __syncwarp();
            }
        }
        const u32 bits_of_largest = __reduce_max_sync(ALL, __float_as_uint(largest));
        if (lane == 0) atomicMax(&work.largest[static_cast<u64>(job.plane) * a.levels + job.level], bits_of_largest);
    }
}
