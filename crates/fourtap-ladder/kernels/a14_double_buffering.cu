// A14, cp.async double buffering: the next samples' neighbours are copied into shared memory while these are mixed.
//
// One block a multiprocessor, its warps without anything in common; a warp walks its rows (tiles.cuh), and a ring of
// STAGES steps of 2 KB is always on its way, over the ends of chunks and rows: copies need no registers, so that
// nothing has to drain. What loads into registers would bring once over the pipe between L1 and registers goes over it
// twice here, into shared memory and out of it, and shared memory is taken from L1. So it should lose against A3
// wherever L1 hits (0.6 to 0.7 ms on seed-full), the more with BYPASS: 6 GB at the 9 TB/s that copies of tiles reach
// from L2.
//
// THREADS of a block; STAGES: 2, 4 or 8, a divisor of CHUNK; BYPASS: 1, copies pass L1 by; PAIRED: see tiles.cuh.

constexpr int LEAD = STAGES - 1; // steps on their way while one is mixed
constexpr int WARPS = THREADS / 32;
static_assert(CHUNK % STAGES == 0, "a chunk is a whole number of turns of the ring");

__device__ __forceinline__ void copy_piece(u32 target, const char *source) {
#if BYPASS
    copy_async(target, source);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a14(const __grid_constant__ Problem p) {
    // Tiles of each warp and stage, then two chunks of records of each warp.
    extern __shared__ __align__(1024) char memory[];
    const Lane lane;
    const u32 warp = warp_in_block(), rows = row_count(p), stride = gridDim.x * (WARPS * GROUPS);
    const u32 tiles = shared_address(memory) + warp * (STAGES * STEP_BYTES);
    u32 records = shared_address(memory) + WARPS * (STAGES * STEP_BYTES) + warp * (2 * CHUNK_BYTES);
    u32 next_records = records + CHUNK_BYTES;
    u32 first = (blockIdx.x * WARPS + warp) * GROUPS;
    if (first >= rows) return;

    Pieces pieces;
    const auto fetch = [&](u32 from, int chunk, int slot) {
        if (!is_sample(chunk, slot)) return;
        const char *sources[4];
        pieces.choose_level(p, lane, chunk, slot);
        pieces.find(lane, from, slot, sources);
        const u32 target = tiles + slot % STAGES * STEP_BYTES;
#pragma unroll
        for (int k = 0; k < 4; k++) copy_piece(target + Pieces::target(lane, k), sources[k]);
    };
    Ahead ahead;
    ahead.begin(p, lane, first);
    ahead.write(p, lane, records);
    ahead.advance(p, lane, stride);
    __syncwarp();
#pragma unroll
    for (int slot = 0; slot < LEAD; slot++) {
        fetch(records, 0, slot);
        commit_copies();
    }

#pragma unroll 1
    for (; first < rows; first += stride) {
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int next_chunk = ahead.chunk;
            const bool more = ahead.first < rows;
#pragma unroll
            for (int slot = 0; slot < CHUNK; slot++) {
                if (slot == CHUNK - LEAD && more) {
                    // Over the records of the chunk before, which every lane left before the last barrier.
                    ahead.write(p, lane, next_records);
                    ahead.advance(p, lane, stride);
                }
                wait_for_copies<LEAD - 1>();
                // This step's tiles are there for all; those of the step before have been read by all.
                __syncwarp();
                if (slot + LEAD < CHUNK) {
                    fetch(records, chunk, slot + LEAD);
                } else if (more) {
                    fetch(next_records, next_chunk, slot + LEAD - CHUNK);
                }
                commit_copies(); // also where nothing was copied, so that groups count steps
                if (is_sample(chunk, slot)) {
                    Tile tile;
                    tile.load(lane, tiles + slot % STAGES * STEP_BYTES, records, slot);
                    tile.add_to(sums);
                }
            }
            const u32 read = records;
            records = next_records;
            next_records = read;
        }
        const u32 row = first + lane.group;
        if (row < rows) store_sums(p.out + (static_cast<u64>(row) * VECTORS + lane.vector) * 16, sums);
    }
}
