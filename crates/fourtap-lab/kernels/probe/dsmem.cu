// The ceiling of distributed shared memory: random segments of 64 bytes of a buffer that the blocks of a cluster hold
// together.
//
// One block: takes its part of the buffer into shared memory, then reads anywhere in the cluster.
// One thread: 16 bytes of each segment of its group of four, eight loads in flight, all summed.
// Limited by the way between multiprocessors; the share of reads that find their own block needs none of it.

#define THREADS 256
#define LOADS 8
#define LANES 4
#define SEGMENT (LANES * 16)
// Bytes and segments a block.
#define PART (64 << 10)
#define SEGMENTS (PART / SEGMENT)

extern "C" __global__ void __launch_bounds__(THREADS, 2) probe_dsmem(const char *data, u32 rounds, u32 *sums) {
    extern __shared__ Words buffer[];
    const u32 shared = shared_address(buffer);
    const char *part = data + rank_in_cluster() * PART;
    for (u32 at = threadIdx.x * 16; at < PART; at += THREADS * 16) store_shared(shared + at, load(part + at));
    synchronise_cluster();

    const u32 segments = blocks_in_cluster() * SEGMENTS;
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    const u32 mine = shared + threadIdx.x % LANES * 16;
    u32 state = thread / LANES * 2654435761u;
    u32 sum = 0;
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
        Words words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const u32 segment = __umulhi(next_random(state), segments);
            words[i] = load_cluster(address_in_block(mine + segment % SEGMENTS * SEGMENT, segment / SEGMENTS));
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum += words[i].sum();
    }
    sums[thread] = sum;
    // A block that leaves takes its shared memory along.
    synchronise_cluster();
}
