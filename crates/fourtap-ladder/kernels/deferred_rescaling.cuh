// The softmax of attention.cuh in parts, for products that run beside it: outputs may still be added to while logits become weights, so
// that they are brought to a new maximum later. A warp has 16 queries; the maximum lags by LAZY, so that this is seldom needed.

// What rows must be multiplied by that were summed before their maximum grew, if any did.
struct Growth {
    float factor[2];
    bool any;
};
// Logits become weights, and sums those of all keys so far; outputs, which may still be added to, are left to `rescale`. The maximum
// lags as in `weigh`.
__device__ __forceinline__ Growth exponentiate(Rows &rows, Logits &logits, float scale) {
    float top[2][2]; // two chains of comparisons for each row, since each waits for the last
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) top[i / 2][i % 2] = k == 0 ? logits[0][k][i] : fmaxf(top[i / 2][i % 2], logits[0][k][i]);
    bool grown[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float &highest = top[half][0];
        highest = fmaxf(highest, top[half][1]);
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 1)); // four lanes share a row
        highest = fmaxf(highest, __shfl_xor_sync(ALL, highest, 2)) * scale;
        grown[half] = highest - rows.maximum[0][half] > LAZY; // false between two minus infinities
    }
    Growth growth;
    growth.any = __any_sync(ALL, grown[0] || grown[1]);
    if (growth.any) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = rows.maximum[0][half];
            if (grown[half]) rows.maximum[0][half] = top[half][0];
            growth.factor[half] = grown[half] ? power_of_two(before - top[half][0]) : 1.0f;
            rows.sum[0][half] *= growth.factor[half];
        }
    }
    const float from[2] = {subtrahend(rows.maximum[0][0]), subtrahend(rows.maximum[0][1])};
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) logits[0][k][i] = power_of_two(__fmaf_rn(logits[0][k][i], scale, -from[i / 2]));
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++) {
        rows.sum[0][0] += logits[0][k][0] + logits[0][k][1];
        rows.sum[0][1] += logits[0][k][2] + logits[0][k][3];
    }
    return growth;
}
__device__ __forceinline__ void rescale(Rows &rows, const Growth &growth) {
#pragma unroll
    for (int c = 0; c < OUT_TILES; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) rows.out[0][c][i] *= growth.factor[i / 2];
}
__device__ __forceinline__ void round_weights(Weights &rounded_weights, const Logits &weights) {
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++) {
        rounded_weights[0][k / 2][k % 2 * 2] = rounded(weights[0][k][0], weights[0][k][1]);
        rounded_weights[0][k / 2][k % 2 * 2 + 1] = rounded(weights[0][k][2], weights[0][k][3]);
    }
}
// Waits for all products, once the weights are there. The compiler would move the wait before all exponentials, which do not depend on
// it; not beyond a branch, though. All warps of a group must wait in the same place, so that it cannot be one that some of them take.
__device__ __forceinline__ void wait_and_rescale(Rows &rows, Logits &weights, const Growth &growth, bool never) {
#pragma unroll
    for (int k = 0; k < KEY_TILES; k++) {
        asm volatile("" : "+f"(weights[0][k][0]), "+f"(weights[0][k][1]), "+f"(weights[0][k][2]), "+f"(weights[0][k][3])::"memory");
    }
    asm volatile("" : "+f"(rows.sum[0][0]), "+f"(rows.sum[0][1])::"memory");
    if (never) asm volatile("trap;");
    wait_for_products<0>();
    if (growth.any) rescale(rows, growth);
}
