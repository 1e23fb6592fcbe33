// Element types without CUDA's headers: what a user's machine has for certain is NVRTC, not <cuda_fp16.h>.
//
// A type is a number, so that it can be given on the command line: -DVALUE=F16.

#define F16 0
#define BF16 1
#define F32 2
#define F64 3

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

template <int TYPE> struct Element;

template <> struct Element<F16> {
    typedef u16 Storage;
    typedef float Real;
    static __device__ float widen(u16 bits) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
        return wide;
    }
    static __device__ u16 round(float wide) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
        return bits;
    }
    // Two elements in a word.
    static __device__ void widen(u32 pair, float &low, float &high) {
        asm("{ .reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
            : "=f"(low), "=f"(high)
            : "r"(pair));
    }
    static __device__ u32 round(float low, float high) {
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};

template <> struct Element<BF16> {
    typedef u16 Storage;
    typedef float Real;
    static __device__ float widen(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
    static __device__ u16 round(float wide) {
        u16 bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
        return bits;
    }
    static __device__ void widen(u32 pair, float &low, float &high) {
        low = __uint_as_float(pair << 16);
        high = __uint_as_float(pair & 0xffff0000u);
    }
    static __device__ u32 round(float low, float high) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};

template <> struct Element<F32> {
    typedef float Storage;
    typedef float Real;
    static __device__ float widen(float number) { return number; }
    static __device__ float round(float number) { return number; }
};

template <> struct Element<F64> {
    typedef double Storage;
    typedef double Real;
    static __device__ double widen(double number) { return number; }
    static __device__ double round(double number) { return number; }
};
