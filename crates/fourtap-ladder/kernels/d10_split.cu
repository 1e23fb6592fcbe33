// D10, small problems: the keys are shared out among blocks, and a second launch puts the parts together.
//
// As D6, but each of PARTS blocks takes a part of the tiles and leaves sums that are not divided yet, in f32, with the maximum
// and the sum of weights of each row. PARTS times as many blocks fill the device, each walks so much less; for that the
// second launch reads PARTS times the result in f32, out of L2. Should gain on D6 where its blocks leave most of the device
// idle, and less than columns of warps, which need no second launch; it is the only way where there are a few queries only.
// What binds is latency, two launches of it.
//
// ROWS, WARPS, KEYS, STAGES: as D6. PARTS: blocks that share a tile of queries.

constexpr int BLOCK_M = ROWS * WARPS, THREADS = 32 * WARPS;
constexpr u32 TILE = KEYS * ROW_BYTES, STAGE = 2 * TILE, STAGES_AT = BLOCK_M * ROW_BYTES;

// [PARTS][planes * queries] of maximum and sum, then as many rows of HEAD floats. A part without keys has sum 0 and no row.
__device__ __forceinline__ float2 *states_of(const Problem &p) { return reinterpret_cast<float2 *>(p.scratch); }
__device__ __forceinline__ float *outs_of(const Problem &p) {
    return reinterpret_cast<float *>(states_of(p) + static_cast<u64>(PARTS) * p.planes * p.queries);
}

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d10_part(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    const u32 shared = shared_address(memory), lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const Block<BLOCK_M> block(p, blockIdx.x / PARTS);
    const u32 part = blockIdx.x % PARTS;
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int all = (block.keys + KEYS - 1) / KEYS, first_row = block.first + ROWS * warp;
    const int begin = part * all / PARTS, tiles = (part + 1) * all / PARTS - begin;
    const u32 queries_at = shared + left_place(ROWS * warp, lane);
    const u32 keys_at = shared + STAGES_AT + key_place(0, lane), values_at = shared + STAGES_AT + TILE + left_place(0, lane);
    const auto ask_for = [&](int tile) {
        if (tile < tiles) {
            const u32 stage = shared + STAGES_AT + tile % STAGES * STAGE;
            ask_for_rows<KEYS, THREADS>(stage, key, (begin + tile) * KEYS, p.keys);
            ask_for_rows<KEYS, THREADS>(stage + TILE, value, (begin + tile) * KEYS, p.keys);
        }
        commit_copies();
    };

    if (tiles > 0) ask_for_rows<BLOCK_M, THREADS>(shared, plane_of(p.query, block.plane, p.queries), block.first, p.queries);
    for (int tile = 0; tile < STAGES - 1; tile++) ask_for(tile);
    Rows rows;
    Queries kept;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        ask_for(tile + STAGES - 1);
        if (tile == 0) keep_queries(kept, queries_at);
        const int first_key = (begin + tile) * KEYS;
        if (CAUSAL && first_key >= keys_seen(p, first_row + ROWS - 1)) continue;
        const u32 stage = tile % STAGES * STAGE;
        add_tile(p, rows, kept, queries_at, keys_at + stage, values_at + stage, first_row, first_key);
    }
    finish(rows);

    const u64 plane_row = (static_cast<u64>(part) * p.planes + block.plane) * p.queries;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = first_row + 16 * r + 8 * half + lane / 4;
            if (query >= p.queries) continue;
            if (lane % 4 == 0) states_of(p)[plane_row + query] = {rows.maximum[r][half], rows.sum[r][half]};
            if (rows.sum[r][half] == 0.0f) continue;
            float *row = outs_of(p) + (plane_row + query) * HEAD + 2 * (lane % 4);
#pragma unroll
            for (int c = 0; c < OUT_TILES; c++) {
                const float(&out)[4] = rows.out[r][c];
                *reinterpret_cast<float2 *>(row + 8 * c) = {out[2 * half], out[2 * half + 1]};
            }
        }
    }
}

// A thread has two channels of a query and adds the parts up in their order.
extern "C" __global__ void __launch_bounds__(128) ladder_d10_combine(const __grid_constant__ Problem p) {
    const u64 at = static_cast<u64>(blockIdx.x) * 128 + threadIdx.x, row = at / PAIRS, rows = static_cast<u64>(p.planes) * p.queries;
    if (row >= rows) return;
    const int pair = at % PAIRS;
    const float2 *states = states_of(p) + row;
    float maximum = minus_infinity(), sum = 0.0f;
    for (int part = 0; part < PARTS; part++) maximum = fmaxf(maximum, states[part * rows].x);
    float2 out = {0.0f, 0.0f};
    for (int part = 0; part < PARTS; part++) {
        const float2 state = states[part * rows];
        if (state.y == 0.0f) continue;
        const float factor = power_of_two(state.x - maximum);
        const float2 both = *reinterpret_cast<const float2 *>(outs_of(p) + (part * rows + row) * HEAD + 2 * pair);
        sum = __fmaf_rn(state.y, factor, sum);
        out.x = __fmaf_rn(both.x, factor, out.x);
        out.y = __fmaf_rn(both.y, factor, out.y);
    }
    store_pair(p, static_cast<u32>(row / p.queries), static_cast<int>(row % p.queries), pair, out.x / sum, out.y / sum);
}
