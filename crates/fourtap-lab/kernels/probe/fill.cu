// Words without a pattern, to copy and to read: each is a hash of its place.
//
// One thread: every word a whole grid apart.

extern "C" __global__ void __launch_bounds__(256) probe_fill(u32 *words, u64 count) {
    const u64 threads = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += threads)
        words[at] = mixed(static_cast<u32>(at));
}
