// The copy ceiling: device memory read and written as fast as it goes.
//
// One thread: four vectors of 16 bytes in flight, a whole grid apart. Limited by DRAM, if the buffers are larger than the
// caches. The driver's own copy is slower: it leaves part of the work to the copy engine.

extern "C" __global__ void __launch_bounds__(512) probe_copy(const Words *source, Words *target, u64 count) {
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + 3 * threads < count; at += 4 * threads) {
        const Words a = source[at], b = source[at + threads], c = source[at + 2 * threads], d = source[at + 3 * threads];
        target[at] = a;
        target[at + threads] = b;
        target[at + 2 * threads] = c;
        target[at + 3 * threads] = d;
    }
    for (; at < count; at += threads) target[at] = source[at];
}
