// What A3 and the rungs that change one thing about it share: where a sample lies, without a branch.
//
// A group of VECTORS lanes takes a row, each lane 16 bytes of channels. A cell on a border is moved inside and the
// weights follow, so that the four neighbours of a sample always lie equally far apart in its level: a pixel and three
// weights say all there is to know of it. No branch stands between the loads of one sample and those of the next.
//
// RESIDENT: threads that a multiprocessor shall have room for, which limits the registers of each. Levels have fewer
// than 2^23 pixels a side, and a pixel of all heads fewer than 2^32 bytes.

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)

__device__ constexpr int largest_divisor(int number, int most) {
    return number % most == 0 ? most : largest_divisor(number, most - 1);
}

// Samples whose coordinates are read at a time, by loads of up to 16 bytes.
constexpr int BATCH = POINTS % 4 == 0 ? 4 : POINTS % 2 == 0 ? 2 : 1;
// Batches of which a loop's body is made: about four samples, whose loads the compiler can bring together.
constexpr int BATCHES = largest_divisor(POINTS / BATCH, 4 / BATCH);

// Adding 2^23 towards zero leaves the whole part of a number below 2^23 in the low bits.
constexpr float SHIFT = 8388608.0f;
constexpr u32 SHIFT_BITS = 0x4b000000u;

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border, 0 for NaN
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour, with SHIFT_BITS added
};

__device__ __forceinline__ Axis axis_of(float location, float size) {
    const float at = __fmaf_rn(location, size, -0.5f);
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    return {__saturatef(at + 1.0f) * __saturatef(size - at), clamped - (first - SHIFT), __float_as_uint(first)};
}

__device__ __forceinline__ u32 pixel_of(const Axis &x, const Axis &y, const Level &level) {
    const u32 width = level.width;
    return y.first * width + x.first + (level.start - SHIFT_BITS * (width + 1));
}

struct __align__(16) Record {
    u32 pixel;          // of the first neighbour, in its image
    float second;       // weight of the second column
    float upper, lower; // of the two rows, attention weight included
};

__device__ __forceinline__ Record record_of(float2 location, float weight, const Level &level) {
    const Axis x = axis_of(location.x, static_cast<float>(level.width));
    const Axis y = axis_of(location.y, static_cast<float>(level.height));
    const float all = weight * (x.inside * y.inside), lower = all * y.second;
    return {pixel_of(x, y, level), x.second, all - lower, lower};
}

// Where the four neighbours of pixel 0 of a level lie; a level one pixel wide or high is its own neighbour.
struct Corners {
    const char *of[4];
};

__device__ __forceinline__ Corners corners_of(const char *value, u32 stride, const Level &level) {
    const u64 right = level.width > 1 ? stride : 0u;
    const u64 down = level.height > 1 ? static_cast<u64>(level.width) * stride : 0u;
    Corners corners = {value, value + right, value + down, value + down + right};
    // Four register pairs, not sums to be repeated at each load.
#pragma unroll
    for (int i = 0; i < 4; i++) asm("" : "+l"(corners.of[i]));
    return corners;
}

struct Taps {
    Words of[4];
};

__device__ __forceinline__ Taps load_taps(const Corners &corners, u32 pixel, u32 stride) {
    const u64 offset = static_cast<u64>(pixel) * stride;
    return {load(corners.of[0] + offset), load(corners.of[1] + offset), load(corners.of[2] + offset),
            load(corners.of[3] + offset)};
}

__device__ __forceinline__ void add_sample(float (&sums)[VECTOR], const Taps &taps, const Record &record) {
    const float upper = record.upper * record.second, lower = record.lower * record.second;
    add(sums, taps.of[0], record.upper - upper);
    add(sums, taps.of[1], upper);
    add(sums, taps.of[2], record.lower - lower);
    add(sums, taps.of[3], lower);
}

// COUNT samples that lie one after another, the first at a multiple of COUNT.
template <int COUNT> struct Samples {
    struct __align__(COUNT * 8 < 16 ? COUNT * 8 : 16) Locations {
        float2 of[COUNT];
    } locations;
    struct __align__(COUNT * 4 < 16 ? COUNT * 4 : 16) Weights {
        float of[COUNT];
    } weights;

    __device__ __forceinline__ Samples(const float2 *locations, const float *weights)
        : locations(*reinterpret_cast<const Locations *>(locations)),
          weights(*reinterpret_cast<const Weights *>(weights)) {}
    __device__ __forceinline__ Record record(int i, const Level &level) const {
        return record_of(locations.of[i], weights.of[i], level);
    }
};

// The vector of a row that a lane takes. Lanes past the end take the last row, for company, and store nothing.
struct Place {
    u32 row, vector;
    bool live;
};

__device__ __forceinline__ Place place_of(const Problem &p, u64 at) {
    const u64 row = at / VECTORS;
    const u32 rows = row_count(p);
    return {static_cast<u32>(row < rows ? row : rows - 1), static_cast<u32>(at % VECTORS), row < rows};
}

__device__ __forceinline__ char *out_of(const Problem &p, const Place &place) {
    return p.out + (static_cast<u64>(place.row) * VECTORS + place.vector) * 16;
}
