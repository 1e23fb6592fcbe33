// Dense attention, forward, as plainly as it is defined: for what the other kernels do not serve, f64 above all.
//
// A warp computes a query: a lane a key's logit, then, of the output, every 32nd channel. Twice over the keys, first for the
// greatest logit. Reads masks as they are. Right, not fast.
//
// VALUE; HEAD_V: channels of values rounded up to a multiple of 32; MASK; ATTN, BIAS_TYPE: a mask of bytes or of this type.

typedef Element<VALUE> Value;
typedef Value::Real Real;
constexpr u32 WARPS = 4;

static __device__ __forceinline__ Real least() { return static_cast<Real>(minus_infinity()); }
static __device__ __forceinline__ Real shuffled(Real x, u32 lanes) {
    return __shfl_xor_sync(ALL, x, lanes);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) dense_forward_plain(const __grid_constant__ Arguments a) {
    const u32 lane = threadIdx.x % 32;
    const u64 row = static_cast<u64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= static_cast<u64>(a.planes) * a.queries) return;
    const u32 plane = row / static_cast<u32>(a.queries), b = plane / a.query_heads, h = plane - b * a.query_heads;
    const int i = row - static_cast<u64>(plane) * a.queries;
    const u32 key_head = h / a.group;
    typedef Value::Storage Storage;
    const Storage *const query = static_cast<const Storage *>(a.query) + b * a.query_strides[0] + h * a.query_strides[1] + i * a.query_strides[2];
    const Storage *const keys = static_cast<const Storage *>(a.key) + b * a.key_strides[0] + key_head * a.key_strides[1];
    const Storage *const values = static_cast<const Storage *>(a.value) + b * a.value_strides[0] + key_head * a.value_strides[1];
    const i64 mask_at = b * a.mask_strides[0] + h * a.mask_strides[1] + i * a.mask_strides[2];
    const int from = MASK ? max(0, i + a.first) : 0, to = MASK ? min(a.keys, i + a.past) : a.keys;
    const Real scale = static_cast<Real>(a.given_scale);

    // The logit of a key, or, `seen` being false, nothing.
    const auto logit = [&](int key, bool &seen) {
        seen = key < to;
        if (!seen) return least();
        Real bias = 0;
#if ATTN == BITS
        seen = a.mask[mask_at + key * a.mask_strides[3]];
#elif ATTN == BIAS
        bias = Element<BIAS_TYPE>::widen(reinterpret_cast<const Element<BIAS_TYPE>::Storage *>(a.mask)[mask_at + key * a.mask_strides[3]]);
        seen = bias != least();
        if (fabs(bias) < -least()) bias = fmax(fmin(bias, static_cast<Real>(MOST_BIAS)), -static_cast<Real>(MOST_BIAS));
#endif
        if (!seen) return least();
        Real dot = 0;
#pragma unroll 4
        for (u32 c = 0; c < a.channels; c++) {
            dot += Value::widen(query[c * a.query_strides[3]]) * Value::widen(keys[key * a.key_strides[2] + c * a.key_strides[3]]);
        }
        return dot * scale + bias;
    };

    Real top = least();
#pragma unroll 1
    for (int first = from; first < to; first += 32) {
        bool seen;
        top = fmax(top, logit(first + lane, seen));
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) top = fmax(top, shuffled(top, lanes));
    const Real less = top == least() ? 0 : top;

    Real out[HEAD_V / 32] = {}, sum = 0;
#pragma unroll 1
    for (int first = from; first < to; first += 32) {
        bool seen;
        const Real x = logit(first + lane, seen);
        const Real weight = seen ? exp(x - less) : 0;
        sum += weight;
#pragma unroll 1
        for (u32 others = __ballot_sync(ALL, seen); others != 0; others &= others - 1) {
            const int other = __ffs(others) - 1;
            const Real of_other = __shfl_sync(ALL, weight, other);
            const Storage *const value = values + (first + other) * a.value_strides[2];
#pragma unroll
            for (u32 c = 0; c < HEAD_V / 32; c++) {
                const u32 channel = 32 * c + lane;
                if (channel < a.value_channels) out[c] += of_other * Value::widen(value[channel * a.value_strides[3]]);
            }
        }
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) sum += shuffled(sum, lanes);

    if (a.lse != nullptr && lane == 0) {
        static_cast<Real *>(a.lse)[b * a.lse_strides[0] + h * a.lse_strides[1] + i * a.lse_strides[2]] = sum == 0 ? least() : top + log(sum);
    }
    Storage *const to_row = static_cast<Storage *>(a.out) + b * a.out_strides[0] + h * a.out_strides[1] + i * a.out_strides[2];
#pragma unroll
    for (u32 c = 0; c < HEAD_V / 32; c++) {
        const u32 channel = 32 * c + lane;
        if (channel < a.value_channels) to_row[channel * a.out_strides[3]] = Value::round(sum == 0 ? 0 : out[c] / sum);
    }
}
