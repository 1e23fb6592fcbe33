// A warp's part of attention, logits and weights in registers: what the first product leaves there is what the second takes.
//
// A warp has ROWS queries (16 or 32) and, of every tile, KEYS keys. LAZY: see `weigh`.

constexpr int ROW_TILES = ROWS / 16, KEY_TILES = KEYS / 8, STEPS = HEAD / 16, OUT_TILES = HEAD / 8;
constexpr bool KEPT = ROW_TILES * STEPS <= 8; // queries stay in registers; else they would take a quarter of all
static_assert(ROWS % 16 == 0 && KEYS % 16 == 0, "whole fragments");

// What a lane knows of rows g and g + 8 of every 16: of `out` two channels in 8.
struct Rows {
    float out[ROW_TILES][OUT_TILES][4];
    float maximum[ROW_TILES][2]; // of scaled logits
    float sum[ROW_TILES][2];     // of the weights of the lane's own keys, until `finish`
    __device__ __forceinline__ Rows() {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            maximum[r][0] = maximum[r][1] = minus_infinity();
            sum[r][0] = sum[r][1] = 0.0f;
#pragma unroll
            for (int c = 0; c < OUT_TILES; c++)
#pragma unroll
                for (int i = 0; i < 4; i++) out[r][c][i] = 0.0f;
        }
    }
};
typedef float Logits[ROW_TILES][KEY_TILES][4];
typedef u32 Weights[ROW_TILES][KEY_TILES / 2][4];
typedef u32 Queries[KEPT ? ROW_TILES : 1][KEPT ? STEPS : 1][4];

// Where a lane reads its rows of fragments, of the warp's own rows of a tile.
__device__ __forceinline__ u32 left_place(u32 row, u32 lane) { return place_of(row + lane % 16, lane / 16); }
__device__ __forceinline__ u32 key_place(u32 row, u32 lane) { return place_of(row + lane / 16 * 8 + lane % 8, lane / 8 % 2); }

__device__ __forceinline__ void keep_queries(Queries &kept, u32 queries_at) {
#pragma unroll
    for (int r = 0; r < (KEPT ? ROW_TILES : 0); r++)
#pragma unroll
        for (int step = 0; step < STEPS; step++) load_matrices(kept[r][step], further(queries_at, 2 * step) + r * 16 * ROW_BYTES);
}

__device__ __forceinline__ void multiply_keys(Logits &logits, const Queries &kept, u32 queries_at, u32 keys_at) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) logits[r][k][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            if (KEPT) {
#pragma unroll
                for (int i = 0; i < 4; i++) a[r][i] = kept[KEPT ? r : 0][KEPT ? step : 0][i];
            } else {
                load_matrices(a[r], further(queries_at, 2 * step) + r * 16 * ROW_BYTES);
            }
        }
#pragma unroll
        for (int k = 0; k < KEY_TILES; k += 2) {
            u32 b[4];
            load_matrices(b, further(keys_at, 2 * step) + k * 8 * ROW_BYTES);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_add(logits[r][k], a[r], b[0], b[1]);
                multiply_add(logits[r][k + 1], a[r], b[2], b[3]);
            }
        }
    }
}

// Logits of keys that a query does not see become minus infinity. `row`, `key`: the lane's first.
__device__ __forceinline__ void hide(const Problem &p, Logits &logits, int row, int key) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int seen = keys_seen(p, row + 16 * r + 8 * (i / 2)) - key;
#pragma unroll
            for (int k = 0; k < KEY_TILES; k++) {
                if (8 * k + i % 2 >= seen) logits[r][k][i] = minus_infinity();
            }
        }
    }
}

// What to subtract: no logit is seen yet where the maximum is minus infinity, and that less itself would be NaN.
__device__ __forceinline__ float subtrahend(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }

// Weights of logits, and what was summed so far brought to a new maximum. With LAZY that is seldom needed: the maximum used may
// stay so many powers of two below the true one, weights being then at most 2^LAZY, which any type holds.
__device__ __forceinline__ void weigh(Rows &rows, Weights &weights, Logits &logits, float scale) {
    float factor[ROW_TILES][2];
    bool any_grown = LAZY == 0;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = minus_infinity();
#pragma unroll
            for (int k = 0; k < KEY_TILES; k++) top = fmaxf(top, fmaxf(logits[r][k][2 * half], logits[r][k][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(ALL, top, 1)); // four lanes share a row
            top = fmaxf(top, __shfl_xor_sync(ALL, top, 2)) * scale;
            const float before = rows.maximum[r][half];
            // False between two minus infinities, whose difference is NaN.
            const bool grown = top - before > LAZY;
            any_grown |= grown;
            const float maximum = grown ? top : before, from = subtrahend(maximum);
            rows.maximum[r][half] = maximum;
            factor[r][half] = grown ? power_of_two(before - from) : 1.0f;
#pragma unroll
            for (int k = 0; k < KEY_TILES; k++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    logits[r][k][i] = power_of_two(__fmaf_rn(logits[r][k][i], scale, -from));
                }
            }
        }
    }
    if (LAZY == 0 || __any_sync(ALL, any_grown)) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            rows.sum[r][0] *= factor[r][0];
            rows.sum[r][1] *= factor[r][1];
#pragma unroll
            for (int c = 0; c < OUT_TILES; c++)
#pragma unroll
                for (int i = 0; i < 4; i++) rows.out[r][c][i] *= factor[r][i / 2];
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int k = 0; k < KEY_TILES; k++) {
            const float(&w)[4] = logits[r][k];
            rows.sum[r][0] += w[0] + w[1];
            rows.sum[r][1] += w[2] + w[3];
            weights[r][k / 2][k % 2 * 2] = rounded(w[0], w[1]);
            weights[r][k / 2][k % 2 * 2 + 1] = rounded(w[2], w[3]);
        }
    }
}

__device__ __forceinline__ void add_values(Rows &rows, const Weights &weights, u32 values_at) {
#pragma unroll
    for (int k = 0; k < KEY_TILES / 2; k++) {
#pragma unroll
        for (int c = 0; c < OUT_TILES; c += 2) {
            u32 b[4];
            load_transposed(b, further(values_at, c) + k * 16 * ROW_BYTES);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_add(rows.out[r][c], weights[r][k], b[0], b[1]);
                multiply_add(rows.out[r][c + 1], weights[r][k], b[2], b[3]);
            }
        }
    }
}

// One tile: `row` is the warp's first query, `key` its first key of the tile.
__device__ __forceinline__ void add_tile(const Problem &p, Rows &rows, const Queries &kept, u32 queries_at, u32 keys_at,
                                         u32 values_at, int row, int key) {
    const int lane = threadIdx.x % 32;
    Logits logits;
    Weights weights;
    multiply_keys(logits, kept, queries_at, keys_at);
    if (key + KEYS > keys_seen(p, row)) hide(p, logits, row + lane / 4, key + 2 * (lane % 4));
    weigh(rows, weights, logits, p.scale);
    add_values(rows, weights, values_at);
}

// The sums of all keys of a row: after this every lane of a row has them.
__device__ __forceinline__ void finish(Rows &rows) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &sum = rows.sum[r][half];
            sum += __shfl_xor_sync(ALL, sum, 1);
            sum += __shfl_xor_sync(ALL, sum, 2);
        }
    }
}

__device__ __forceinline__ void store_rows(const Problem &p, const Rows &rows, u32 plane, int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = first + 16 * r + 8 * half + lane / 4;
            const float inverse = 1.0f / rows.sum[r][half];
            if (query >= p.queries) continue;
#pragma unroll
            for (int c = 0; c < OUT_TILES; c++) {
                const float(&out)[4] = rows.out[r][c];
                store_pair(p, plane, query, 4 * c + lane % 4, out[2 * half] * inverse, out[2 * half + 1] * inverse);
            }
        }
    }
}
