// Rows of gradients that a tensor core cannot compute: it adds all columns of a tile to all rows, and a factor of zero does not
// keep out a number that is infinite or NaN; and what is rounded to f16 on the way may be too great for it. They are few, or else
// everything is NaN, and found by looking at the result.

// One row's sums computed plainly, by a warp: a lane computes a column's factors and then, of the sums, every 32nd channel. Not
// inlined, so that others have its registers. TURNED: the mask is that of a pass with rows for columns.
static __device__ __noinline__ void compute_carefully(const GradientArguments &g, Owner owner, int row, u32 lane) {
    typedef Value::Storage Storage;
    const Arguments &a = g.of;
    const Storage *const rows = static_cast<const Storage *>(a.query) + owner.b * a.query_strides[0] + owner.head * a.query_strides[1] + row * a.query_strides[2];
    const Storage *const row_values =
        static_cast<const Storage *>(g.row_value) + owner.b * g.row_value_strides[0] + owner.head * g.row_value_strides[1] + row * g.row_value_strides[2];
    const int from = MASK ? max(0, row + a.first) : 0, to = MASK ? min(a.keys, row + a.past) : a.keys;
    float sum[HEAD / 32] = {}, value_sum[HEAD_V / 32] = {};
#pragma unroll 1
    for (u32 n = 0; n < owner.count(a); n++) {
        const u32 h = owner.query_head(a, n), column_head = owner.column_head(a, n);
        const Storage *const columns = static_cast<const Storage *>(a.key) + owner.b * a.key_strides[0] + column_head * a.key_strides[1];
        const Storage *const values = static_cast<const Storage *>(a.value) + owner.b * a.value_strides[0] + column_head * a.value_strides[1];
        const float2 *const statistics = statistics_of(g, owner.b, h);
        const char *const mask = a.mask + (ATTN == NONE ? 0 : owner.b * a.mask_strides[0] + h * a.mask_strides[1]);
#pragma unroll 1
        for (int first = from; first < to; first += 32) {
            const int column = first + static_cast<int>(lane);
            bool seen = column < to;
            float bias = 0.0f, weight = 0.0f, grad_logit = 0.0f;
#if ATTN == BITS
            seen = seen && is_seen(a, mask, TURNED ? column : row, TURNED ? row : column);
#elif ATTN == BIAS
            if (seen) bias = bias_at(a, mask, TURNED ? column : row, TURNED ? row : column);
            seen = seen && bias != minus_infinity();
#endif
            if (seen) {
                float logit = 0.0f, grad_weight = 0.0f;
#pragma unroll 4
                for (u32 c = 0; c < a.channels; c++)
                    logit += Value::widen(rows[c * a.query_strides[3]]) * Value::widen(columns[column * a.key_strides[2] + c * a.key_strides[3]]);
                if (a.kept == 0) logit *= 0.0f;
                logit = a.sign != 0 ? -logit : logit;
                logit = BIASED ? __fmaf_rn(logit, a.scale, bias) : __fmul_rn(logit, a.scale);
#pragma unroll 4
                for (u32 c = 0; c < a.value_channels; c++)
                    grad_weight += Value::widen(row_values[c * g.row_value_strides[3]]) * Value::widen(values[column * a.value_strides[2] + c * a.value_strides[3]]);
                const float2 of_query = statistics[OWN_KEYS ? column : row];
                // A query that sees nothing is not there, nor is what it does not see.
                seen = of_query.x != NOTHING_SEEN && logit != minus_infinity();
                weight = power_of_two(logit - of_query.x);
                grad_logit = weight * (grad_weight - of_query.y);
            }
#pragma unroll 1
            for (u32 others = __ballot_sync(ALL, seen); others != 0; others &= others - 1) {
                const int other = __ffs(others) - 1;
                const float of_weight = __shfl_sync(ALL, weight, other), of_logit = __shfl_sync(ALL, grad_logit, other);
#pragma unroll
                for (u32 c = 0; c < HEAD / 32; c++) {
                    const u32 channel = 32 * c + lane;
                    if (channel < a.channels) sum[c] += of_logit * Value::widen(columns[(first + other) * a.key_strides[2] + channel * a.key_strides[3]]);
                }
#pragma unroll
                for (u32 c = 0; c < HEAD_V / 32; c++) {
                    const u32 channel = 32 * c + lane;
                    if (channel < a.value_channels) value_sum[c] += of_weight * Value::widen(values[(first + other) * a.value_strides[2] + channel * a.value_strides[3]]);
                }
            }
        }
    }
    const auto store = [&](void *to, const i64(&strides)[4], u32 channel, float number) {
        static_cast<Storage *>(to)[owner.b * strides[0] + owner.head * strides[1] + row * strides[2] + channel * strides[3]] = Value::round(number);
    };
#pragma unroll
    for (u32 c = 0; c < HEAD / 32; c++)
        if (g.sum != nullptr && 32 * c + lane < a.channels) store(g.sum, g.sum_strides, 32 * c + lane, sum[c] * g.factor);
#pragma unroll
    for (u32 c = 0; c < HEAD_V / 32; c++)
        if (g.value_sum != nullptr && 32 * c + lane < a.value_channels) store(g.value_sum, g.value_sum_strides, 32 * c + lane, value_sum[c]);
}
