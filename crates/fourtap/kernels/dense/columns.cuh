// KEY_WARPS warps share queries and divide the keys of a tile among them: a split over keys inside a block, which small
// problems need to keep a multiprocessor busy. Each has a maximum, a sum and outputs of its own; here they become one, added
// in order. The first column holds the result, and true is returned in it.
//
// `memory`: where keys and values were, and beyond: KEY_WARPS * BLOCK_M * 8 + (KEY_WARPS - 1) * BLOCK_M * HEAD_V * 4 bytes.

static __device__ __forceinline__ bool gather_columns(Rows &rows, char *memory, u32 row_warp, u32 key_warp, u32 lane) {
    const u32 group = lane / 4;
    float2 *const states = reinterpret_cast<float2 *>(memory);                       // [KEY_WARPS][BLOCK_M]
    float4 *const parts = reinterpret_cast<float4 *>(states + KEY_WARPS * BLOCK_M); // [KEY_WARPS - 1][...][32]
    constexpr u32 PARTS = ROW_TILES * OUT_TILES;
    // Nobody reads keys any more; values perhaps, until the barrier.
    static_assert(KEY_WARPS * BLOCK_M * sizeof(float2) <= KEY_BYTES, "states lie where keys did");
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = row_warp * ROWS + 16 * r + 8 * half + group;
            if (lane % 4 == 0) states[key_warp * BLOCK_M + row] = {rows.maximum[r][half], rows.sum[r][half]};
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        float factor[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = row_warp * ROWS + 16 * r + 8 * half + group;
            float maximum = states[row].x, sum = 0.0f;
#pragma unroll
            for (u32 w = 1; w < KEY_WARPS; w++) maximum = fmaxf(maximum, states[w * BLOCK_M + row].x);
            const float from = subtrahend(maximum);
#pragma unroll
            for (u32 w = 0; w < KEY_WARPS; w++) {
                const float2 state = states[w * BLOCK_M + row];
                sum += state.y * power_of_two(state.x - from);
            }
            factor[half] = power_of_two(rows.maximum[r][half] - from);
            rows.maximum[r][half] = maximum;
            rows.sum[r][half] = sum;
        }
#pragma unroll
        for (u32 c = 0; c < OUT_TILES; c++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) rows.out[r][c][i] *= factor[i / 2];
            if (key_warp > 0) {
                const float(&o)[4] = rows.out[r][c];
                parts[(((key_warp - 1) * ROW_WARPS + row_warp) * PARTS + r * OUT_TILES + c) * 32 + lane] = {o[0], o[1], o[2], o[3]};
            }
        }
    }
    __syncthreads();
    if (key_warp > 0) return false;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 c = 0; c < OUT_TILES; c++) {
#pragma unroll
            for (u32 w = 1; w < KEY_WARPS; w++) {
                const float4 part = parts[(((w - 1) * ROW_WARPS + row_warp) * PARTS + r * OUT_TILES + c) * 32 + lane];
                rows.out[r][c][0] += part.x;
                rows.out[r][c][1] += part.y;
                rows.out[r][c][2] += part.z;
                rows.out[r][c][3] += part.w;
            }
        }
    }
    return true;
}
