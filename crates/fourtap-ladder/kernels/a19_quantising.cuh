// A19, value in eight bits: how it is made. Stands before a19_approximate.cu.
//
// Two launches that depend on value alone: the first finds the largest value of each image and head, in PARTS of its
// pixels; the second writes all pixels, head by head, so scaled that this largest becomes LARGEST_VALUE. Limited by
// DRAM.
//
// Scratch: of each image and head the largest value, then those of its parts; at SCALES bytes the pixels, and one of
// zeros after the last of an image and head, right of which there is none.
//
// KIND: 0 INT8, 1 FP8 (e4m3); HEADS: M; PREPARING: threads of a block.

#define INT8 0
#define FP8 1

constexpr float LARGEST_VALUE = KIND == INT8 ? 127.0f : 448.0f;
constexpr u32 UNITS = CHANNELS / 16; // 16-byte units of a pixel in eight bits
constexpr int AT_ONCE = 4;
static_assert(PARTS == 32, "a lane looks at one part");

__device__ __forceinline__ float *largest_of(const Problem &p) { return reinterpret_cast<float *>(p.scratch); }
__device__ __forceinline__ float *largest_of_parts(const Problem &p) { return largest_of(p) + p.images * HEADS; }
__device__ __forceinline__ char *pixels_of(const Problem &p, u32 plane) {
    return p.scratch + SCALES + static_cast<u64>(plane) * (p.pixels + 1) * CHANNELS;
}

__device__ __forceinline__ const char *given_pixel(const Problem &p, u32 plane, u32 pixel) {
    return p.value + ((static_cast<u64>(plane / HEADS) * p.pixels + pixel) * HEADS + plane % HEADS) * PIXEL_BYTES;
}

// The larger magnitudes of two pairs.
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
    u32 result;
    asm("{ .reg .b32 m; abs.f16x2 m, %2; max.f16x2 %0, %1, m; }" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ __forceinline__ float largest_in_warp(float largest) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
    return largest;
}

#if KIND == FP8
__device__ __forceinline__ u32 e4m3_pair(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// Four numbers in a word.
__device__ __forceinline__ u32 quantised(float a, float b, float c, float d) {
#if KIND == INT8
    constexpr float ROUND = 12582912.0f; // added, it leaves a whole number in the low bits
    const u32 low = __byte_perm(__float_as_uint(a + ROUND), __float_as_uint(b + ROUND), 0x0040);
    return __byte_perm(low, __byte_perm(__float_as_uint(c + ROUND), __float_as_uint(d + ROUND), 0x0040), 0x5410);
#else
    return e4m3_pair(a, b) | e4m3_pair(c, d) << 16;
#endif
}

// A block: one part of an image and head.
extern "C" __global__ void __launch_bounds__(PREPARING) ladder_a19_largest(const __grid_constant__ Problem p) {
    __shared__ float found[PREPARING / 32];
    const u32 plane = blockIdx.x / PARTS, share = (p.pixels + PARTS - 1) / PARTS;
    const u32 first = min(blockIdx.x % PARTS * share, p.pixels), end = min(first + share, p.pixels) * VECTORS;
    u32 pair = 0;
    for (u32 at = first * VECTORS + threadIdx.x; at < end; at += AT_ONCE * PREPARING) {
        Words words[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u32 vector = min(at + i * PREPARING, end - 1);
            words[i] = load(given_pixel(p, plane, vector / VECTORS) + vector % VECTORS * 16);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            pair = larger(larger(larger(larger(pair, words[i].x), words[i].y), words[i].z), words[i].w);
        }
    }
    float low, high;
    widen(pair, low, high);
    const float largest = largest_in_warp(fmaxf(low, high));
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float all = largest_in_warp(threadIdx.x < PREPARING / 32 ? found[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) largest_of_parts(p)[blockIdx.x] = all;
}

// A thread: 16 channels of AT_ONCE pixels.
extern "C" __global__ void __launch_bounds__(PREPARING) ladder_a19_quantise(const __grid_constant__ Problem p) {
    constexpr u32 OF_BLOCK = AT_ONCE * PREPARING;
    const u32 units = (p.pixels + 1) * UNITS, blocks = (units + OF_BLOCK - 1) / OF_BLOCK, plane = blockIdx.x / blocks;
    const float largest = largest_in_warp(largest_of_parts(p)[plane * PARTS + threadIdx.x % 32]);
    const float factor = largest > 0.0f ? LARGEST_VALUE / largest : 0.0f;
    const u32 first = blockIdx.x % blocks * OF_BLOCK + threadIdx.x;
    if (first == 0) largest_of(p)[plane] = largest;
    Words given[AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const u32 unit = first + i * PREPARING, pixel = min(unit / UNITS, p.pixels - 1);
        given[i][0] = load(given_pixel(p, plane, pixel) + unit % UNITS * 32);
        given[i][1] = load(given_pixel(p, plane, pixel) + unit % UNITS * 32 + 16);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const u32 unit = first + i * PREPARING;
        if (unit >= units) break;
        const float scale = unit / UNITS < p.pixels ? factor : 0.0f;
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const Words &half = given[i][j / 2];
            float v[4];
            widen(j % 2 ? half.z : half.x, v[0], v[1]);
            widen(j % 2 ? half.w : half.y, v[2], v[3]);
            words[j] = quantised(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
        }
        const Words result = {words[0], words[1], words[2], words[3]};
        *reinterpret_cast<Words *>(pixels_of(p, plane) + static_cast<u64>(unit) * 16) = result;
    }
}
