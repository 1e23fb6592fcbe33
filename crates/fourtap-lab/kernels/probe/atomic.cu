// The ceiling of atomic addition: small whole numbers added to random segments of a buffer, as a scatter of channels
// does.
//
// One group: LANES threads that add to one segment together, four f32 each.
// One thread: eight additions a round, of numbers that change their sign from round to round, so that sums stay small
// and exact.
// Limited by the second-level cache, which does the adding; in a small buffer by how often it can do so at one place.

#define THREADS 256
#define ADDITIONS 8
#define LANES 8

extern "C" __global__ void __launch_bounds__(THREADS) probe_atomic(char *data, u32 segments, u32 rounds) {
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    const u32 group = thread / LANES, lane = thread % LANES;
    char *mine = data + lane * 16;
    u32 state = group * 2654435761u;
    float numbers[4];
#pragma unroll
    for (int i = 0; i < 4; i++) numbers[i] = static_cast<float>(1 + (group + lane + i) % 4);
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < ADDITIONS; i++) {
            char *address = mine + static_cast<u64>(__umulhi(next_random(state), segments)) * (LANES * 16);
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(numbers[0]),
                         "f"(numbers[1]), "f"(numbers[2]), "f"(numbers[3])
                         : "memory");
        }
#pragma unroll
        for (int i = 0; i < 4; i++) numbers[i] = -numbers[i];
    }
}
