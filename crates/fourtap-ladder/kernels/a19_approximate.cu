// A19, approximate: value in eight bits, in scratch head by head, one scale for each image and head.
//
// KIND 0, INT8: whole numbers from -127 to 127. Weights become whole numbers too, of 16 bits against the largest of the
// row; a `dp2a` then adds two neighbours of a channel: three instructions for a channel of a sample instead of eight.
// Sums are exact; error about 4e-3. 1, FP8: e4m3, widened to half precision, in which rows are summed: four
// instructions; error about 2.5e-2.
//
// A group of CHANNELS / 16 lanes takes a row, a lane 16 bytes of a pixel. See sharing.cuh for how places are found.
// Should gain a third: half the bytes to fetch, twice as much of a head in L1, and fewer instructions.
//
// THREADS of a block, RESIDENT of a multiprocessor. What was prepared is described in a19_quantising.cuh.

constexpr int CHUNK = GROUP * PER_LANE;
constexpr int CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
constexpr int STEPS = SAMPLES < CHUNK ? SAMPLES : CHUNK;
constexpr int UNROLLED = STEPS % 4 == 0 ? 4 : STEPS; // more loads ahead than this would cost registers
constexpr int LANE_CHANNELS = 16;
// What the largest weight of a row becomes: so much that sums stay below 2^31 (INT8, where rounding adds up to 2 for
// each sample) or 2^16 (FP8).
constexpr int MOST = 16909320 / SAMPLES - 2;
constexpr float LARGEST_WEIGHT = KIND == INT8 ? (MOST < 32765 ? MOST : 32765) : SAMPLES > 128 ? 128.0f / SAMPLES : 1.0f;

// A pair of weights, of the upper or lower neighbours.
__device__ __forceinline__ u32 weights_of(float left, float right) {
#if KIND == INT8
    constexpr float ROUND = 12582912.0f; // added, it leaves a whole number in the low bits
    return __byte_perm(__float_as_uint(left + ROUND), __float_as_uint(right + ROUND), 0x5410);
#else
    return rounded(left, right);
#endif
}

// x and y: the upper and the lower pair's place, in units of 16 bytes; z and w: their weights.
__device__ __forceinline__ Words record_of(float2 location, float weight, int4 level) {
    const Axis x = axis_of(location.x, level.x), y = axis_of(location.y, level.y);
    const float all = weight * (x.inside * y.inside), lower = all * y.second, upper = all - lower;
    const u32 pixel = level.z + y.first * level.x + x.first;
    const float right[2] = {upper * x.second, lower * x.second};
    return {pixel * GROUP, (pixel + level.w) * GROUP, weights_of(upper - right[0], right[0]),
            weights_of(lower - right[1], right[1])};
}

#if KIND == INT8
__device__ __forceinline__ int dot_low(u32 weights, u32 pairs, int sum) {
    asm("dp2a.lo.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(pairs));
    return sum;
}
__device__ __forceinline__ int dot_high(u32 weights, u32 pairs, int sum) {
    asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(pairs));
    return sum;
}

struct Sums {
    int of[LANE_CHANNELS] = {};
    // Two neighbours of one row.
    __device__ __forceinline__ void add(const Words &left, const Words &right, u32 weights) {
        const u32 a[4] = {left.x, left.y, left.z, left.w}, b[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 low = __byte_perm(a[i], b[i], 0x5140), high = __byte_perm(a[i], b[i], 0x7362);
            of[4 * i] = dot_low(weights, low, of[4 * i]);
            of[4 * i + 1] = dot_high(weights, low, of[4 * i + 1]);
            of[4 * i + 2] = dot_low(weights, high, of[4 * i + 2]);
            of[4 * i + 3] = dot_high(weights, high, of[4 * i + 3]);
        }
    }
    __device__ __forceinline__ float operator[](int channel) const { return static_cast<float>(of[channel]); }
};
#else
// Two numbers of the low or high half of a word.
__device__ __forceinline__ u32 widen_low(u32 word) {
    u32 pair;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(pair) : "r"(word));
    return pair;
}
__device__ __forceinline__ u32 widen_high(u32 word) {
    u32 pair;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(pair) : "r"(word));
    return pair;
}
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 sum) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

struct Sums {
    u32 of[LANE_CHANNELS / 2] = {};
    // Two neighbours of one row.
    __device__ __forceinline__ void add(const Words &left, const Words &right, u32 weights) {
        const u32 first = __byte_perm(weights, weights, 0x1010), second = __byte_perm(weights, weights, 0x3232);
        const u32 a[4] = {left.x, left.y, left.z, left.w}, b[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            of[2 * i] = multiply_add(first, widen_low(a[i]), of[2 * i]);
            of[2 * i + 1] = multiply_add(first, widen_high(a[i]), of[2 * i + 1]);
            of[2 * i] = multiply_add(second, widen_low(b[i]), of[2 * i]);
            of[2 * i + 1] = multiply_add(second, widen_high(b[i]), of[2 * i + 1]);
        }
    }
    __device__ __forceinline__ float operator[](int channel) const {
        float pair[2];
        widen(of[channel / 2], pair[0], pair[1]);
        return pair[channel % 2];
    }
};
#endif

// The largest magnitude of a row's weights, the same for all lanes of a group.
__device__ __forceinline__ float largest_weight(const Problem &p, u32 row, u32 in_group) {
    constexpr int WIDTH = SAMPLES % 4 == 0 ? 4 : 1;
    struct __align__(WIDTH * 4) Weights {
        float of[WIDTH];
    };
    float largest = 0.0f;
    if (row != NONE) {
        const Weights *weights = reinterpret_cast<const Weights *>(p.weights + static_cast<u64>(row) * SAMPLES);
#pragma unroll 8
        for (int i = in_group; i < SAMPLES / WIDTH; i += GROUP) {
            const Weights some = weights[i];
#pragma unroll
            for (int j = 0; j < WIDTH; j++) largest = fmaxf(largest, fabsf(some.of[j]));
        }
    }
#pragma unroll
    for (int other = 1; other < GROUP; other *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
    return largest;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    ladder_a19(const __grid_constant__ Problem p) {
    __shared__ __align__(1024) Words records[WARPS][32 * PER_LANE];
    __shared__ int4 levels[LEVELS];
    if (threadIdx.x < LEVELS) levels[threadIdx.x] = level_of(p, threadIdx.x);
    __syncthreads();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / GROUP, in_group = lane % GROUP;
    const u32 first_record = shared_address(&records[warp][group]), sample = in_group * PER_LANE;
    const u32 at = (blockIdx.x * WARPS + warp) * GROUPS + group, plane = min(at / p.queries, p.images * HEADS - 1);
    const u32 row = at >= row_count(p) ? NONE : (plane / HEADS * p.queries + at % p.queries) * HEADS + plane % HEADS;
    const char *pixels = pixels_of(p, plane) + in_group * 16;
    asm("" : "+l"(pixels)); // one register pair, not a sum to be repeated at each load
    Pending pending;
    pending.ask(p, row, sample);
    const float largest = largest_weight(p, row, in_group);
    // Below this, results are zero in f16, and its inverse would be infinite.
    const float inverse = largest > 1e-30f ? LARGEST_WEIGHT / largest : 0.0f;
    Sums sums;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const Pending current = pending;
        if (chunk + 1 < CHUNKS) pending.ask(p, row, (chunk + 1) * CHUNK + sample);
        const int4 level = levels[min((chunk * CHUNK + sample) / POINTS, LEVELS - 1)];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            store_shared(record_at(first_record, sample + i),
                         record_of(current.locations[i], current.weights[i] * inverse, level));
        }
        __syncwarp();
        Words taps[2][4];
        u32 weights[2][2];
        const auto ask = [&](int step, int to) {
            const Words record = load_shared(record_at(first_record, step));
            const char *upper = pixels + static_cast<u64>(record.x) * 16;
            const char *lower = pixels + static_cast<u64>(record.y) * 16;
            Words(&t)[4] = taps[to];
            t[0] = load(upper);
            t[1] = load(upper + CHANNELS);
            t[2] = load(lower);
            t[3] = load(lower + CHANNELS);
            weights[to][0] = record.z;
            weights[to][1] = record.w;
        };
        ask(0, 0);
#pragma unroll 1
        for (int first = 0; first < STEPS; first += UNROLLED) {
#pragma unroll
            for (int i = 0; i < UNROLLED; i++) {
                const int step = first + i, from = i % 2;
                if (SAMPLES > CHUNK && SAMPLES % CHUNK != 0 && chunk * CHUNK + step >= SAMPLES) break;
                if (step + 1 < STEPS) ask(step + 1, 1 - from);
                sums.add(taps[from][0], taps[from][1], weights[from][0]);
                sums.add(taps[from][2], taps[from][3], weights[from][1]);
            }
        }
    }
    if (row == NONE) return;
    const float scale = largest_of(p)[plane] * (largest / (LARGEST_VALUE * LARGEST_WEIGHT));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float scaled[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) scaled[i] = scale * sums[half * VECTOR + i];
        store_sums(p.out + (static_cast<u64>(row) * GROUP + in_group) * 32 + half * 16, scaled);
    }
}
