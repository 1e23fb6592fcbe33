// What the warps of a block know of their queries, and how it grows by a tile of keys: the online softmax.
//
// Of every 16 queries a lane has rows g and g + 8, and of `out` two channels in 8, as the tensor cores leave them. Logits
// never leave registers: what the first product leaves in them is what the second takes.

typedef Element<VALUE> Value;
constexpr u32 ROW_WARPS = WARPS / KEY_WARPS, ROWS = BLOCK_M / ROW_WARPS, KEYS = BLOCK_N / KEY_WARPS;
constexpr u32 ROW_TILES = ROWS / 16, KEY_TILES = KEYS / 8, OUT_TILES = HEAD_V / 8;
static_assert(ROWS % 16 == 0 && KEYS % 16 == 0 && HEAD % 32 == 0 && HEAD_V % 32 == 0, "whole fragments");
static_assert(ROW_WARPS * KEY_WARPS == WARPS, "a rectangle of warps");

// Wide heads leave a warp 16 queries only, so that a fragment of keys feeds two products and shared memory is what is
// waited for: the warp keeps the first of its queries' fragments (of 16 channels) that it has registers for. ELSEWHERE: what
// it needs besides them, sums and logits: above all fragments on their way, without which it waits again. SIMPLE: other
// forms need more, and would spill.
constexpr u32 MOST_REGISTERS = 255, ELSEWHERE = KEY_WARPS == 1 ? 48 : 56;
constexpr u32 USED = ROW_TILES * 4 * (OUT_TILES + KEY_TILES) + ELSEWHERE;
constexpr u32 SPARE = USED < MOST_REGISTERS ? (MOST_REGISTERS - USED) / (4 * ROW_TILES) : 0;
constexpr bool SIMPLE = ALIGN == 16 && !PADDED && !SPLIT;
constexpr int STEPS = HEAD / 16, KEPT = HEAD <= 128 || !SIMPLE ? 0 : SPARE < STEPS ? SPARE : STEPS;

// How far the maximum used may lag behind the true one, as a power of two: see `weigh`.
constexpr float LAG = 8.0f;
// Where the rounding of a scaled logit is no longer far below 1.
constexpr float HUGE = 1048576.0f;

struct Rows {
    float out[ROW_TILES][OUT_TILES][4];
    float maximum[ROW_TILES][2]; // of scaled logits; up to LAG below the true one
    float sum[ROW_TILES][2];     // of the lane's own keys, until `total`
    bool huge;                   // whether what is subtracted is, for some row of the warp

    __device__ __forceinline__ Rows() {
        huge = false;
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            maximum[r][0] = maximum[r][1] = minus_infinity();
            sum[r][0] = sum[r][1] = 0.0f;
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) out[r][c][i] = 0.0f;
        }
    }
};
typedef float Logits[ROW_TILES][KEY_TILES][4];
typedef u32 Weights[ROW_TILES][KEY_TILES / 2][4];
typedef u32 Queries[ROW_TILES][KEPT > 0 ? KEPT : 1][4];

// Logits of keys that a query does not see become minus infinity. `key`: the lane's first.
static __device__ __forceinline__ void hide(const Arguments &a, Logits &logits, int row, int key) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const int i = row + static_cast<int>(16 * r + 8 * half);
            const int from = MASK ? max(0, i + a.first) : 0, to = MASK ? min(a.keys, i + a.past) : a.keys;
            const u32 seen = max(0, to - from);
#pragma unroll
            for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    const bool visible = static_cast<u32>(key + static_cast<int>(8 * k + e) - from) < seen;
                    if (!visible) logits[r][k][2 * half + e] = minus_infinity();
                }
            }
        }
    }
}

// Of the four lanes that share a row.
static __device__ __forceinline__ float total(float x) {
    x += __shfl_xor_sync(ALL, x, 1);
    return x + __shfl_xor_sync(ALL, x, 2);
}

// What rows must be multiplied by that were summed before their maximum grew, if any did.
struct Growth {
    float factor[ROW_TILES][2];
    bool any;
};

// Logits become weights, and the maximum what they were weighed by; sums are brought to it, outputs are the caller's. It seldom
// grows if it may stay up to LAG powers of two below the true one: weights are then at most 2^LAG, which any type holds.
static __device__ __forceinline__ Growth exponentiate(Rows &rows, Logits &logits, float scale) {
    // Two chains for each row, since a warp waits for each comparison, and nothing in between, for which there are no registers.
    float tops[ROW_TILES][2][2];
#pragma unroll
    for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    const float logit = logits[r][k][2 * half + e];
                    tops[r][half][e] = k == 0 ? logit : fmaxf(tops[r][half][e], logit);
                }
            }
        }
    }
    float top[ROW_TILES][2];
#pragma unroll
    for (u32 i = 0; i < 2 * ROW_TILES; i++) top[i / 2][i % 2] = fmaxf(tops[i / 2][i % 2][0], tops[i / 2][i % 2][1]);
#pragma unroll
    for (u32 lanes = 1; lanes <= 2; lanes *= 2) { // the four that share a row
        float others[ROW_TILES][2];
#pragma unroll
        for (u32 i = 0; i < 2 * ROW_TILES; i++) others[i / 2][i % 2] = __shfl_xor_sync(ALL, top[i / 2][i % 2], lanes);
#pragma unroll
        for (u32 i = 0; i < 2 * ROW_TILES; i++) top[i / 2][i % 2] = fmaxf(top[i / 2][i % 2], others[i / 2][i % 2]);
    }
    bool grown = false;
#pragma unroll
    for (u32 i = 0; i < 2 * ROW_TILES; i++) {
        top[i / 2][i % 2] = __fmul_rn(top[i / 2][i % 2], scale);
        // False between two minus infinities, whose difference is NaN.
        grown |= top[i / 2][i % 2] - rows.maximum[i / 2][i % 2] > LAG;
    }
    Growth growth;
    growth.any = __any_sync(ALL, grown);
    if (KEY_WARPS > 1 || growth.any) { // of small tiles they do, more often than not
        bool huge = false;
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const float before = rows.maximum[r][half];
                const bool grown = top[r][half] - before > LAG;
                if (grown) rows.maximum[r][half] = top[r][half];
                const float from = subtrahend(rows.maximum[r][half]);
                growth.factor[r][half] = grown ? power_of_two(before - from) : 1.0f;
                rows.sum[r][half] *= growth.factor[r][half];
                huge |= fabsf(from) > HUGE;
            }
        }
        rows.huge = __any_sync(ALL, huge);
    }
    if (rows.huge) {
        // An exact product less the rounded maximum could be anything; between rounded products the distance is right.
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) logits[r][k][i] = __fmul_rn(logits[r][k][i], scale);
        scale = 1.0f;
    }
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        const float from[2] = {subtrahend(rows.maximum[r][0]), subtrahend(rows.maximum[r][1])};
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) logits[r][k][i] = power_of_two(__fmaf_rn(logits[r][k][i], scale, -from[i / 2]));
    }
    return growth;
}

static __device__ __forceinline__ void rescale(Rows &rows, const Growth &growth) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 c = 0; c < OUT_TILES; c++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) rows.out[r][c][i] *= growth.factor[r][i / 2];
}

// Weights of logits, and what was summed so far brought to a new maximum. `keep` is given the four of each tile.
template <typename Keep> static __device__ __forceinline__ void weigh(Rows &rows, Logits &logits, float scale, const Keep &keep) {
    const Growth growth = exponentiate(rows, logits, scale);
    if (growth.any) rescale(rows, growth);
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++) {
            const float(&w)[4] = logits[r][k];
            rows.sum[r][0] += w[0] + w[1];
            rows.sum[r][1] += w[2] + w[3];
            keep(r, k, w);
        }
    }
}
