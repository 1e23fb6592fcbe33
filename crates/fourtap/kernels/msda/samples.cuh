// What the kernels for the gradients of locations and weights share. See gather.cuh.
//
// Both gradients of a sample follow from four numbers: grad_out times each of its four neighbours, summed over
// channels.
//
// A sample that reads an infinite or NaN pixel which is not its own gets NaN and is recomputed.

// Specialised also by GRADS_DENSE: whether the gradients are row-major without gaps.

static_assert(SPLIT == 1, "a group has the whole row");

// A row, and where what belongs to it lies.
struct Row {
    u32 n, q, m;
    u32 number; // counted as the tensors have them

    __device__ __forceinline__ Row() : n(0), q(0), m(0), number(0) {}
    __device__ __forceinline__ Row(const Arguments &a, const Schedule &schedule, const int4 *levels, u32 walked) {
        const u32 plane = schedule.by_plane.divide(walked), in_plane = walked - plane * schedule.plane;
        n = schedule.by_planes_an_image.divide(plane);
        m = (plane - n * schedule.planes_an_image) * HEADS_TOGETHER + in_plane % HEADS_TOGETHER;
        q = query_of(schedule.order, in_plane / HEADS_TOGETHER, levels);
        number = (n * static_cast<u32>(a.queries) + q) * a.heads + m;
    }
    // In bytes from the first pixel.
    __device__ __forceinline__ i64 value(const Arguments &a) const {
        return (n * a.value_strides[0] + m * a.value_strides[2]) * ELEMENT_BYTES;
    }
    __device__ __forceinline__ const char *grad_out(const Gradients &g) const {
#if PROJECTED
        const i64 of_heads[3] = {g.grad_out_strides[0], g.grad_out_strides[1], CHANNELS};
        return static_cast<const char *>(g.grad_out) + to_row(of_heads, n, q, m, ELEMENT_BYTES);
#else
        const i64 first = n * g.grad_out_strides[0] + q * g.grad_out_strides[1] + m * CHANNELS;
        return static_cast<const char *>(g.grad_out) + first * ELEMENT_BYTES;
#endif
    }
    __device__ __forceinline__ const char *locations(const Arguments &a) const {
        return static_cast<const char *>(a.locations) + first(DENSE, a.location_strides, SAMPLES * 2, LOCATION_BYTES / 2);
    }
    __device__ __forceinline__ const char *weights(const Arguments &a) const {
        return static_cast<const char *>(a.weights) + first(DENSE, a.weight_strides, SAMPLES, WEIGHT_BYTES);
    }
#if PROJECTED
    __device__ __forceinline__ const char *references(const Projection &p) const {
        return static_cast<const char *>(p.references) + to_references(p, n, q);
    }
    // Gradients by places in pixels.
    __device__ __forceinline__ float *places(const Projection &p) const {
        return static_cast<float *>(p.places) + static_cast<u64>(number) * (SAMPLES * 2);
    }
#endif
    __device__ __forceinline__ char *grad_locations(const Gradients &g) const {
        return static_cast<char *>(g.locations) + first(GRADS_DENSE, g.location_strides, SAMPLES * 2, LOCATION_BYTES / 2);
    }
    __device__ __forceinline__ char *grad_weights(const Gradients &g) const {
        return static_cast<char *>(g.weights) + first(GRADS_DENSE, g.weight_strides, SAMPLES, WEIGHT_BYTES);
    }

  private:
    // In bytes, of a tensor that has so many elements a row; `dense`: without gaps.
    __device__ __forceinline__ i64 first(bool dense, const i64 *strides, u32 elements, u32 bytes) const {
        if (dense) return static_cast<i64>(static_cast<u64>(number) * elements) * bytes;
#if PROJECTED
        return static_cast<i64>(to_row(strides, n, q, m, bytes));
#else
        return (n * strides[0] + q * strides[1] + m * strides[2]) * bytes;
#endif
    }
};

// Along one axis: how much the two neighbours that are read count, and how that changes with the place.
struct Shares {
    float share[2], slope[2];
};

struct Result {
    float x, y, weight;
};

// From the sums of the four neighbours: for x and y, how the weighted sum of a sample of weight 1 changes by a pixel's step.
static __device__ __forceinline__ Result combine(const Shares &x, const Shares &y, const float (&sums)[4]) {
    const float upper = x.share[0] * sums[0] + x.share[1] * sums[1], lower = x.share[0] * sums[2] + x.share[1] * sums[3];
    const float upper_slope = x.slope[0] * sums[0] + x.slope[1] * sums[1];
    const float lower_slope = x.slope[0] * sums[2] + x.slope[1] * sums[3];
    return {y.share[0] * upper_slope + y.share[1] * lower_slope, y.slope[0] * upper + y.slope[1] * lower,
            y.share[0] * upper + y.share[1] * lower};
}

// What the gradients by x and y, in pixels and of a sample of weight 1, are multiplied by.
struct Scale {
    float x, y;
};

static __device__ __forceinline__ Scale scale_of(float weight, float width, float height) {
#if NEAREST
    return {0.0f, 0.0f};
#elif PROJECTED
    return {weight, weight};
#else
    return {weight * width, weight * height};
#endif
}

// Of the numbers that fill two vectors.
static __device__ __forceinline__ float product(Vector a, Vector b) {
    const u32 of_a[4] = {a.x, a.y, a.z, a.w}, of_b[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if VALUE == F32
        sum = __fmaf_rn(__uint_as_float(of_a[i]), __uint_as_float(of_b[i]), sum);
#else
        float low_a, high_a, low_b, high_b;
        Value::widen(of_a[i], low_a, high_a);
        Value::widen(of_b[i], low_b, high_b);
        sum = __fmaf_rn(low_a, low_b, sum);
        sum = __fmaf_rn(high_a, high_b, sum);
#endif
    }
    return sum;
}

// As defined, one neighbour at a time, those outside left out.
static __device__ __noinline__ Result careful(Sample sample, int4 level, const char *value, const char *grad_out) {
    const int width = level.x, height = level.y;
    const float px = sample.x, py = sample.y;
    if (!(px > -1.0f && py > -1.0f && px < static_cast<float>(width) && py < static_cast<float>(height))) {
        return {0.0f, 0.0f, 0.0f};
    }
    const float left = floorf(px), top = floorf(py), fx = px - left, fy = py - top;
    const Scale scale = scale_of(sample.weight, static_cast<float>(width), static_cast<float>(height));
    Result result = {0.0f, 0.0f, 0.0f};
    for (int corner = 0; corner < (NEAREST ? 1 : 4); corner++) {
        const int right = corner & 1, down = corner >> 1;
        const int x = static_cast<int>(left) + right, y = static_cast<int>(top) + down;
        if (x < 0 || y < 0 || x >= width || y >= height) continue;
        const u64 pixel = static_cast<u32>(level.z + y * width + x);
        const char *const taps = value + pixel * (PIXEL_UNITS * 16);
        float sum = 0.0f;
#pragma unroll 1 // few registers, so that whoever calls this keeps more
        for (int i = 0; i < VECTORS; i++) sum += product(load_vector(taps + i * 16), load_vector(grad_out + i * 16));
        const float by_x = right ? fx : 1.0f - fx, by_y = down ? fy : 1.0f - fy;
        result.weight += by_x * by_y * sum;
        if (NEAREST) continue;
        result.x += scale.x * (right ? by_y : -by_y) * sum;
        result.y += scale.y * (down ? by_x : -by_x) * sum;
    }
    return result;
}

static __device__ __forceinline__ bool is_finite(Result r) { return fabsf(r.x) + fabsf(r.y) + fabsf(r.weight) < 3e38f; }

// Two numbers of a 16-bit type in a word; of others nobody asks.
template <int TYPE> struct Narrow {
    static __device__ __forceinline__ u32 pair(float, float) { return 0; }
};
template <> struct Narrow<F16> {
    static __device__ __forceinline__ u32 pair(float low, float high) { return Element<F16>::round(low, high); }
};
template <> struct Narrow<BF16> {
    static __device__ __forceinline__ u32 pair(float low, float high) { return Element<BF16>::round(low, high); }
};

// N neighbouring numbers of a type, aligned to all of them or to 16 bytes.
template <int TYPE, int N> static __device__ __forceinline__ void store_numbers(char *to, const float (&numbers)[N]) {
    if (TYPE == F32) {
        if (N % 4 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                store_vector(to + 4 * i, {__float_as_uint(numbers[i]), __float_as_uint(numbers[i + 1]),
                                          __float_as_uint(numbers[i + 2]), __float_as_uint(numbers[i + 3])});
            }
        } else if (N % 2 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(to + 4 * i), "f"(numbers[i]), "f"(numbers[i + 1])
                             : "memory");
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) reinterpret_cast<float *>(to)[i] = numbers[i];
        }
    } else if (N % 2 == 0) {
        u32 pairs[N / 2 > 0 ? N / 2 : 1];
#pragma unroll
        for (int i = 0; i < N / 2; i++) pairs[i] = Narrow<TYPE>::pair(numbers[2 * i], numbers[2 * i + 1]);
        if (N == 2) asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(pairs[0]) : "memory");
        if (N == 4) {
            asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(pairs[0]), "r"(pairs[N > 2]) : "memory");
        }
        if (N != 2 && N != 4) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) reinterpret_cast<u32 *>(to)[i] = pairs[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) reinterpret_cast<u16 *>(to)[i] = static_cast<u16>(Element<TYPE>::round(numbers[i]));
    }
}

#if PROJECTED
// What lanes keep of a row, in shared memory, until all of it is known: weights, and the gradients by them, from which those
// by logits follow. Each lane has a column of its own. ROWS: whose weights may be there at a time, one or two.
template <int ROWS> struct Kept {
    float weight[ROWS][CHUNKS * PER_LANE][THREADS], by_weight[CHUNKS * PER_LANE][THREADS];

    __device__ __forceinline__ void begin(u32 row, const Weights &weights) {
#pragma unroll
        for (int i = 0; i < CHUNKS * PER_LANE; i++) weight[row][i][threadIdx.x] = weights.of[i / PER_LANE][i % PER_LANE];
    }
    __device__ __forceinline__ float weight_at(u32 row, int chunk, int v) const {
        return weight[row][chunk * PER_LANE + v][threadIdx.x];
    }
    __device__ __forceinline__ void keep(int chunk, const float (&found)[PER_LANE]) {
#pragma unroll
        for (int v = 0; v < PER_LANE; v++) by_weight[chunk * PER_LANE + v][threadIdx.x] = found[v];
    }
    // `first`: the lane's first sample of a chunk. All lanes of a group call it together; those without a row write nothing.
    __device__ __forceinline__ void store(u32 number, char *row, u32 first, bool live) const {
        float weights[CHUNKS * PER_LANE], found[CHUNKS * PER_LANE], mean = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS * PER_LANE; i++) {
            weights[i] = weight[number][i][threadIdx.x];
            found[i] = by_weight[i][threadIdx.x];
            if (WHOLE || i / PER_LANE * CHUNK + first < SAMPLES) mean = __fmaf_rn(weights[i], found[i], mean);
        }
#pragma unroll
        for (int other = 1; other < GROUP; other *= 2) mean += __shfl_xor_sync(ALL, mean, other);
        if (!live) return;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if (!WHOLE && c * CHUNK + first >= SAMPLES) break;
            float by_logit[PER_LANE];
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) by_logit[v] = weights[c * PER_LANE + v] * (found[c * PER_LANE + v] - mean);
            store_numbers<WEIGHT>(row + (c * CHUNK + first) * WEIGHT_BYTES, by_logit);
        }
    }
};

// From a gradient by a place to that by the offset. A sample that takes no part moves nothing, whatever its box is.
static __device__ __forceinline__ float by_offset(float by_place, float scale) {
    return BOXES ? (by_place == 0.0f ? 0.0f : by_place * scale) : by_place;
}
#endif

// The levels, to shared memory.
static __device__ __forceinline__ void share_levels(const Arguments &a, const Schedule &schedule, int4 (&levels)[LEVELS]) {
    if (threadIdx.x < LEVELS) {
        const Level level = level_of(a, threadIdx.x);
        // A level without pixels: a width no coordinate is inside of, and a place that exists.
        const bool empty = level.width <= 0 || level.height <= 0;
        const int start = static_cast<int>(level.start);
        levels[threadIdx.x] =
            empty ? make_int4(-2, -2, 0, -1) : make_int4(level.width, level.height, start, walked_from(a, schedule, level));
    }
    __syncthreads();
}
