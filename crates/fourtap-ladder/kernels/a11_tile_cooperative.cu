// A11, 2x2 tile in shared memory: a warp loads the tiles of its samples together, and mixes from shared memory.
//
// One block a multiprocessor; a warp walks its rows (tiles.cuh) with tiles of its own, TILES samples of every row at a
// time. To load, lanes line up along the tiles, so that with one head x and x + 1 are one access of twice the length;
// to mix, a group of lanes stands before its row's tile. The next tiles are in registers on their way meanwhile.
// Longer accesses should spare a fifth of the wavefronts of pixels that A3 needs, yet each byte passes the pipe between
// shared memory and registers twice more: a loss, 0.6 to 0.65 ms on seed-full. With several heads nothing lies side by
// side, and all is loss.
//
// THREADS of a block; TILES: 1, 2 or 4; BUFFERS: 1, a second barrier a step; 2, tiles in turns.

constexpr int WARPS = THREADS / 32;
constexpr int LOAD_BYTES = TILES * STEP_BYTES;
static_assert(CHUNK % (TILES * BUFFERS) == 0, "a chunk is a whole number of turns of the buffers");

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a11(const __grid_constant__ Problem p) {
    // Tiles of each warp and buffer, then two chunks of records of each warp.
    extern __shared__ __align__(1024) char memory[];
    const Lane lane;
    const u32 warp = warp_in_block(), rows = row_count(p), stride = gridDim.x * (WARPS * GROUPS);
    const u32 tiles = shared_address(memory) + warp * (BUFFERS * LOAD_BYTES);
    u32 records = shared_address(memory) + WARPS * (BUFFERS * LOAD_BYTES) + warp * (2 * CHUNK_BYTES);
    u32 next_records = records + CHUNK_BYTES;
    u32 first = (blockIdx.x * WARPS + warp) * GROUPS;
    if (first >= rows) return;

    Pieces pieces;
    Words held[TILES][4];
    const auto fetch = [&](u32 from, int chunk, int slot) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            if (!is_sample(chunk, slot + t)) continue;
            const char *sources[4];
            pieces.choose_level(p, lane, chunk, slot + t);
            pieces.find(lane, from, slot + t, sources);
#pragma unroll
            for (int k = 0; k < 4; k++) held[t][k] = load(sources[k]);
        }
    };
    const auto mix = [&](float(&sums)[VECTOR], u32 buffer, int chunk, int slot) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            if (!is_sample(chunk, slot + t)) continue;
            Tile tile;
            tile.load(lane, buffer + t * STEP_BYTES, records, slot + t);
            tile.add_to(sums);
        }
    };
    Ahead ahead;
    ahead.begin(p, lane, first);
    ahead.write(p, lane, records);
    ahead.advance(p, lane, stride);
    __syncwarp();
    fetch(records, 0, 0);

#pragma unroll 1
    for (; first < rows; first += stride) {
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int next_chunk = ahead.chunk;
            const bool more = ahead.first < rows;
#pragma unroll
            for (int slot = 0; slot < CHUNK; slot += TILES) {
                const u32 buffer = tiles + slot / TILES % BUFFERS * LOAD_BYTES;
                // A single buffer must have been read by all; the other of two was, before the last barrier.
                if (BUFFERS == 1) __syncwarp();
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    if (!is_sample(chunk, slot + t)) continue;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        store_shared(buffer + t * STEP_BYTES + Pieces::target(lane, k), held[t][k]);
                    }
                }
                if (slot + TILES == CHUNK && more) {
                    // Over the records of the chunk before, which every lane left before the last barrier.
                    ahead.write(p, lane, next_records);
                    ahead.advance(p, lane, stride);
                }
                __syncwarp();
                if (slot + TILES < CHUNK) {
                    fetch(records, chunk, slot + TILES);
                } else if (more) {
                    fetch(next_records, next_chunk, 0);
                }
                mix(sums, buffer, chunk, slot);
            }
            const u32 read = records;
            records = next_records;
            next_records = read;
        }
        const u32 row = first + lane.group;
        if (row < rows) store_sums(p.out + (static_cast<u64>(row) * VECTORS + lane.vector) * 16, sums);
    }
}
