// The gather ceiling: random 64-byte segments of a buffer, read as fast as the caches hand them out.
//
// One block: 256 threads, each with a sequence of segments that only its group of four lanes shares.
// One thread: 16 bytes of each segment of its group, eight loads in flight; all words are xored together, so that
// no load can be left out.
// Limited by the cache that holds the buffer: a load of a warp costs eight other instructions, a quarter of the
// time the cache takes for its 512 bytes.

typedef unsigned int u32;
typedef unsigned long long u64;

#define LOADS 8

struct Words {
    u32 x, y, z, w;
};

static __device__ __forceinline__ Words load(const char *address) {
    Words words;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(address));
    return words;
}

// Five blocks a multiprocessor: left to itself, the compiler saves registers for eight by waiting for the first load
// before it issues the fourth.
extern "C" __global__ void __launch_bounds__(256, 5)
    probe_gather(const char *data, u32 segments, u32 rounds, u32 *sums) {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
    const char *mine = data + thread % 4 * 16;
    u32 state = thread / 4 * 2654435761u;
    u32 sum = 0;
    for (u32 round = 0; round < rounds; round++) {
        Words words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            state = state * 1664525u + 1013904223u;
            words[i] = load(mine + static_cast<u64>(__umulhi(state, segments)) * 64);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
    }
    sums[thread] = sum;
}
