// Backward, sorting samples, third step: each to its place. See bins.cuh.
//
// A block has a chunk, each lane so few of its samples that they stay in registers. Warps first count their own, so that
// each knows how many of the chunk are before its own in each bin; then samples get their places, in order.
//
// Few, large blocks: what is written at a time then stays in L2 until its lines are full.
//
// VALUE, LOCATION, WEIGHT: element types; PAIRED, WIDE: see bins.cuh; PLACE_WARPS: of a block.

constexpr u32 EACH = CHUNK / (32 * PLACE_WARPS); // samples a lane

typedef Element<WEIGHT>::Storage Weight;

extern "C" __global__ void __launch_bounds__(32 * PLACE_WARPS, 1)
    msda_backward_place(const __grid_constant__ Arguments a, const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    // How many samples of the chunk are before those a warp comes to next, [warps][bins].
    extern __shared__ __align__(16) u16 tables[];
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u16 *const table = tables + warp * BAND;
    const u32 bands = bands_of_all(a, grids);
    const u64 jobs = static_cast<u64>(bands) * work.planes * work.chunks;
    for (u64 number = blockIdx.x; number < jobs; number += gridDim.x) {
        const Job job = job_of(number, bands, work, grids);
        const Grid grid = grids[job.level];
        const u32 first = job.band * BAND, bins = min(BAND, grid.bins - first);
        const int bits = 32 - __clz(bins - 1);
        const u32 plane = work.first_plane + job.plane, n = plane / a.heads, m = plane - n * a.heads;
        const auto *const locations = static_cast<const Location *>(a.locations) + n * a.location_strides[0] +
                                      m * a.location_strides[2] + job.level * a.location_strides[3];
        const u32 *const places = work.counts +
                                  (static_cast<u64>(job.plane) * work.chunks + job.chunk) * work.capacity + grid.first +
                                  first;
        const auto *const weights = static_cast<const Weight *>(a.weights) + n * a.weight_strides[0] +
                                    m * a.weight_strides[2] + job.level * a.weight_strides[3];
        Record *const sorted = sorted_of(work, job.plane, job.level);

        Real x[EACH], y[EACH], weight[EACH];
        Samples at(a, work, job.chunk, warp, PLACE_WARPS, lane);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            x[i] = y[i] = -100;
            weight[i] = 0;
            if (at.index < at.end) {
                const i64 bytes = steps<Location>(at.query, a.location_strides[1], at.point, a.location_strides[4]);
                load_location(moved(locations, bytes), a.location_strides[5], x[i], y[i]);
                const i64 to_weight = steps<Weight>(at.query, a.weight_strides[1], at.point, a.weight_strides[4]);
                weight[i] = Element<WEIGHT>::widen(*moved(weights, to_weight));
            }
            at.advance();
        }
        // A sample fills half of a sector, which L2 fetches before it can change it. Each block has its part of the list
        // fetched before anybody writes to it.
        if (job.band == 0) {
            const u32 begin = job.chunk * work.chunk, end = min(work.samples, begin + work.chunk);
            constexpr u32 LINE = 128 / sizeof(Record);
            for (u32 i = begin + threadIdx.x * LINE; i < end; i += 32 * PLACE_WARPS * LINE) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(sorted + i));
            }
        }
        for (u32 i = lane; i < (bins + 1) / 2; i += 32) reinterpret_cast<u32 *>(table)[i] = 0;
        __syncwarp();

        u32 bin[EACH];
        float largest = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            x[i] = in_pixels(x[i], grid.width);
            y[i] = in_pixels(y[i], grid.height);
            bin[i] = bin_of(grid, x[i], y[i]) - first;
            if (bin[i] < bins) {
                atomicAdd(reinterpret_cast<u32 *>(table) + bin[i] / 2, 1u << bin[i] % 2 * 16);
                const float size = magnitude(static_cast<float>(weight[i]));
                if (size <= 3.402823466e38f) largest = fmaxf(largest, size);
            }
        }
        const u32 bits_of_largest = __reduce_max_sync(ALL, __float_as_uint(largest));
        if (lane == 0) atomicMax(&work.largest[static_cast<u64>(job.plane) * a.levels + job.level], bits_of_largest);
        u32 place[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) place[i] = bin[i] < bins ? places[bin[i]] : 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < (bins + 1) / 2; i += 32 * PLACE_WARPS) {
            u32 before = 0; // of two bins, which do not carry
#pragma unroll
            for (int w = 0; w < PLACE_WARPS; w++) {
                u32 &here = reinterpret_cast<u32 *>(tables + w * BAND)[i];
                const u32 count = here;
                here = before;
                before += count;
            }
        }
        __syncthreads();

        at = Samples(a, work, job.chunk, warp, PLACE_WARPS, lane);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 query = at.query;
            at.advance();
            if (!__any_sync(ALL, bin[i] < bins)) continue;
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
                sorted[place[i] + before + rank] = {x[i], y[i], weight[i], query};
            }
            __syncwarp();
        }
        __syncthreads(); // nobody still uses the tables
    }
}
