// Where and how much to sample, from a model's projections: PROJECTED kernels only. src/msda/projections/mod.rs has
// the rules.
//
// In `Arguments`, `locations` are then offsets [N, Q, M, K, 2], whose sample stride is the one of points, and
// `weights` are logits [N, Q, M, K].
//
// REFERENCE: element type of reference points. BOXES: whether they are boxes. NEAREST: whether a point reads one
// pixel.

#ifndef PROJECTED
#define PROJECTED 0
#define NEAREST 0
#endif

#if PROJECTED
// As many as a projected problem may have. Mirrored in src/cuda/msda/projected/arguments.rs.
constexpr int PROJECTED_LEVELS = 16;

struct Projection {
    const void *references; // [N, Q, L, TURNS, 2 or 4]
    void *statistics;       // [N, M, Q] of the row's largest logit and the inverse of the sum of its powers; backward only
    void *places;           // [N, Q, M, K, 2], for gradients by the place in pixels; null where nobody asked
    i64 strides[5];         // of references, in elements
    double factors[PROJECTED_LEVELS]; // of boxes
    u32 first[PROJECTED_LEVELS + 1];  // the first sample of each level, and K
    u32 turns;
    Divisor by_points[PROJECTED_LEVELS]; // of each level
};

static __device__ __forceinline__ float power(float logit, float largest) { return expf(logit - largest); }
static __device__ __forceinline__ double power(double logit, double largest) { return exp(logit - largest); }
static __device__ __forceinline__ float fused_place(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static __device__ __forceinline__ double fused_place(double a, double b, double c) { return __fma_rn(a, b, c); }

// Not to be joined with an addition by the compiler: which cell a point falls in depends on how often it is rounded.
static __device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

// Far enough outside for every level.
#define NOWHERE_PLACE -100

// The place in pixels of a point that is moved by so many from its reference point.
template <class R> static __device__ __forceinline__ R place_at(R reference, R moved, R size) {
#if NEAREST
    const R number = fused_place(reference, size, moved + R(0.5));
    if (!(number == number)) return R(NOWHERE_PLACE);
    const R inside = number < R(0) ? R(0) : number > size - R(1) ? size - R(1) : number;
    return inside < R(0) ? R(NOWHERE_PLACE) : R(static_cast<i64>(inside)); // a level without pixels has no inside
#else
    return fused_place(reference, size, moved - R(0.5));
#endif
}

// How many pixels an offset of 1 is, along one axis of a level.
template <class R> static __device__ __forceinline__ R pixels_of_offset(R extent, R size, R factor) {
#if BOXES
    return extent * (size * factor);
#else
    return R(1);
#endif
}

// A point of a row, and how it moves with its offset and its box.
template <class R> struct PlacedPoint {
    R x, y;                 // in pixels
    R by_offset_x, by_offset_y;
    R by_extent_x, by_extent_y;
};

// Sample `k`, of a level, as point `point` of it. Any strides.
template <class R>
static __device__ PlacedPoint<R> place_point(const Arguments &a, const Projection &p, i64 n, i64 q, i64 m, int l, int point,
                                             int width, int height) {
    const auto *const offsets = static_cast<const Element<LOCATION>::Storage *>(a.locations) + n * a.location_strides[0] +
                                q * a.location_strides[1] + m * a.location_strides[2] +
                                (p.first[l] + point) * a.location_strides[4];
    const auto *const reference = static_cast<const Element<REFERENCE>::Storage *>(p.references) + n * p.strides[0] +
                                  q * p.strides[1] + l * p.strides[2] + (point % p.turns) * p.strides[3];
    const R x = R(Element<LOCATION>::widen(offsets[0])), y = R(Element<LOCATION>::widen(offsets[a.location_strides[5]]));
    const R w = R(width), h = R(height);
    PlacedPoint<R> placed = {};
#if BOXES
    const R step_x = w * R(p.factors[l]), step_y = h * R(p.factors[l]);
    placed.by_offset_x = R(Element<REFERENCE>::widen(reference[2 * p.strides[4]])) * step_x;
    placed.by_offset_y = R(Element<REFERENCE>::widen(reference[3 * p.strides[4]])) * step_y;
    placed.by_extent_x = x * step_x;
    placed.by_extent_y = y * step_y;
#else
    placed.by_offset_x = placed.by_offset_y = R(1);
#endif
    placed.x = place_at(R(Element<REFERENCE>::widen(reference[0])), rounded_product(x, placed.by_offset_x), w);
    placed.y = place_at(R(Element<REFERENCE>::widen(reference[p.strides[4]])), rounded_product(y, placed.by_offset_y), h);
    return placed;
}

static __device__ __forceinline__ const Element<WEIGHT>::Storage *logits_of(const Arguments &a, i64 n, i64 q, i64 m) {
    return static_cast<const Element<WEIGHT>::Storage *>(a.weights) + n * a.weight_strides[0] + q * a.weight_strides[1] +
           m * a.weight_strides[2];
}

// Of a row of logits.
template <class R> struct __align__(2 * sizeof(R)) Statistics {
    R largest, inverse;

    __device__ __forceinline__ R weight(R logit) const { return power(logit, largest) * inverse; }
};

template <class R>
static __device__ Statistics<R> statistics_of(const Element<WEIGHT>::Storage *logits, i64 stride, u32 samples) {
    R largest = R(Element<WEIGHT>::widen(logits[0]));
    for (u32 k = 1; k < samples; k++) {
        const R logit = R(Element<WEIGHT>::widen(logits[k * stride]));
        if (logit > largest || !(largest == largest)) largest = logit;
    }
    R sum = 0;
    for (u32 k = 0; k < samples; k++) sum += power(R(Element<WEIGHT>::widen(logits[k * stride])), largest);
    return {largest, R(1) / sum};
}

// Where those of a row are kept, for kernels that come later.
template <class R>
static __device__ __forceinline__ Statistics<R> &kept_statistics(const Arguments &a, const Projection &p, i64 n, i64 q, i64 m) {
    return static_cast<Statistics<R> *>(p.statistics)[(n * a.heads + m) * a.queries + q];
}
#endif
