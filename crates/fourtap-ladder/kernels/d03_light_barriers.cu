// D3, light barriers: a row belongs to one warp, which reduces by shuffles; barriers are for the tiles alone.
//
// A warp takes every WARPS-th of the block's BLOCK_M queries. Its lanes are keys for the logits (32 at a time, a word of a
// key serving all rows of the warp), then channels for the outputs, the weights going round by shuffle. Two barriers a tile
// instead of D2's four, no logits in shared memory, and no phase in which some threads wait: should gain two to three
// times. What binds is issue: a multiply-add for every pair of numbers, and conversions beside it.
//
// The published kernel hung where BLOCK_M is no multiple of WARPS, some warps meeting a barrier once more than others. Here
// none is inside the loop over rows, and a warp that has a row less computes its last one twice, storing it once.
//
// BLOCK_M, WARPS: queries and warps a block. BLOCK_N: keys a tile.

constexpr int THREADS = 32 * WARPS, ROWS = (BLOCK_M + WARPS - 1) / WARPS, TURNS = BLOCK_N / 32;
constexpr int PITCH = HEAD + 2;                 // an odd number of words
constexpr int OUTS = PAIRS < 32 ? 1 : PAIRS / 32; // pairs of channels a lane; with fewer than 32, lanes repeat each other
static_assert(BLOCK_N % 32 == 0 && WARPS <= BLOCK_M, "every lane has a key, every warp a row");

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d03(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    u16 *const queries = reinterpret_cast<u16 *>(memory), *const keys = queries + BLOCK_M * PITCH;
    u16 *const values = keys + BLOCK_N * PITCH;
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % PAIRS;
    const auto row_of = [&](int r) { return min(warp + r * WARPS, BLOCK_M - 1); };
    float2 out[ROWS][OUTS] = {};
    float maximum[ROWS], sum[ROWS] = {}; // the sum of the lane's own keys
    for (int r = 0; r < ROWS; r++) maximum[r] = minus_infinity();

    fetch_rows<BLOCK_M, PITCH, THREADS>(queries, plane_of(p.query, block.plane, p.queries), block.first, p.queries);
#pragma unroll 1
    for (int first = 0; first < block.keys; first += BLOCK_N) {
        __syncthreads();
        fetch_rows<BLOCK_N, PITCH, THREADS>(keys, key, first, p.keys);
        fetch_rows<BLOCK_N, PITCH, THREADS>(values, value, first, p.keys);
        __syncthreads();
#pragma unroll 1
        for (int turn = 0; turn < TURNS; turn++) {
            float logits[ROWS] = {};
#pragma unroll 8
            for (int c = 0; c < HEAD; c += 2) {
                const float2 b = widen(pair_at(keys + (32 * turn + lane) * PITCH + c));
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float2 a = widen(pair_at(queries + row_of(r) * PITCH + c));
                    logits[r] = __fmaf_rn(a.x, b.x, __fmaf_rn(a.y, b.y, logits[r]));
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const bool seen = first + 32 * turn + lane < keys_seen(p, block.first + row_of(r));
                const float logit = seen ? logits[r] * p.scale : minus_infinity();
                const float higher = fmaxf(maximum[r], highest_of_warp(logit));
                const float factor = power_of_two(maximum[r] - higher);
                logits[r] = power_of_two(logit - higher);
                sum[r] = sum[r] * factor + logits[r];
                maximum[r] = higher;
                for (int o = 0; o < OUTS; o++) out[r][o].x *= factor, out[r][o].y *= factor;
            }
#pragma unroll 4
            for (int j = 0; j < 32; j++) {
                float2 v[OUTS];
#pragma unroll
                for (int o = 0; o < OUTS; o++) v[o] = widen(pair_at(values + (32 * turn + j) * PITCH + 2 * (pair + 32 * o)));
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float weight = __shfl_sync(ALL, logits[r], j);
#pragma unroll
                    for (int o = 0; o < OUTS; o++) {
                        out[r][o].x = __fmaf_rn(weight, v[o].x, out[r][o].x);
                        out[r][o].y = __fmaf_rn(weight, v[o].y, out[r][o].y);
                    }
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float inverse = 1.0f / sum_of_warp(sum[r]);
        const int row = warp + r * WARPS;
        if (row >= BLOCK_M || block.first + row >= p.queries || lane >= PAIRS) continue;
        for (int o = 0; o < OUTS; o++) {
            store_pair(p, block.plane, block.first + row, pair + 32 * o, out[r][o].x * inverse, out[r][o].y * inverse);
        }
    }
}
