// The gather ceilings: random segments of a buffer, of LANES times 16 bytes, read as fast as they are handed out.
//
// One block: threads each with a sequence of segments that only its group of LANES shares. With SHARED the block first
// takes the buffer into its shared memory.
// One thread: 16 bytes of each segment of its group, eight loads in flight; all words are summed, so that no load can
// be left out.
// Limited by the memory that holds the buffer: a load of a warp costs eight other instructions, a quarter of the
// time the first-level cache takes for its 512 bytes.

#define LOADS 8
#define SEGMENT (LANES * 16)

// Few enough blocks a multiprocessor: left to itself, the compiler saves registers for more by waiting for the first
// load before it issues the fourth.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    probe_gather(const char *data, u32 segments, u32 rounds, u32 *sums) {
#if SHARED
    extern __shared__ Words buffer[];
    const u32 shared = shared_address(buffer);
    for (u32 at = threadIdx.x * 16; at < segments * SEGMENT; at += THREADS * 16) store_shared(shared + at, load(data + at));
    __syncthreads();
    const u32 mine = shared + threadIdx.x % LANES * 16;
#else
    const char *mine = data + threadIdx.x % LANES * 16;
#endif
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    u32 state = thread / LANES * 2654435761u;
    u32 sum = 0;
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
        Words words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const u32 segment = __umulhi(next_random(state), segments);
#if SHARED
            words[i] = load_shared(mine + segment * SEGMENT);
#else
            words[i] = load(mine + static_cast<u64>(segment) * SEGMENT);
#endif
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum += words[i].sum();
    }
    sums[thread] = sum;
}
