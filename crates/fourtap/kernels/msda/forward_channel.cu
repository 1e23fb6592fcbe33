// Forward for any problem: any sizes, strides and dtypes. It assumes nothing, so nothing is fast.
//
// A thread computes one channel of one row (image, query, head) and strides over the grid. It repeats each sample's
// geometry for every channel, so instruction issue limits it.
//
// STRIDED=0 INDEX=u32 is the usual kernel of other projects, for row-major tensors of fewer than 2^31 elements: the
// baseline of the benchmarks.
//
// VALUE, LOCATION, WEIGHT: element types. STRIDED: whether strides count. INDEX: an integer that holds any offset.

typedef Element<VALUE> Value;
typedef Value::Real Real;
typedef INDEX Index;

static __device__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static __device__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
static __device__ float whole(float number) { return floorf(number); }
static __device__ double whole(double number) { return floor(number); }

extern "C" __global__ void __launch_bounds__(256) msda_forward_channel(const __grid_constant__ Arguments arguments
#if PROJECTED
                                                                       , const __grid_constant__ Projection projection
#endif
) {
    const Arguments &a = arguments;
    const auto *value = static_cast<const Value::Storage *>(a.value);
    const auto *locations = static_cast<const Element<LOCATION>::Storage *>(a.locations);
    const auto *weights = static_cast<const Element<WEIGHT>::Storage *>(a.weights);
    auto *out = static_cast<Value::Storage *>(a.out);

    const Index channels = a.channels, heads = a.heads, queries = a.queries, pixels = a.pixels;
    const Index samples = static_cast<Index>(a.levels) * a.points;
    const Index count = static_cast<Index>(a.images) * queries * heads * channels;
    const Index threads = static_cast<Index>(gridDim.x) * blockDim.x;
    for (Index at = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += threads) {
        const Index c = at % channels, row = at / channels;
        const Index m = row % heads, q = row / heads % queries, n = row / heads / queries;
        const Index value_base = STRIDED ? n * a.value_strides[0] + m * a.value_strides[2] + c * a.value_strides[3]
                                         : (n * pixels * heads + m) * channels + c;
        const Index pixel_stride = STRIDED ? static_cast<Index>(a.value_strides[1]) : heads * channels;
        const Index location_base =
            STRIDED ? n * a.location_strides[0] + q * a.location_strides[1] + m * a.location_strides[2]
                    : row * samples * 2;
        const Index weight_base = STRIDED ? n * a.weight_strides[0] + q * a.weight_strides[1] + m * a.weight_strides[2]
                                          : row * samples;
        Real sum = 0;
#if PROJECTED
        const auto *const logits = logits_of(a, n, q, m);
        Statistics<Real> statistics = {};
        if (projection.first[a.levels] > 0) {
            statistics = statistics_of<Real>(logits, a.weight_strides[3], projection.first[a.levels]);
        }
#endif
        for (int l = 0; l < a.levels; l++) {
            const Level level = level_of(a, l);
            const Index level_base = value_base + static_cast<Index>(level.start) * pixel_stride;
#if PROJECTED
            const int points = projection.first[l + 1] - projection.first[l];
#else
            const int points = a.points;
#endif
            for (int p = 0; p < points; p++) {
#if PROJECTED
                const auto placed = place_point<Real>(a, projection, n, q, m, l, p, level.width, level.height);
                const Real px = placed.x, py = placed.y;
#else
                const Index i = static_cast<Index>(l) * a.points + p;
                const Index at_x = STRIDED ? location_base + l * a.location_strides[3] + p * a.location_strides[4]
                                           : location_base + 2 * i;
                const Index at_y = STRIDED ? at_x + a.location_strides[5] : at_x + 1;
                const Index at_weight = STRIDED ? weight_base + l * a.weight_strides[3] + p * a.weight_strides[4]
                                                : weight_base + i;
                const Real px = fused(Real(Element<LOCATION>::widen(locations[at_x])), Real(level.width), Real(-0.5));
                const Real py = fused(Real(Element<LOCATION>::widen(locations[at_y])), Real(level.height), Real(-0.5));
#endif
                // In floating point: what is NaN or too large for an integer fails here.
                if (!(px > -1 && py > -1 && px < level.width && py < level.height)) {
                    continue;
                }
#if PROJECTED
                const i64 at_weight = (projection.first[l] + p) * a.weight_strides[3];
                const Real weight = statistics.weight(Real(Element<WEIGHT>::widen(logits[at_weight])));
#else
                const Real weight = Real(Element<WEIGHT>::widen(weights[at_weight]));
#endif
                const Real left = whole(px), top = whole(py);
                const int x = static_cast<int>(left), y = static_cast<int>(top);
                const Real fx = px - left, fy = py - top;
                const Real by_x[2] = {1 - fx, fx}, by_y[2] = {1 - fy, fy};
                for (int corner = 0; corner < (NEAREST ? 1 : 4); corner++) {
                    const int cx = x + (corner & 1), cy = y + (corner >> 1);
                    if (cx < 0 || cy < 0 || cx >= level.width || cy >= level.height) {
                        continue;
                    }
                    const Index pixel = static_cast<Index>(cy) * level.width + cx;
                    const Real tap = Value::widen(value[level_base + pixel * pixel_stride]);
                    sum = fused(weight * (by_x[corner & 1] * by_y[corner >> 1]), tap, sum);
                }
            }
        }
        const Index at_out = STRIDED ? n * a.out_strides[0] + q * a.out_strides[1] + (m * channels + c) * a.out_strides[2]
                                     : at;
        out[at_out] = Value::round(sum);
    }
}
