// Dense attention over parts of the keys, put together: out and lse of what forward_mma.cu, SPLIT, left in scratch.
//
// A thread computes four channels of a query, parts in their order. Limited by the bandwidth of scratch, which is in L2,
// and, there being so little of it, by the launch.
//
// VALUE, HEAD_V, PADDED, ALIGN as in forward_mma.cu.

typedef Element<VALUE> Value;
constexpr u32 PIECES = HEAD_V / 4;

extern "C" __global__ void __launch_bounds__(256) dense_combine(const __grid_constant__ Arguments a) {
    const u64 index = static_cast<u64>(blockIdx.x) * 256 + threadIdx.x, row = index / PIECES, rows = static_cast<u64>(a.planes) * a.queries;
    if (row >= rows) return;
    const u32 channel = 4 * static_cast<u32>(index - row * PIECES);
    const float2 *const states = a.states + row;

    float maximum = minus_infinity();
#pragma unroll 4
    for (u32 s = 0; s < a.splits; s++) maximum = fmaxf(maximum, states[s * rows].x);
    const float from = subtrahend(maximum);
    float sum = 0.0f;
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (u32 s = 0; s < a.splits; s++) {
        const float2 state = states[s * rows];
        if (state.y < 0.0f) continue; // its part was not written
        const float factor = power_of_two(state.x - from);
        const float4 part = *reinterpret_cast<const float4 *>(a.partial + (s * rows + row) * HEAD_V + channel);
        sum = __fmaf_rn(state.y, factor, sum);
        out.x = __fmaf_rn(part.x, factor, out.x);
        out.y = __fmaf_rn(part.y, factor, out.y);
        out.z = __fmaf_rn(part.z, factor, out.z);
        out.w = __fmaf_rn(part.w, factor, out.w);
    }

    const u32 plane = static_cast<u32>(row / static_cast<u32>(a.queries)), b = plane / a.query_heads, h = plane - b * a.query_heads;
    const i64 i = static_cast<i64>(row - static_cast<u64>(plane) * a.queries);
    if (a.lse != nullptr && channel == 0) {
        static_cast<float *>(a.lse)[b * a.lse_strides[0] + h * a.lse_strides[1] + i * a.lse_strides[2]] =
            sum == 0.0f ? minus_infinity() : __fmaf_rn(maximum, LN_2, logf(sum));
    }
    const float inverse = 1.0f / sum;
    const float numbers[4] = {out.x * inverse, out.y * inverse, out.z * inverse, out.w * inverse};
    const i64 at = b * a.out_strides[0] + h * a.out_strides[1] + i * a.out_strides[2], apart = ALIGN == 2 ? a.out_strides[3] : 1;
    Value::Storage *const to = static_cast<Value::Storage *>(a.out) + at + channel * apart;
    Value::Storage rounded[4];
#pragma unroll
    for (u32 e = 0; e < 4; e++) rounded[e] = Value::round(sum == 0.0f ? 0.0f : numbers[e]);
    if (ALIGN == 16 && (!PADDED || channel + 4 <= a.value_channels)) {
        struct __align__(4 * sizeof(Value::Storage)) Four {
            Value::Storage of[4];
        };
        *reinterpret_cast<Four *>(to) = {rounded[0], rounded[1], rounded[2], rounded[3]};
    } else {
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            if (channel + e < a.value_channels) to[e * apart] = rounded[e];
        }
    }
}
