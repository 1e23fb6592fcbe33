// The arithmetic ceiling: fused multiply-adds of f32 out of registers.
//
// One thread: 16 chains, each the last result times `scale` plus `offset`, 16 links of each a round; what it stores
// depends on every link. Chains are independent, so that nobody waits for a result.
// Limited by the arithmetic units.

#define THREADS 256
#define CHAINS 16
#define LINKS 16

__device__ __forceinline__ float link(float last, float scale, float offset) {
    float next;
    asm volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(next) : "f"(last), "f"(scale), "f"(offset));
    return next;
}
// 1 + n / 2^23 for n of 23 bits.
__device__ __forceinline__ float first(u32 thread, u32 chain) {
    return __uint_as_float(0x3f800000u | (mixed(thread * CHAINS + chain) & 0x007fffffu));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    probe_fma(float scale, float offset, u32 rounds, u32 *results) {
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    float chains[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) chains[i] = first(thread, i);
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int step = 0; step < LINKS; step++) {
#pragma unroll
            for (int i = 0; i < CHAINS; i++) chains[i] = link(chains[i], scale, offset);
        }
    }
    u32 result = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) result += __float_as_uint(chains[i]) * (2 * i + 1);
    results[thread] = result;
}
