// The copy ceiling: device memory read and written as fast as it goes.
//
// One block: a stretch of 512 vectors of 16 bytes; one thread: two of them in flight. Limited by DRAM, if the buffers are
// larger than the caches. Blocks that come and go copy faster than a grid that stays and strides over all of it
// (runs/2026-11-15-h200/experiments/25.log), and replayed in a graph the driver's own copy leaves work to the copy engine.

extern "C" __global__ void __launch_bounds__(256) probe_copy(const Words *source, Words *target, u64 count) {
    const u64 first = static_cast<u64>(blockIdx.x) * (2 * blockDim.x) + threadIdx.x, second = first + blockDim.x;
    if (second < count) {
        const Words a = source[first], b = source[second];
        target[first] = a;
        target[second] = b;
    } else if (first < count) {
        target[first] = source[first];
    }
}
