// D10, small problems: the keys of a tile are shared out among columns of warps.
//
// 512 queries of eight heads are 64 tiles of D6's 64 queries: half the device idles, and each block walks all keys alone. Here
// a block has ROW_WARPS * 16 queries, so that there are enough blocks for one wave, and KEY_WARPS columns of warps, each of
// which takes its KEYS keys of every tile with a softmax of its own: a quarter of the steps with four columns, and four
// times the warps to hide each other's waiting. At the end the columns are put together through shared memory, in order. Should
// halve the time of D6 on such problems and lose on large ones, where more warps read the same queries' tiles. What binds is
// latency: launch, the first tile, then steps that depend on each other.
//
// ROW_WARPS, KEY_WARPS: rows and columns of warps. KEYS: of a tile, a column. STAGES: tiles in shared memory.

constexpr int BLOCK_M = ROWS * ROW_WARPS, BLOCK_N = KEYS * KEY_WARPS, THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr u32 TILE = BLOCK_N * ROW_BYTES, STAGE = 2 * TILE, STAGES_AT = BLOCK_M * ROW_BYTES; // keys, then values
static_assert(ROW_TILES == 1, "a warp has 16 queries");

// The rows of all columns, put together in the first, where it returns true. `memory` is free by now but for what other warps
// still read of the last tile.
__device__ __forceinline__ bool gather_columns(Rows &rows, char *memory, u32 row_warp, u32 key_warp) {
    const u32 lane = threadIdx.x % 32;
    float2 *states = reinterpret_cast<float2 *>(memory);                      // [KEY_WARPS][BLOCK_M]: maximum and sum
    float4 *outs = reinterpret_cast<float4 *>(states + KEY_WARPS * BLOCK_M); // [KEY_WARPS - 1][ROW_WARPS][OUT_TILES][32]
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = row_warp * 16 + 8 * half + lane / 4;
        if (lane % 4 == 0) states[key_warp * BLOCK_M + row] = {rows.maximum[0][half], rows.sum[0][half]};
    }
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = row_warp * 16 + 8 * half + lane / 4;
        float maximum = minus_infinity(), sum = 0.0f;
        for (int w = 0; w < KEY_WARPS; w++) maximum = fmaxf(maximum, states[w * BLOCK_M + row].x);
        for (int w = 0; w < KEY_WARPS; w++) {
            const float2 state = states[w * BLOCK_M + row];
            sum += state.y * power_of_two(state.x - maximum); // somebody saw key 0, so the maximum is finite
        }
        factor[half] = power_of_two(rows.maximum[0][half] - maximum);
        rows.sum[0][half] = sum;
    }
#pragma unroll
    for (int c = 0; c < OUT_TILES; c++) {
        float(&out)[4] = rows.out[0][c];
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] *= factor[i / 2];
        const u32 place = (((key_warp - 1) * ROW_WARPS + row_warp) * OUT_TILES + c) * 32 + lane;
        if (key_warp > 0) outs[place] = {out[0], out[1], out[2], out[3]};
    }
    __syncthreads();
    if (key_warp > 0) return false;
#pragma unroll
    for (int c = 0; c < OUT_TILES; c++) {
        for (int w = 1; w < KEY_WARPS; w++) {
            const float4 other = outs[(((w - 1) * ROW_WARPS + row_warp) * OUT_TILES + c) * 32 + lane];
            float(&out)[4] = rows.out[0][c];
            out[0] += other.x, out[1] += other.y, out[2] += other.z, out[3] += other.w;
        }
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d10(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    const u32 shared = shared_address(memory), lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const u32 row_warp = warp % ROW_WARPS, key_warp = warp / ROW_WARPS;
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int tiles = (block.keys + BLOCK_N - 1) / BLOCK_N, first_row = block.first + 16 * row_warp;
    const u32 queries_at = shared + left_place(16 * row_warp, lane);
    const u32 keys_at = shared + STAGES_AT + key_place(KEYS * key_warp, lane);
    const u32 values_at = shared + STAGES_AT + TILE + left_place(KEYS * key_warp, lane);
    const auto ask_for = [&](int tile) {
        if (tile < tiles) {
            const u32 stage = shared + STAGES_AT + tile % STAGES * STAGE;
            ask_for_rows<BLOCK_N, THREADS>(stage, key, tile * BLOCK_N, p.keys);
            ask_for_rows<BLOCK_N, THREADS>(stage + TILE, value, tile * BLOCK_N, p.keys);
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
        const int first_key = tile * BLOCK_N + KEYS * key_warp;
        if (first_key >= keys_seen(p, first_row + ROWS - 1)) continue; // a column past all keys that its rows see
        const u32 stage = tile % STAGES * STAGE;
        add_tile(p, rows, kept, queries_at, keys_at + stage, values_at + stage, first_row, first_key);
    }
    finish(rows);
    if (gather_columns(rows, memory + STAGES_AT, row_warp, key_warp)) store_rows(p, rows, block.plane, first_row);
}
