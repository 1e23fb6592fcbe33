// What the gradients need to know of each query: its LSE in powers of two, and `delta`, the sum over channels of grad_out * out.
//
// LANES lanes have a row, eight channels each at a time. Beside it, memory that others add to becomes zero. Limited by memory.
//
// VALUE, HEAD_V, PADDED, ALIGN as in forward_mma.cu.

struct StatisticsArguments {
    const void *out, *grad_out;
    const float *lse;
    float2 *statistics; // [planes, padded_queries]
    i64 out_strides[4], grad_out_strides[4], lse_strides[3];
    u64 rows; // planes * padded_queries
    u32 heads, queries, padded_queries, value_channels;
    char *zeros; // what other kernels add to, 16 bytes each
    u64 zero_count;
};

typedef Element<VALUE> Value;
constexpr u32 LANES = HEAD_V > 128 ? 32 : HEAD_V > 64 ? 16 : HEAD_V > 32 ? 8 : 4;

extern "C" __global__ void __launch_bounds__(256) dense_gradient_statistics(const __grid_constant__ StatisticsArguments a) {
    const u64 thread = static_cast<u64>(blockIdx.x) * 256 + threadIdx.x, row = thread / LANES;
    for (u64 i = thread; i < a.zero_count; i += static_cast<u64>(gridDim.x) * 256) store_vector(a.zeros + 16 * i, {0, 0, 0, 0});
    if (row >= a.rows) return; // LANES at a time
    const u32 plane = row / a.padded_queries, i = row - static_cast<u64>(plane) * a.padded_queries;
    const u32 b = plane / a.heads, h = plane - b * a.heads, channel = threadIdx.x % LANES * 8;
    // As of queries that see nothing: those after the last.
    float2 found = {NOTHING_SEEN, 0.0f};
    if (i < a.queries) {
        const u16 *const out = static_cast<const u16 *>(a.out) + b * a.out_strides[0] + h * a.out_strides[1] + i * a.out_strides[2];
        const u16 *const grad_out = static_cast<const u16 *>(a.grad_out) + b * a.grad_out_strides[0] + h * a.grad_out_strides[1] + i * a.grad_out_strides[2];
        float delta = 0.0f;
        if (ALIGN == 16 && channel + 8 <= a.value_channels) {
            const Vector x = load_vector(reinterpret_cast<const char *>(out + channel)), y = load_vector(reinterpret_cast<const char *>(grad_out + channel));
            const u32 left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                float low[2], high[2];
                Value::widen(left[w], low[0], high[0]);
                Value::widen(right[w], low[1], high[1]);
                delta = __fmaf_rn(high[0], high[1], __fmaf_rn(low[0], low[1], delta));
            }
        } else {
            const i64 out_apart = ALIGN == 2 ? a.out_strides[3] : 1, grad_apart = ALIGN == 2 ? a.grad_out_strides[3] : 1;
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                const u32 c = channel + e;
                if (c < a.value_channels) delta = __fmaf_rn(Value::widen(out[c * out_apart]), Value::widen(grad_out[c * grad_apart]), delta);
            }
        }
        const float lse = a.lse[b * a.lse_strides[0] + h * a.lse_strides[1] + i * a.lse_strides[2]];
        // An LSE that is infinite makes all gradients NaN.
        const float infinity = -minus_infinity();
        found = {lse == minus_infinity() ? NOTHING_SEEN : lse == infinity ? lse - infinity : __fmul_rn(lse, LOG2_E), delta};
    }
#pragma unroll
    for (u32 lanes = LANES / 2; lanes > 0; lanes /= 2) found.y += __shfl_xor_sync(ALL, found.y, lanes, LANES);
    if (channel == 0) a.statistics[row] = found;
}
