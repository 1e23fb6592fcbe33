// What the forward kernels on 16-byte vectors share: addresses of rows, barriers for levels kept in shared memory,
// and the recomputation of rows that are not finite. See gather.cuh.

#if KEEP
static __device__ __forceinline__ void make_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Arrives once everything this thread has had copied is there.
static __device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
static __device__ __forceinline__ void wait_for_all(u32 barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
}
#endif

// Where a row lies.
struct Place {
    const char *value, *locations, *weights;
    char *out;
    const char *references; // only if PROJECTED
};

static __device__ __forceinline__ Place place_of(const Arguments &a, const Schedule &schedule, const int4 *levels,
                                                 u32 row, u32 vector PROJECTION_PARAMETER) {
    const u32 plane = schedule.by_plane.divide(row), in_plane = row - plane * schedule.plane;
    const u32 n = schedule.by_planes_an_image.divide(plane);
    const u32 m = (plane - n * schedule.planes_an_image) * HEADS_TOGETHER + in_plane % HEADS_TOGETHER;
    const u32 q = query_of(schedule.order, in_plane / HEADS_TOGETHER, levels);
    const i64 value = (n * a.value_strides[0] + m * a.value_strides[2]) * ELEMENT_BYTES;
    const char *const first = static_cast<const char *>(a.value) + value + vector * 16;
    const char *const locations = static_cast<const char *>(a.locations);
    const char *const weights = static_cast<const char *>(a.weights);
    char *const out = static_cast<char *>(a.out) + vector * 16;
    Place place;
    place.value = first;
    place.references = nullptr;
#if PROJECTED
    place.references = static_cast<const char *>(projection.references) + to_references(projection, n, q);
#endif
#if DENSE
    const u64 at = (n * static_cast<u32>(a.queries) + q) * a.heads + m;
    place.locations = locations + at * (SAMPLES * LOCATION_BYTES);
    place.weights = weights + at * (SAMPLES * WEIGHT_BYTES);
    place.out = out + at * (CHANNELS * ELEMENT_BYTES);
#elif PROJECTED
    place.locations = locations + to_row(a.location_strides, n, q, m, LOCATION_BYTES / 2);
    place.weights = weights + to_row(a.weight_strides, n, q, m, WEIGHT_BYTES);
    const i64 of_heads[3] = {a.out_strides[0], a.out_strides[1], CHANNELS};
    place.out = out + to_row(of_heads, n, q, m, ELEMENT_BYTES);
#else
    const i64 location = n * a.location_strides[0] + q * a.location_strides[1] + m * a.location_strides[2];
    const i64 weight = n * a.weight_strides[0] + q * a.weight_strides[1] + m * a.weight_strides[2];
    const i64 result = n * a.out_strides[0] + q * a.out_strides[1] + m * CHANNELS;
    place.locations = locations + location * (LOCATION_BYTES / 2);
    place.weights = weights + weight * WEIGHT_BYTES;
    place.out = out + result * ELEMENT_BYTES;
#endif
    return place;
}

static __device__ __forceinline__ void add(float (&sums)[VECTOR], Vector vector, float weight) {
    const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if VALUE == F32
        sums[i] = __fmaf_rn(weight, __uint_as_float(words[i]), sums[i]);
#else
        float low, high;
        Value::widen(words[i], low, high);
        sums[2 * i] = __fmaf_rn(weight, low, sums[2 * i]);
        sums[2 * i + 1] = __fmaf_rn(weight, high, sums[2 * i + 1]);
#endif
    }
}

// One vector of a row as the operator is defined, one neighbour at a time.
static __device__ __forceinline__ void careful(float (&sums)[VECTOR], const Place &place, const int4 *levels PROJECTION_PARAMETER) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int4 level = levels[level_number(sample)];
        const int width = level.x, height = level.y;
        const Sample found = sample_of(place.locations, place.weights, place.references, sample,
                                       static_cast<float>(width), static_cast<float>(height) PROJECTION_ARGUMENT);
        const float px = found.x, py = found.y, weight = found.weight;
        if (!(px > -1.0f && py > -1.0f && px < static_cast<float>(width) && py < static_cast<float>(height))) {
            continue;
        }
        const float left = floorf(px), top = floorf(py);
#pragma unroll 1
        for (int corner = 0; corner < (NEAREST ? 1 : 4); corner++) {
            const int x = static_cast<int>(left) + (corner & 1), y = static_cast<int>(top) + (corner >> 1);
            if (x < 0 || y < 0 || x >= width || y >= height) {
                continue;
            }
            const float by_x = corner & 1 ? px - left : 1.0f - (px - left);
            const float by_y = corner >> 1 ? py - top : 1.0f - (py - top);
            const u64 pixel = static_cast<u32>(level.z + y * width + x);
            const auto *taps = reinterpret_cast<const Value::Storage *>(place.value + pixel * (PIXEL_UNITS * 16));
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                sums[i] = __fmaf_rn(weight * (by_x * by_y), Value::widen(taps[i]), sums[i]);
            }
        }
    }
}

static __device__ __forceinline__ void store(char *out, const float (&sums)[VECTOR]) {
#if VALUE == F32
    store_vector(out, {__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                       __float_as_uint(sums[3])});
#else
    store_vector(out, {Value::round(sums[0], sums[1]), Value::round(sums[2], sums[3]),
                       Value::round(sums[4], sums[5]), Value::round(sums[6], sums[7])});
#endif
}

// Whether all are finite.
static __device__ __forceinline__ bool sound(const float (&sums)[VECTOR]) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) zero = __fmaf_rn(sums[i], 0.0f, zero);
    return zero == 0.0f; // not if it is NaN
}

// Rows of the block that are not finite, once more: as they are defined. Its results are there.
static __device__ __forceinline__ void compute_anew(const Arguments &a, const Schedule &schedule, const int4 *levels, u32 warp,
                                                    u32 lane PROJECTION_PARAMETER) {
    const u32 group = lane / GROUP, in_group = lane % GROUP, vector = min(lane % LANES, VECTORS - 1u);
    for (Walk again(schedule, warp, group); again.live; again.advance()) {
        if (in_group >= VECTORS) continue;
        const Place place = place_of(a, schedule, levels, again.row, vector PROJECTION_ARGUMENT);
        float sums[VECTOR] = {};
        add(sums, load_stored(place.out), 1.0f);
        if (!sound(sums)) {
            careful(sums, place, levels PROJECTION_ARGUMENT);
            store(place.out, sums);
        }
    }
}
