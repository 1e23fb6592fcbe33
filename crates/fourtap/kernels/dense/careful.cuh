// Rows that a tensor core cannot compute: it adds all keys of a tile to all rows, and a weight of zero does not keep out
// a value that is infinite or NaN. They are few, or else everything is NaN, and found by looking at the result.

// One query's output computed plainly, by a warp, of logits, maximum and sum of its own: products are added up in another
// order than a tensor core does, and of huge ones not even the greatest need be the same. A lane computes a key's logit and
// then, of the output, every 32nd channel. Not inlined, so that others have its registers.
static __device__ __noinline__ void compute_carefully(const Arguments &a, Work work, int i, u32 lane) {
    typedef Value::Storage Storage;
    const Target target(a, work);
    const u32 b = work.b, h = work.h;
    // Those among which the block looked.
    const int first_key = work.key_of(0), past_key = work.key_of(work.count);
    const int from = MASK ? max(first_key, i + a.first) : first_key;
    const int to = min(min(past_key, a.keys), MASK ? i + a.past : a.keys);
    const Storage *const query = static_cast<const Storage *>(a.query) + b * a.query_strides[0] + h * a.query_strides[1] + i * a.query_strides[2];
    const Storage *const keys = static_cast<const Storage *>(a.key) + b * a.key_strides[0] + work.key_head * a.key_strides[1];
    const Storage *const values = static_cast<const Storage *>(a.value) + b * a.value_strides[0] + work.key_head * a.value_strides[1];
    const char *const mask = work.mask(a);
    const auto logit = [&](int key, bool &seen) {
        seen = key < to;
        float bias = 0.0f;
#if ATTN == BITS
        seen = seen && is_seen(a, mask, i, key);
#elif ATTN == BIAS || ATTN == GIVEN
        if (seen) bias = bias_at(a, mask, i, key);
        seen = seen && bias != minus_infinity();
#endif
        if (!seen) return minus_infinity();
        float dot = 0.0f;
#pragma unroll 4
        for (u32 c = 0; c < a.channels; c++) {
            dot += Value::widen(query[c * a.query_strides[3]]) * Value::widen(keys[key * a.key_strides[2] + c * a.key_strides[3]]);
        }
        if (a.kept == 0) dot *= 0.0f;
        dot = a.sign != 0 ? -dot : dot;
        // Rounded, not merged with what is subtracted from it.
        if (!BIASED) return __fmul_rn(dot, a.scale);
        return __fmaf_rn(dot, a.scale, bias);
    };
    float top = minus_infinity();
#pragma unroll 1
    for (int first = from; first < to; first += 32) {
        bool seen;
        top = fmaxf(top, logit(first + static_cast<int>(lane), seen));
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, lanes));
    float out[HEAD_V / 32] = {}, weights = 0.0f;
#pragma unroll 1
    for (int first = from; first < to; first += 32) {
        bool seen;
        const float x = logit(first + static_cast<int>(lane), seen), weight = seen ? power_of_two(x - subtrahend(top)) : 0.0f;
        weights += weight;
#pragma unroll 1
        for (u32 others = __ballot_sync(ALL, seen); others != 0; others &= others - 1) {
            const int other = __ffs(others) - 1;
            const float of_other = __shfl_sync(ALL, weight, other);
#pragma unroll
            for (u32 c = 0; c < HEAD_V / 32; c++) {
                const u32 channel = 32 * c + lane;
                if (channel >= a.value_channels) continue;
                out[c] += of_other * Value::widen(values[(first + other) * a.value_strides[2] + channel * a.value_strides[3]]);
            }
        }
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) weights += __shfl_xor_sync(ALL, weights, lanes);
    if (lane == 0) {
        if (SPLIT) {
            a.states[target.plane * a.queries + i] = {top, weights};
        } else {
            target.store_lse(i, top, weights);
        }
    }
#pragma unroll
    for (u32 c = 0; c < HEAD_V / 32; c++) {
        const u32 channel = 32 * c + lane;
        if (SPLIT) {
            target.partial(i)[channel] = out[c];
        } else if (channel < a.value_channels) {
            target.row(i)[channel * target.apart()] = Value::round(weights == 0.0f ? 0.0f : out[c] / weights);
        }
    }
}

// Those of a warp's rows, from `first` on, that have something infinite or NaN in them, once more. Of 16-bit numbers without
// biases a sum is right whatever the values hold, and a row whose sum is no number is NaN throughout.
static __device__ __forceinline__ void mend(const Rows &rows, const Arguments &a, const Work &work, int first, u32 lane) {
    u32 unsound = 0;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            bool sound = true;
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++) sound &= is_finite(rows.out[r][c][i]);
            const float sum = rows.sum[r][i / 2];
            if (!sound && (BIASED || VALUE == F32 || is_finite(sum)) && (SPLIT || sum != 0.0f)) unsound |= 1u << (2 * r + i / 2);
        }
    }
    if (!__any_sync(ALL, unsound != 0)) return;
    __syncwarp(); // these rows were stored by other lanes
#pragma unroll 1
    for (u32 row = 0; row < ROWS; row++) {
        const bool mine = lane / 4 == row % 8 && (unsound >> row / 8 & 1);
        const int i = first + static_cast<int>(row);
        if (__any_sync(ALL, mine) && i < a.queries) compute_carefully(a, work, i, lane);
    }
}
