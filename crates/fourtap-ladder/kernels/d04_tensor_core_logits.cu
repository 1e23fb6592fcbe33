// D4, tensor cores for Q K^T only, by WMMA.
//
// A warp has 16 queries and computes their logits for a tile of BLOCK_N keys on tensor cores; they go to shared memory and
// come back with a key a lane, become weights there, and are then read by everybody for the second product, which is
// ordinary multiply-adds with channels in lanes. Half of D3's arithmetic goes away, and shared memory sees the logits
// three times: should gain less than two times. What binds is issue, and what it issues is the other product.
//
// (The published "WMMA" kernel had no such instruction in it.)
//
// BLOCK_M: queries a block, 16 a warp. BLOCK_N: keys a tile.

constexpr int OUTS = PAIRS < 32 ? 1 : PAIRS / 32; // pairs of channels a lane; with fewer than 32, lanes repeat each other

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d04(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    u16 *const queries = reinterpret_cast<u16 *>(memory), *const keys = queries + BLOCK_M * PITCH;
    u16 *const values = keys + BLOCK_N * PITCH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % PAIRS;
    float *const logits = reinterpret_cast<float *>(values + BLOCK_N * PITCH) + 16 * warp * LOGITS;
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int first_row = block.first + 16 * warp;
    float2 out[16][OUTS] = {};
    Row rows[16];
#pragma unroll
    for (int r = 0; r < 16; r++) rows[r] = {minus_infinity(), 0.0f};

    fetch_rows<BLOCK_M, PITCH, THREADS>(queries, plane_of(p.query, block.plane, p.queries), block.first, p.queries);
#pragma unroll 1
    for (int first = 0; first < block.keys; first += BLOCK_N) {
        __syncthreads();
        fetch_rows<BLOCK_N, PITCH, THREADS>(keys, key, first, p.keys);
        fetch_rows<BLOCK_N, PITCH, THREADS>(values, value, first, p.keys);
        __syncthreads();
        multiply_keys(logits, queries + 16 * warp * PITCH, keys);
#pragma unroll
        for (int r = 0; r < 16; r++) {
            float weights[TURNS];
            const float factor = weigh(rows[r], weights, logits + r * LOGITS, p.scale, keys_seen(p, first_row + r) - first);
            for (int turn = 0; turn < TURNS; turn++) logits[r * LOGITS + 32 * turn + lane] = weights[turn];
            for (int o = 0; o < OUTS; o++) out[r][o].x *= factor, out[r][o].y *= factor;
        }
        __syncwarp();
#pragma unroll 1
        for (int j = 0; j < BLOCK_N; j += 4) {
            float2 v[4][OUTS];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                for (int o = 0; o < OUTS; o++) v[i][o] = widen(pair_at(values + (j + i) * PITCH + 2 * (pair + 32 * o)));
            }
#pragma unroll
            for (int r = 0; r < 16; r++) {
                const float4 four = *reinterpret_cast<const float4 *>(logits + r * LOGITS + j);
                const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    for (int o = 0; o < OUTS; o++) {
                        out[r][o].x = __fmaf_rn(weights[i], v[i][o].x, out[r][o].x);
                        out[r][o].y = __fmaf_rn(weights[i], v[i][o].y, out[r][o].y);
                    }
                }
            }
        }
        __syncwarp();
    }

#pragma unroll
    for (int r = 0; r < 16; r++) {
        const float inverse = 1.0f / sum_of_warp(rows[r].sum);
        if (first_row + r >= p.queries || lane >= PAIRS) continue;
        for (int o = 0; o < OUTS; o++) {
            store_pair(p, block.plane, first_row + r, pair + 32 * o, out[r][o].x * inverse, out[r][o].y * inverse);
        }
    }
}
