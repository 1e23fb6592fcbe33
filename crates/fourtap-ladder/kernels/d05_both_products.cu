// D5, tensor cores for both products, by WMMA; weights and outputs go through shared memory.
//
// As D4 as far as the weights, which are then rounded to 16 bits and stored as the left factor of the second product. Its
// sums must be scaled row by row whenever a maximum grows, and since nobody knows which lane has which row, they too live in
// shared memory: scaled there, loaded, added to, stored again, tile after tile. No multiply-add is left outside the tensor
// cores: should gain two to three times on D4. What binds is shared memory: logits out and in, weights out and in, outputs
// in and out twice.
//
// BLOCK_M: queries a block, 16 a warp. BLOCK_N: keys a tile.

constexpr int WEIGHTS = BLOCK_N + 8, OUT = HEAD + 4; // from a row to the next

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d05(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    u16 *const queries = reinterpret_cast<u16 *>(memory), *const keys = queries + BLOCK_M * PITCH;
    u16 *const values = keys + BLOCK_N * PITCH, *const all_weights = values + BLOCK_N * PITCH;
    float *const all_logits = reinterpret_cast<float *>(all_weights + BLOCK_M * WEIGHTS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u16 *const weights = all_weights + 16 * warp * WEIGHTS;
    float *const logits = all_logits + 16 * warp * LOGITS, *const out = all_logits + BLOCK_M * LOGITS + 16 * warp * OUT;
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int first_row = block.first + 16 * warp;
    Row rows[16];
#pragma unroll
    for (int r = 0; r < 16; r++) rows[r] = {minus_infinity(), 0.0f};
    for (int i = lane; i < 16 * OUT; i += 32) out[i] = 0.0f;

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
            float of_row[TURNS];
            const float factor = weigh(rows[r], of_row, logits + r * LOGITS, p.scale, keys_seen(p, first_row + r) - first);
            for (int turn = 0; turn < TURNS; turn++) weights[r * WEIGHTS + 32 * turn + lane] = rounded(of_row[turn]);
            for (int c = lane; c < HEAD; c += 32) out[r * OUT + c] *= factor;
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < HEAD; c += 16) {
            Sums sums;
            load_sums(sums, out + c, OUT);
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += 16) {
                Factor a, b;
                load_left(a, weights + n, WEIGHTS);
                load_right<false>(b, values + n * PITCH + c, PITCH);
                add_product<false>(sums, a, b);
            }
            store_sums(out + c, sums, OUT);
        }
        __syncwarp();
    }

#pragma unroll
    for (int r = 0; r < 16; r++) {
        const float inverse = 1.0f / sum_of_warp(rows[r].sum);
        if (first_row + r >= p.queries) continue;
        for (int pair = lane; pair < PAIRS; pair += 32) {
            const float *both = out + r * OUT + 2 * pair;
            store_pair(p, block.plane, first_row + r, pair, both[0] * inverse, both[1] * inverse);
        }
    }
}
