// The read ceilings: a buffer in chunks of 32 KiB, read past the first-level cache and summed.
//
// One block: a chunk a round, the next one `step` chunks on, around the end of the buffer.
// One thread: eight loads of 16 bytes in flight. Its sum depends on each of them.
// Limited by DRAM if every chunk is read once, by the second-level cache if that holds them all.

#define THREADS 256
#define LOADS 8
#define CHUNK (THREADS * LOADS * 16)

extern "C" __global__ void __launch_bounds__(THREADS, 5)
    probe_read(const char *data, u32 chunks, u32 step, u32 rounds, u32 *sums) {
    const char *mine = data + threadIdx.x * 16;
    u32 chunk = blockIdx.x % chunks;
    u32 sum = 0;
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
        Words words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            words[i] = load_once(mine + static_cast<u64>(chunk) * CHUNK + i * (THREADS * 16));
        chunk += step;
        if (chunk >= chunks) chunk -= chunks;
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum += words[i].sum();
    }
    sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}
