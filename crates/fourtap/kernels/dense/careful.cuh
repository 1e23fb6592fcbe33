// Rows that a tensor core cannot compute: it adds all keys of a tile to all rows, and a weight of zero does not keep out
// a value that is infinite or NaN. They are few, or else everything is NaN, and found by looking at the result.

// Where the inputs of a block's queries begin, and the keys among which it looked.
struct Source {
    const u16 *query, *key, *value;
    int from, to;
};

// One query's output computed plainly, by a warp, of logits, maximum and sum of its own: products are added up in another
// order than a tensor core does, and of huge ones not even the greatest need be the same. `sum` is what was stored before.
static __device__ __forceinline__ void compute_carefully(const Target &target, const Source &source, int i, float sum, u32 lane) {
    const Arguments &a = target.a;
    const int from = MASK ? max(source.from, i + a.first) : source.from;
    const int to = min(min(source.to, a.keys), MASK ? i + a.past : a.keys);
    const auto logit = [&](int key) {
        float dot = 0.0f;
#pragma unroll 1
        for (u32 c = lane; c < a.channels; c += 32) {
            const u16 query = source.query[i * a.query_strides[2] + c * a.query_strides[3]];
            dot += Value::widen(query) * Value::widen(source.key[key * a.key_strides[2] + c * a.key_strides[3]]);
        }
#pragma unroll
        for (u32 w = 16; w > 0; w /= 2) dot += __shfl_xor_sync(ALL, dot, w);
        if (a.kept == 0) dot *= 0.0f;
        return __fmul_rn(a.sign != 0 ? -dot : dot, a.scale); // rounded, not merged with what is subtracted from it
    };
    float top = minus_infinity();
#pragma unroll 1
    for (int key = from; key < to; key++) top = fmaxf(top, logit(key));
    float out[HEAD_V / 32] = {}, weights = 0.0f;
#pragma unroll 1
    for (int key = from; key < to; key++) {
        const float weight = power_of_two(logit(key) - subtrahend(top));
        weights += weight;
#pragma unroll
        for (u32 c = 0; c < HEAD_V / 32; c++) {
            const u32 channel = 32 * c + lane;
            if (channel >= a.value_channels) continue;
            out[c] += weight * Value::widen(source.value[key * a.value_strides[2] + channel * a.value_strides[3]]);
        }
    }
#pragma unroll
    for (u32 c = 0; c < HEAD_V / 32; c++) {
        const u32 channel = 32 * c + lane;
        const float mean = out[c] / weights;
        if (SPLIT) {
            target.partial(i)[channel] = weights == 0.0f ? 0.0f : mean * sum;
        } else if (channel < a.value_channels) {
            target.row(i)[channel * target.apart()] = Value::round(mean);
        }
    }
}

// Those of a warp's rows, from `first` on, that have something infinite or NaN in them, once more. A maximum and a sum are
// right whatever the values hold; a row whose sum is no number is NaN throughout.
static __device__ __forceinline__ void mend(const Rows &rows, const Target &target, const Source &source, int first, u32 lane) {
    u32 unsound = 0;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            bool sound = true;
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++) sound &= is_finite(rows.out[r][c][i]);
            const float sum = rows.sum[r][i / 2];
            if (!sound && is_finite(sum) && (SPLIT || sum != 0.0f)) unsound |= 1u << (2 * r + i / 2);
        }
    }
    if (!__any_sync(ALL, unsound != 0)) return;
    __syncwarp(); // these rows were stored by other lanes
#pragma unroll 1
    for (u32 row = 0; row < ROWS; row++) {
        const u32 half = row / 8, owner = row % 8 * 4;
        const bool mine = lane / 4 == row % 8 && (unsound >> half & 1);
        const int i = first + static_cast<int>(row);
        if (!__any_sync(ALL, mine) || i >= target.a.queries) continue;
        float sum = rows.sum[0][0];
#pragma unroll
        for (u32 other = 1; other < 2 * ROW_TILES; other++) {
            if (half == other) sum = rows.sum[other / 2][other % 2];
        }
        compute_carefully(target, source, i, __shfl_sync(ALL, sum, owner), lane);
    }
}
