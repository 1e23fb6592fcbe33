// Backward, grad_value for levels that do not tile the pixels in order, or are too many to sort by.
//
// A warp takes a pixel and searches all samples of its levels for those that touch it; lanes test 32 samples at a
// time, then add one channel each. Correct and slow.
//
// VALUE, LOCATION, WEIGHT: element types. ALWAYS: not only where sorting (bins.cuh) is impossible.

typedef Element<VALUE> Value;

extern "C" __global__ void __launch_bounds__(128, 4)
    msda_backward_value_search(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                               const __grid_constant__ Work work
#if PROJECTED
                               , const __grid_constant__ Projection projection
#endif
    ) {
#if !ALWAYS
    __shared__ Grid grids[LEVEL_CAPACITY];
    if (lay_out(a, work, grids)) return;
#endif
    const auto *const locations = static_cast<const Element<LOCATION>::Storage *>(a.locations);
    const auto *const weights = static_cast<const Element<WEIGHT>::Storage *>(a.weights);
    const auto *const grad_out = static_cast<const Value::Storage *>(g.grad_out);
    auto *const grad_value = static_cast<Value::Storage *>(g.value);
    const u32 lane = threadIdx.x % 32;
    const i64 warps = static_cast<i64>(gridDim.x) * (blockDim.x / 32), rows = a.images * a.pixels * a.heads;
    for (i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; row < rows; row += warps) {
        const i64 m = row % a.heads, s = row / a.heads % a.pixels, n = row / a.heads / a.pixels;
        for (int c0 = 0; c0 < a.channels; c0 += 32) {
            const int c = c0 + lane;
            Real sum = 0;
            for (int l = 0; l < a.levels; l++) {
                const Level level = level_of(a, l);
                const i64 inside = s - level.start;
                if (level.width <= 0 || inside < 0 || inside >= static_cast<i64>(level.width) * level.height) continue;
                const int y = static_cast<int>(inside / level.width), x = static_cast<int>(inside % level.width);
#if PROJECTED
                const i64 points = projection.first[l + 1] - projection.first[l];
#else
                const i64 points = a.points;
#endif
                const i64 samples = a.queries * points;
                for (i64 first = 0; first < samples; first += 32) {
                    const i64 sample = first + lane, q = sample / points, p = sample % points;
                    Real by = 0;
                    bool touches = false;
                    if (sample < samples) {
#if PROJECTED
                        const auto placed = place_point<Real>(a, projection, n, q, m, l, p, level.width, level.height);
                        const Real px = placed.x, py = placed.y;
#else
                        const auto *const at = locations + n * a.location_strides[0] + q * a.location_strides[1] +
                                               m * a.location_strides[2] + l * a.location_strides[3] +
                                               p * a.location_strides[4];
                        const Real px = fused(Real(Element<LOCATION>::widen(at[0])), Real(level.width), Real(-0.5));
                        const Real py = fused(Real(Element<LOCATION>::widen(at[a.location_strides[5]])),
                                              Real(level.height), Real(-0.5));
#endif
                        if (px > -1 && py > -1 && px < level.width && py < level.height) {
                            const Real left = whole(px), top = whole(py), fx = px - left, fy = py - top;
                            const int right = x - static_cast<int>(left), down = y - static_cast<int>(top);
                            touches = (right == 0 || (!NEAREST && right == 1)) && (down == 0 || (!NEAREST && down == 1));
#if PROJECTED
                            const Real logit = Element<WEIGHT>::widen(
                                logits_of(a, n, q, m)[(projection.first[l] + p) * a.weight_strides[3]]);
                            const Real weight = kept_statistics<Real>(a, projection, n, q, m).weight(logit);
#else
                            const Real weight = Element<WEIGHT>::widen(
                                weights[n * a.weight_strides[0] + q * a.weight_strides[1] + m * a.weight_strides[2] +
                                        l * a.weight_strides[3] + p * a.weight_strides[4]]);
#endif
                            by = weight * ((right ? fx : 1 - fx) * (down ? fy : 1 - fy));
                        }
                    }
                    for (u32 found = __ballot_sync(ALL, touches); found; found &= found - 1) {
                        const int from = __ffs(found) - 1;
                        const Real share = __shfl_sync(ALL, by, from);
                        if (c >= a.channels) continue;
                        const i64 query = (first + from) / points;
                        const auto grad = grad_out[n * g.grad_out_strides[0] + query * g.grad_out_strides[1] +
                                                   (m * a.channels + c) * g.grad_out_strides[2]];
                        sum = fused(share, Real(Value::widen(grad)), sum);
                    }
                }
            }
            if (c < a.channels) {
                grad_value[n * g.value_strides[0] + s * g.value_strides[1] + m * g.value_strides[2] +
                           c * g.value_strides[3]] = Value::round(sum);
            }
        }
    }
}
