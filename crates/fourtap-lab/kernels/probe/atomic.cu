// The ceilings of atomic addition: small whole numbers added to random segments of a buffer, as a scatter of channels
// does.
//
// One group: LANES threads that add to one segment together, BYTES each.
// One thread: eight additions a round, of numbers that change their sign from round to round, so that sums stay small
// and exact.
// Limited by the second-level cache, which does the adding; in a small buffer by how often it can do so at one place.
// KIND is 0 for one f32, 1 for four f32, 2 for eight f16 an instruction.

#define THREADS 256
#define ADDITIONS 8
#if KIND == 0
#define LANES 32
#define BYTES 4
#elif KIND == 1
#define LANES 8
#define BYTES 16
#else
#define LANES 4
#define BYTES 16
#endif

// The bits of 1 to 4 as an f16.
__device__ __forceinline__ u32 half_of(u32 number) {
    return number == 1 ? 0x3c00 : number == 2 ? 0x4000 : number == 3 ? 0x4200 : 0x4400;
}

extern "C" __global__ void __launch_bounds__(THREADS) probe_atomic(char *data, u32 segments, u32 rounds) {
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    const u32 group = thread / LANES, lane = thread % LANES;
    char *mine = data + lane * BYTES;
    u32 state = group * 2654435761u;
#if KIND == 2
    u32 halves[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        halves[i] = half_of(1 + (group + lane + 2 * i) % 4) | half_of(1 + (group + lane + 2 * i + 1) % 4) << 16;
#else
    float numbers[BYTES / 4];
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) numbers[i] = static_cast<float>(1 + (group + lane + i) % 4);
#endif
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < ADDITIONS; i++) {
            char *address = mine + static_cast<u64>(__umulhi(next_random(state), segments)) * (LANES * BYTES);
#if KIND == 0
            asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(numbers[0]) : "memory");
#elif KIND == 1
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(numbers[0]),
                         "f"(numbers[1]), "f"(numbers[2]), "f"(numbers[3])
                         : "memory");
#else
            asm volatile("red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(halves[0]),
                         "r"(halves[1]), "r"(halves[2]), "r"(halves[3])
                         : "memory");
#endif
        }
#if KIND == 2
#pragma unroll
        for (int i = 0; i < 4; i++) halves[i] ^= 0x80008000u;
#else
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++) numbers[i] = -numbers[i];
#endif
    }
}
