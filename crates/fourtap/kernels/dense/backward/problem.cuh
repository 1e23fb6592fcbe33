// What the kernels of the gradients are given. Mirrored by the host.
//
// A pass owns rows and walks columns. OWN_KEYS: rows are keys, columns the queries of all heads that share them, and bounds and
// masks are those of the matrix turned over. Otherwise rows are queries, and columns keys. Either way
//
//     logits       = row . column            weights      = 2^(scale * logits - lse)
//     grad_weights = row_value . column_value  grad_logits = weights * (grad_weights - delta)
//     sum         += grad_logits * column    value_sum   += weights * column_value
//
// with values for one side and grad_out for the other: `sum` is grad_key or grad_query, `value_sum` grad_value.

// The LSE, in powers of two, of a query that sees nothing: all its weights are 0.
#define NOTHING_SEEN __int_as_float(0x7f800000)

struct GradientArguments {
    Arguments of; // its query: row; key: column; value: column_value
    const void *row_value;
    void *sum, *value_sum;    // null where nobody wants them
    const float2 *statistics; // [planes, padded_queries] of (lse in powers of two, delta), see statistics.cu
    i64 row_value_strides[4], sum_strides[4], value_sum_strides[4];
    u32 row_heads; // of a sequence
    u32 padded_queries;
    float factor; // of `sum`: the scale
};

// A head of rows.
struct Owner {
    u32 b, head;
    __device__ __forceinline__ Owner(const GradientArguments &g, u32 plane) {
        b = plane / g.row_heads;
        head = plane - b * g.row_heads;
    }
    // How many heads of columns it has, and the heads of queries and of columns that belong to its n-th.
    __device__ __forceinline__ u32 count(const Arguments &a) const { return OWN_KEYS ? a.group : 1; }
    __device__ __forceinline__ u32 query_head(const Arguments &a, u32 n) const { return OWN_KEYS ? head * a.group + n : head; }
    __device__ __forceinline__ u32 column_head(const Arguments &a, u32 n) const { return OWN_KEYS ? head * a.group + n : head / a.group; }
};

static __device__ __forceinline__ const float2 *statistics_of(const GradientArguments &g, u32 b, u32 query_head) {
    return g.statistics + (static_cast<i64>(b) * g.of.query_heads + query_head) * g.padded_queries;
}
