// Backward, gradients of locations and weights for any sizes, strides and dtypes.
//
// A warp takes a row; a lane takes every 32nd channel and the warp sums products by shuffles, four per sample. The
// fallback: nothing in it is tuned.
//
// VALUE, LOCATION, WEIGHT: element types.

typedef Element<VALUE> Value;
typedef Value::Real Real;

static __device__ __forceinline__ Real sum_of_warp(Real mine) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, apart);
    return mine;
}

// The gradients by a sample: by its place in pixels for a weight of 1, and by its weight.
struct SampleGradients {
    Real x, y, weight;
};

// Whether a sample takes part: not in a level without pixels, which some places would be within a pixel of.
static __device__ __forceinline__ bool takes_part(const Level &level, Real px, Real py) {
    return level.width > 0 && level.height > 0 && px > -1 && py > -1 && px < level.width && py < level.height;
}

// All lanes of a warp call it. `from`: the pixels of the image and head; `grads`: the row of grad_out.
static __device__ SampleGradients gradients_at(const Arguments &a, const Gradients &g, const Level &level,
                                               const Value::Storage *from, const Value::Storage *grads, Real px, Real py,
                                               u32 lane) {
    if (!takes_part(level, px, py)) return {0, 0, 0};
    const Real left = whole(px), top = whole(py), fx = px - left, fy = py - top;
    const int x = static_cast<int>(left), y = static_cast<int>(top);
    Real sums[4] = {};
#pragma unroll
    for (int corner = 0; corner < (NEAREST ? 1 : 4); corner++) {
        const int cx = x + (corner & 1), cy = y + (corner >> 1);
        if (cx < 0 || cy < 0 || cx >= level.width || cy >= level.height) continue;
        const auto *const tap = from + (level.start + static_cast<i64>(cy) * level.width + cx) * a.value_strides[1];
        for (int c = lane; c < a.channels; c += 32) {
            sums[corner] = fused(Real(Value::widen(tap[c * a.value_strides[3]])),
                                 Real(Value::widen(grads[c * g.grad_out_strides[2]])), sums[corner]);
        }
        sums[corner] = sum_of_warp(sums[corner]);
    }
    return {(1 - fy) * (sums[1] - sums[0]) + fy * (sums[3] - sums[2]), (1 - fx) * (sums[2] - sums[0]) + fx * (sums[3] - sums[1]),
            NEAREST ? sums[0] : (1 - fy) * ((1 - fx) * sums[0] + fx * sums[1]) + fy * ((1 - fx) * sums[2] + fx * sums[3])};
}

extern "C" __global__ void __launch_bounds__(256, 2)
    msda_backward_samples_channel(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g
#if PROJECTED
                                  , const __grid_constant__ Projection projection
#endif
    ) {
    const auto *const value = static_cast<const Value::Storage *>(a.value);
    const auto *const grad_out = static_cast<const Value::Storage *>(g.grad_out);
    auto *const grad_locations = static_cast<Element<LOCATION>::Storage *>(g.locations);
    auto *const grad_weights = static_cast<Element<WEIGHT>::Storage *>(g.weights);

    const u32 lane = threadIdx.x % 32;
    const i64 rows = a.images * a.queries * a.heads, warps = static_cast<i64>(gridDim.x) * (blockDim.x / 32);
    for (i64 row = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; row < rows; row += warps) {
        const i64 m = row % a.heads, q = row / a.heads % a.queries, n = row / a.heads / a.queries;
        const auto *const from = value + n * a.value_strides[0] + m * a.value_strides[2];
        const auto *const grads = grad_out + n * g.grad_out_strides[0] + q * g.grad_out_strides[1] +
                                  m * a.channels * g.grad_out_strides[2];
        const i64 to_location = n * g.location_strides[0] + q * g.location_strides[1] + m * g.location_strides[2];
        const i64 to_weight = n * g.weight_strides[0] + q * g.weight_strides[1] + m * g.weight_strides[2];
#if PROJECTED
        const auto *const logits = logits_of(a, n, q, m);
        const u32 samples = projection.first[a.levels];
        const Statistics<Real> statistics = statistics_of<Real>(logits, a.weight_strides[3], samples);
        if (lane == 0 && projection.statistics) kept_statistics<Real>(a, projection, n, q, m) = statistics;
        // The gradient by a logit takes those by all weights, so all are computed twice: first for their mean.
        Real mean = 0;
        for (int pass = grad_weights ? 0 : 1; pass < 2; pass++) {
            for (int l = 0; l < a.levels; l++) {
                const Level level = level_of(a, l);
                for (u32 k = projection.first[l]; k < projection.first[l + 1]; k++) {
                    const auto placed =
                        place_point<Real>(a, projection, n, q, m, l, k - projection.first[l], level.width, level.height);
                    const SampleGradients by = gradients_at(a, g, level, from, grads, placed.x, placed.y, lane);
                    const Real weight = statistics.weight(Real(Element<WEIGHT>::widen(logits[k * a.weight_strides[3]])));
                    if (pass == 0) {
                        mean = fused(weight, by.weight, mean);
                        continue;
                    }
                    if (lane != 0) continue;
                    const bool moves = !NEAREST && takes_part(level, placed.x, placed.y);
                    const Real by_x = moves ? weight * by.x : Real(0), by_y = moves ? weight * by.y : Real(0);
                    if (projection.places) {
                        Real *const to = static_cast<Real *>(projection.places) + (row * samples + k) * 2;
                        to[0] = by_x;
                        to[1] = by_y;
                    }
                    if (grad_locations) {
                        auto *const to = grad_locations + to_location + k * g.location_strides[4];
                        to[0] = Element<LOCATION>::round(moves ? by_x * placed.by_offset_x : Real(0));
                        to[g.location_strides[5]] = Element<LOCATION>::round(moves ? by_y * placed.by_offset_y : Real(0));
                    }
                    if (grad_weights) {
                        grad_weights[to_weight + k * g.weight_strides[3]] = Element<WEIGHT>::round(weight * (by.weight - mean));
                    }
                }
            }
        }
#else
        const auto *const locations = static_cast<const Element<LOCATION>::Storage *>(a.locations) + n * a.location_strides[0] +
                                      q * a.location_strides[1] + m * a.location_strides[2];
        const auto *const weights = static_cast<const Element<WEIGHT>::Storage *>(a.weights) + n * a.weight_strides[0] +
                                    q * a.weight_strides[1] + m * a.weight_strides[2];
        for (int l = 0; l < a.levels; l++) {
            const Level level = level_of(a, l);
            const Real width = static_cast<Real>(level.width), height = static_cast<Real>(level.height);
            for (int p = 0; p < a.points; p++) {
                const auto *const at = locations + l * a.location_strides[3] + p * a.location_strides[4];
                const Real px = fused(Real(Element<LOCATION>::widen(at[0])), width, Real(-0.5));
                const Real py = fused(Real(Element<LOCATION>::widen(at[a.location_strides[5]])), height, Real(-0.5));
                const SampleGradients by = gradients_at(a, g, level, from, grads, px, py, lane);
                if (lane != 0) continue;
                const bool moves = takes_part(level, px, py);
                const Real scale = Real(Element<WEIGHT>::widen(weights[l * a.weight_strides[3] + p * a.weight_strides[4]]));
                if (grad_locations) {
                    auto *const to = grad_locations + to_location + l * g.location_strides[3] + p * g.location_strides[4];
                    to[0] = Element<LOCATION>::round(moves ? scale * width * by.x : Real(0));
                    to[g.location_strides[5]] = Element<LOCATION>::round(moves ? scale * height * by.y : Real(0));
                }
                if (grad_weights) {
                    grad_weights[to_weight + l * g.weight_strides[3] + p * g.weight_strides[4]] =
                        Element<WEIGHT>::round(by.weight);
                }
            }
        }
#endif
    }
}
