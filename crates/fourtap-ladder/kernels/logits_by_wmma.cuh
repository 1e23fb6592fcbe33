// Logits of a tile by WMMA, as D4 and D5 have them: a warp has 16 rows of the block, and what tensor cores leave goes to shared
// memory, since nobody knows which lane has what.

constexpr int WARPS = BLOCK_M / 16, THREADS = 32 * WARPS, TURNS = BLOCK_N / 32;
constexpr int PITCH = HEAD + 8;     // eight rows are in different banks
constexpr int LOGITS = BLOCK_N + 4; // floats from a row to the next
static_assert(BLOCK_M % 16 == 0 && BLOCK_N % 32 == 0, "whole matrices, and a key for every lane");

// 16 rows of logits, not scaled.
__device__ __forceinline__ void multiply_keys(float *logits, const u16 *queries, const u16 *keys) {
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += 16) {
        Sums sums = {};
#pragma unroll
        for (int c = 0; c < HEAD; c += 16) {
            Factor a, b;
            load_left(a, queries + c, PITCH);
            load_right<true>(b, keys + n * PITCH + c, PITCH);
            add_product<true>(sums, a, b);
        }
        store_sums(logits + n, sums, LOGITS);
    }
    __syncwarp();
}

// What a lane knows of a row: the maximum so far, and the sum of the weights of its own keys.
struct Row {
    float maximum, sum;
};

// Turns a row of logits into weights, each lane its own keys (lane, lane + 32...), and says by what all earlier ones change.
__device__ __forceinline__ float weigh(Row &row, float (&weights)[TURNS], const float *logits, float scale, int seen) {
    const int lane = threadIdx.x % 32;
    float higher = row.maximum;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        weights[turn] = 32 * turn + lane < seen ? logits[32 * turn + lane] * scale : minus_infinity();
        higher = fmaxf(higher, weights[turn]);
    }
    higher = highest_of_warp(higher);
    const float factor = power_of_two(row.maximum - higher);
    row.maximum = higher;
    row.sum *= factor;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        weights[turn] = power_of_two(weights[turn] - higher);
        row.sum += weights[turn];
    }
    return factor;
}
