// What every rung of the ladder is given, and what it need not work out again: where a sample lies, and how sums are kept.
//
// Specialised by CHANNELS (16, 32, 64 or 128), LEVELS and POINTS; a rung adds its own parameters. Value and out are f16,
// locations and weights f32, all row-major. Values are finite: a neighbour outside its level is read at a place inside,
// with weight zero, so that no load is conditional.

#define LEVEL_CAPACITY 16

struct Level {
    int width, height; // at least 1
    int start;         // its first pixel in S
    int below;         // pixels from a row to the next; 0 if there is but one
};

// Mirrored in src/ladder/arguments.rs. A row is one (image, query, head): row = (n * queries + q) * heads + m < 2^31.
struct Problem {
    const char *value;       // f16 [N, S, M, D]
    const float2 *locations; // [N, Q, M, L, P] of (x, y)
    const float *weights;    // [N, Q, M, L, P]
    char *out;               // f16 [N, Q, M, D]
    char *scratch;           // as much as the plan asks for, 256-byte aligned
    u32 images, queries, heads, pixels;
    Level levels[LEVEL_CAPACITY];
};

constexpr int SAMPLES = LEVELS * POINTS;
constexpr int PIXEL_BYTES = 2 * CHANNELS; // of one head
constexpr int VECTOR = 8;                 // channels of 16 bytes
constexpr int VECTORS = CHANNELS / VECTOR;
constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ u32 row_count(const Problem &p) { return p.images * p.queries * p.heads; }

// Bytes from a pixel to the next.
__device__ __forceinline__ u64 pixel_stride(const Problem &p) { return static_cast<u64>(p.heads) * PIXEL_BYTES; }

// The image and head of a row: where pixel 0 of that head lies.
__device__ __forceinline__ const char *value_of_row(const Problem &p, u32 row) {
    const u32 head = row % p.heads, image = row / p.heads / p.queries;
    return p.value + (static_cast<u64>(image) * p.pixels * p.heads + head) * PIXEL_BYTES;
}

// Where a sample lies in its level. Neighbours: 0 (x, y), 1 (x + 1, y), 2 (x, y + 1), 3 (x + 1, y + 1), each moved inside.
struct Cell {
    int x, y;        // of the first neighbour, inside the level
    int right, down; // 1, or 0 where the next one would be outside
    float weights[4];
};

__device__ __forceinline__ Cell cell_of(float2 location, float weight, int width, int height) {
    const float px = __fmaf_rn(location.x, static_cast<float>(width), -0.5f);
    const float py = __fmaf_rn(location.y, static_cast<float>(height), -0.5f);
    // In floating point, before any conversion: NaN and infinity fail.
    if (!(px > -1.0f && py > -1.0f && px < static_cast<float>(width) && py < static_cast<float>(height))) {
        return {0, 0, 0, 0, {0.0f, 0.0f, 0.0f, 0.0f}};
    }
    const float left = floorf(px), top = floorf(py);
    const int x = static_cast<int>(left), y = static_cast<int>(top);
    const float fx = px - left, fy = py - top;
    const float by_x[2] = {x >= 0 ? 1.0f - fx : 0.0f, x + 1 < width ? fx : 0.0f};
    const float by_y[2] = {y >= 0 ? (1.0f - fy) * weight : 0.0f, y + 1 < height ? fy * weight : 0.0f};
    Cell cell;
    cell.x = max(x, 0);
    cell.y = max(y, 0);
    cell.right = min(x + 1, width - 1) - cell.x;
    cell.down = min(y + 1, height - 1) - cell.y;
    for (int i = 0; i < 4; i++) cell.weights[i] = by_x[i & 1] * by_y[i >> 1];
    return cell;
}

// Two f16 numbers in a word, as floats and back.
__device__ __forceinline__ void widen(u32 pair, float &low, float &high) {
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high)
        : "r"(pair));
}
__device__ __forceinline__ u32 rounded(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ float widen_one(const char *address) {
    unsigned short bits;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(address));
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

// Eight channels of a neighbour, weighted.
__device__ __forceinline__ void add(float (&sums)[VECTOR], const Words &tap, float weight) {
    const u32 words[4] = {tap.x, tap.y, tap.z, tap.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low, high;
        widen(words[i], low, high);
        sums[2 * i] = __fmaf_rn(weight, low, sums[2 * i]);
        sums[2 * i + 1] = __fmaf_rn(weight, high, sums[2 * i + 1]);
    }
}

// A result nobody reads soon.
__device__ __forceinline__ void store_sums(char *address, const float (&sums)[VECTOR]) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(rounded(sums[0], sums[1])),
                 "r"(rounded(sums[2], sums[3])), "r"(rounded(sums[4], sums[5])), "r"(rounded(sums[6], sums[7]))
                 : "memory");
}
