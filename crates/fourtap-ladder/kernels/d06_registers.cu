// D6, everything in registers: mma.sync, ldmatrix from exchanged pieces, cp.async. D7 is the same with larger tiles.
//
// A warp has ROWS queries; logits become weights in the registers where the first product left them, which are those the
// second takes them from, and outputs never leave theirs. K and V come tile by tile into STAGES places of shared memory, the
// next ones copied, without a register between, while the last are used; one barrier a tile says both that a tile is there
// and that another's place is free. Pieces are exchanged so that ldmatrix meets no bank twice. Shared memory sees K, V and
// nothing else: should gain three to five times on D5. What binds with 16 rows a warp is ldmatrix, each one feeding two
// products; with 32 (D7) it feeds four, and tensor cores and exponentials bind, which is what FlashAttention-2 reaches.
//
// ROWS: queries a warp. WARPS: of a block, which has ROWS * WARPS queries. KEYS: of a tile. STAGES: tiles in shared memory.

constexpr int BLOCK_M = ROWS * WARPS, THREADS = 32 * WARPS;
constexpr u32 TILE = KEYS * ROW_BYTES, STAGE = 2 * TILE, STAGES_AT = BLOCK_M * ROW_BYTES; // keys, then values

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d06(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    // A warp's number by way of its first lane: the compiler then knows that it is one for all.
    const u32 shared = shared_address(memory), lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int tiles = (block.keys + KEYS - 1) / KEYS, first_row = block.first + ROWS * warp;
    const u32 queries_at = shared + left_place(ROWS * warp, lane);
    const u32 keys_at = shared + STAGES_AT + key_place(0, lane), values_at = shared + STAGES_AT + TILE + left_place(0, lane);
    // Every batch is ended, also an empty one, so that so many batches back is always so many tiles back.
    const auto ask_for = [&](int tile) {
        if (tile < tiles) {
            const u32 stage = shared + STAGES_AT + tile % STAGES * STAGE;
            ask_for_rows<KEYS, THREADS>(stage, key, tile * KEYS, p.keys);
            ask_for_rows<KEYS, THREADS>(stage + TILE, value, tile * KEYS, p.keys);
        }
        commit_copies();
    };

    ask_for_rows<BLOCK_M, THREADS>(shared, plane_of(p.query, block.plane, p.queries), block.first, p.queries);
    for (int tile = 0; tile < STAGES - 1; tile++) ask_for(tile);
    Rows rows;
    Queries kept;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        ask_for(tile + STAGES - 1);
        if (tile == 0) keep_queries(kept, queries_at);
        // Under a causal mask the block's last tiles may be past all queries of this warp.
        if (CAUSAL && tile * KEYS >= keys_seen(p, first_row + ROWS - 1)) continue;
        const u32 stage = tile % STAGES * STAGE;
        add_tile(p, rows, kept, queries_at, keys_at + stage, values_at + stage, first_row, tile * KEYS);
    }
    finish(rows);
    store_rows(p, rows, block.plane, first_row);
}
