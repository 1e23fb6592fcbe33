// How the lanes of a warp share the finding of samples: stands before rungs that hold levels in shared memory.
//
// A group of LANES lanes works on one row, ROWS neighbouring rows a warp. The samples of a level are taken CHUNK at a
// time: each lane works out PER_LANE of them and leaves a record of 16 bytes in shared memory for the others of its
// group. A cell at a border is moved inside: the way to the next pixel is then the same for all samples of a level.
//
// LANES of a row. PER_LANE: samples a lane works out at a time (2 only where POINTS is a multiple of 2 * LANES).
// ALTERNATE: neighbouring groups read the two pixels of a pair in opposite order, so that 64-byte pixels share
// wavefronts.

constexpr int ROWS = 32 / LANES;
constexpr int CHUNK = LANES * PER_LANE;
constexpr int CHUNKS = (POINTS + CHUNK - 1) / CHUNK; // of a level
constexpr int STEPS = POINTS < CHUNK ? POINTS : CHUNK;
constexpr int WARPS = THREADS / 32;
constexpr u32 RECORD_BYTES = 32 * PER_LANE * 16; // of a warp

// The samples a lane has asked for but not yet looked at.
struct Pending {
    float2 locations[PER_LANE];
    float weights[PER_LANE];

    // PER_LANE samples from this one on, or such that add nothing.
    __device__ __forceinline__ void ask(const Problem &p, u64 sample, bool there) {
        for (float2 &location : locations) location = {0.0f, 0.0f};
        for (float &weight : weights) weight = 0.0f;
        if (!there) return;
        if (PER_LANE == 2) {
            const float4 both = __ldcs(reinterpret_cast<const float4 *>(p.locations + sample));
            const float2 two = __ldcs(reinterpret_cast<const float2 *>(p.weights + sample));
            locations[0] = {both.x, both.y};
            locations[PER_LANE - 1] = {both.z, both.w};
            weights[0] = two.x;
            weights[PER_LANE - 1] = two.y;
        } else {
            locations[0] = __ldcs(p.locations + sample);
            weights[0] = __ldcs(p.weights + sample);
        }
    }
};

struct Axis {
    u32 first;    // of two neighbours, both inside unless the level is one pixel wide
    float second; // weight of the second
    float inside; // what zero padding leaves of both
};

__device__ __forceinline__ Axis axis_of(float location, int size) {
    const float wide = static_cast<float>(size), at = __fmaf_rn(location, wide, -0.5f);
    // In floating point, before any conversion: NaN and infinity fail.
    const bool taken = at > -1.0f && at < wide;
    const float clamped = fmaxf(fminf(at, wide - 1.0f), 0.0f);
    const int first = min(static_cast<int>(clamped), max(size - 2, 0));
    return {static_cast<u32>(first), clamped - static_cast<float>(first),
            taken ? fminf(fminf(at + 1.0f, wide - at), 1.0f) : 0.0f};
}

// x: the pixel of the level to read first; y: weight of the second column, negative (-0 is) where that is the left one;
// z and w: weights of the upper and the lower row, attention weight included.
__device__ __forceinline__ Words record_of(float2 location, float weight, int width, int height, u32 group) {
    const Axis x = axis_of(location.x, width), y = axis_of(location.y, height);
    const float whole = weight * x.inside * y.inside, lower = whole * y.second;
    u32 pixel = y.first * width + x.first;
    float second = x.second;
    if (ALTERNATE && ((pixel ^ group) & 1u)) {
        pixel += width > 1 ? 1u : 0u;
        second = -(1.0f - second);
    }
    return {pixel, __float_as_uint(second), __float_as_uint(whole - lower), __float_as_uint(lower)};
}

// Where a group's record of a slot lies, given where its record of slot 0 does (a multiple of ROWS * 16 for group 0).
// In each slot the groups' order is turned another way, so that writing a column of records meets no bank twice.
__device__ __forceinline__ u32 record_at(u32 first, u32 slot) {
    constexpr u32 STEP = 8 / LANES > 0 ? 8 / LANES : 1;
    return (first ^ (slot / PER_LANE * STEP & (ROWS - 1)) * 16) + slot * (ROWS * 16);
}

// What the other lanes of the warp need to know of these samples.
__device__ __forceinline__ void share_records(const Pending &samples, u32 first_record, u32 group, u32 in_group,
                                              int width, int height) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        store_shared(record_at(first_record, in_group * PER_LANE + i),
                     record_of(samples.locations[i], samples.weights[i], width, height, group));
    }
    __syncwarp();
}

// A place in device memory.
struct Global {
    const char *base;
    __device__ __forceinline__ Words read(u32 pixel, u32 stride) const {
        return load(base + static_cast<u64>(pixel) * stride);
    }
    __device__ __forceinline__ Global at(u32 pixel, u32 stride) const {
        return {base + static_cast<u64>(pixel) * stride};
    }
};

// Adds the samples of a chunk, of which `left` exist; the next one's neighbours are on their way while this one's are
// added. `first` is where the level's first pixel has the lane's channels; pixels lie `stride` bytes apart.
template <typename Place>
__device__ __forceinline__ void add_chunk(float (&sums)[VECTOR], u32 first_record, int left, Place first, u32 stride,
                                          int width, int height) {
    const Place below = first.at(height > 1 ? width : 0, stride);
    const u32 right = width > 1 ? 1 : 0;
    Words taps[2][4];
    float by[2][3];
    const auto ask = [&](int step) {
        const Words record = load_shared(record_at(first_record, step));
        const u32 second = ALTERNATE && static_cast<int>(record.y) < 0 ? record.x - right : record.x + right;
        by[step % 2][0] = ALTERNATE ? fabsf(__uint_as_float(record.y)) : __uint_as_float(record.y);
        by[step % 2][1] = __uint_as_float(record.z);
        by[step % 2][2] = __uint_as_float(record.w);
        taps[step % 2][0] = first.read(record.x, stride);
        taps[step % 2][1] = first.read(second, stride);
        taps[step % 2][2] = below.read(record.x, stride);
        taps[step % 2][3] = below.read(second, stride);
    };
    ask(0);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (POINTS > CHUNK && POINTS % CHUNK != 0 && step >= left) break;
        if (step + 1 < STEPS) ask(step + 1);
        const float(&b)[3] = by[step % 2];
        const float one = 1.0f - b[0];
        add(sums, taps[step % 2][0], one * b[1]);
        add(sums, taps[step % 2][1], b[0] * b[1]);
        add(sums, taps[step % 2][2], one * b[2]);
        add(sums, taps[step % 2][3], b[0] * b[2]);
    }
}
