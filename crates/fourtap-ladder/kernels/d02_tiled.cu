// D2, tiled: K and V come through shared memory, once for BLOCK_M queries.
//
// A block takes BLOCK_M queries of a plane and walks the keys in tiles of BLOCK_N, in phases with a barrier between: fetch
// the tile; all logits, each by one thread; the softmax of a row by one thread; all outputs, each thread two channels of
// some rows, in registers. Against D1, K and V are read BLOCK_M times less, and a key costs no reduction: should gain about
// ten times. What binds then is shared memory, two words for two multiply-adds, and the phase in which BLOCK_M threads
// work and the others wait.
//
// BLOCK_M: queries a block. BLOCK_N: keys a tile. Rows lie an odd number of words apart: 32 of them are in 32 banks.

constexpr int THREADS = 128, PITCH = HEAD + 2, LOGITS = BLOCK_N + 1;
constexpr int STEP = THREADS / PAIRS, OUTS = BLOCK_M / STEP; // a thread has every STEP-th row
static_assert(BLOCK_M % STEP == 0 && BLOCK_M <= THREADS && BLOCK_N % 32 == 0, "each output has one thread");

extern "C" __global__ void __launch_bounds__(THREADS) ladder_d02(const __grid_constant__ Problem p) {
    extern __shared__ __align__(128) char memory[];
    u16 *const queries = reinterpret_cast<u16 *>(memory), *const keys = queries + BLOCK_M * PITCH;
    u16 *const values = keys + BLOCK_N * PITCH;
    float *const logits = reinterpret_cast<float *>(values + BLOCK_N * PITCH), *const factors = logits + BLOCK_M * LOGITS;
    const Block<BLOCK_M> block(p, blockIdx.x);
    const u16 *key = plane_of(p.key, block.plane, p.keys), *value = plane_of(p.value, block.plane, p.keys);
    const int pair = threadIdx.x % PAIRS, own_row = threadIdx.x / PAIRS;
    float2 out[OUTS] = {};
    float maximum = minus_infinity(), sum = 0.0f; // of row threadIdx.x

    fetch_rows<BLOCK_M, PITCH, THREADS>(queries, plane_of(p.query, block.plane, p.queries), block.first, p.queries);
    for (int first = 0; first < block.keys; first += BLOCK_N) {
        fetch_rows<BLOCK_N, PITCH, THREADS>(keys, key, first, p.keys);
        fetch_rows<BLOCK_N, PITCH, THREADS>(values, value, first, p.keys);
        __syncthreads();
        for (int i = threadIdx.x; i < BLOCK_M * BLOCK_N; i += THREADS) {
            const int row = i / BLOCK_N, j = i % BLOCK_N;
            float logit = 0.0f;
#pragma unroll
            for (int c = 0; c < HEAD; c += 2) {
                const float2 a = widen(pair_at(queries + row * PITCH + c)), b = widen(pair_at(keys + j * PITCH + c));
                logit = __fmaf_rn(a.x, b.x, __fmaf_rn(a.y, b.y, logit));
            }
            const bool seen = first + j < keys_seen(p, block.first + row);
            logits[row * LOGITS + j] = seen ? logit * p.scale : minus_infinity();
        }
        __syncthreads();
        if (threadIdx.x < BLOCK_M) {
            float *row = logits + threadIdx.x * LOGITS, higher = maximum, weights = 0.0f;
            for (int j = 0; j < BLOCK_N; j++) higher = fmaxf(higher, row[j]);
            for (int j = 0; j < BLOCK_N; j++) {
                row[j] = power_of_two(row[j] - higher);
                weights += row[j];
            }
            factors[threadIdx.x] = power_of_two(maximum - higher);
            sum = sum * factors[threadIdx.x] + weights;
            maximum = higher;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OUTS; i++) {
            const float factor = factors[own_row + i * STEP];
            out[i].x *= factor, out[i].y *= factor;
        }
#pragma unroll 4
        for (int j = 0; j < BLOCK_N; j++) {
            const float2 v = widen(pair_at(values + j * PITCH + 2 * pair));
#pragma unroll
            for (int i = 0; i < OUTS; i++) {
                const float weight = logits[(own_row + i * STEP) * LOGITS + j];
                out[i].x = __fmaf_rn(weight, v.x, out[i].x);
                out[i].y = __fmaf_rn(weight, v.y, out[i].y);
            }
        }
        __syncthreads();
    }

    if (threadIdx.x < BLOCK_M) factors[threadIdx.x] = 1.0f / sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OUTS; i++) {
        const int row = own_row + i * STEP;
        const float inverse = factors[row];
        if (block.first + row >= p.queries) continue;
        store_pair(p, block.plane, block.first + row, pair, out[i].x * inverse, out[i].y * inverse);
    }
}
