// Numbers of 16 bits, f16 or bf16 as VALUE says, as floats and back; and the exponential that every softmax is made of.

typedef unsigned short u16;

#define F16 0
#define BF16 1

__device__ __forceinline__ float widen(u16 bits) {
    if (VALUE == BF16) return __uint_as_float(static_cast<u32>(bits) << 16);
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
__device__ __forceinline__ u16 rounded(float wide) {
    u16 bits;
    if (VALUE == F16) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    } else {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    }
    return bits;
}

// Two in a word.
__device__ __forceinline__ float2 widen(u32 pair) {
    return {widen(static_cast<u16>(pair)), widen(static_cast<u16>(pair >> 16))};
}
__device__ __forceinline__ u32 rounded(float low, float high) {
    u32 pair;
    if (VALUE == F16) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

// 2^x; minus infinity gives 0.
__device__ __forceinline__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
