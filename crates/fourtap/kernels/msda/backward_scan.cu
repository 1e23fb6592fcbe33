// Backward, sorting samples, second step: where the samples of each bin and chunk begin. See bins.cuh.
//
// A block for each level of each plane.

constexpr int SCAN_THREADS = 1024;

// The sum of what threads before this one have, and of all.
static __device__ __forceinline__ u32 sum_before(u32 mine, u32 &all) {
    __shared__ u32 sums[SCAN_THREADS / 32];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = mine;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const u32 other = __shfl_up_sync(ALL, sum, apart);
        if (lane >= apart) sum += other;
    }
    __syncthreads(); // nobody still reads the sums of the last call
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 of_warps = sums[lane];
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const u32 other = __shfl_up_sync(ALL, of_warps, apart);
        if (lane >= apart) of_warps += other;
    }
    all = __shfl_sync(ALL, of_warps, 31);
    const u32 before = __shfl_sync(ALL, of_warps, warp - 1);
    return sum - mine + (warp > 0 ? before : 0);
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    msda_backward_scan(const __grid_constant__ Arguments a, const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    if (!lay_out(a, work, grids)) return;
    for (u32 job = blockIdx.x; job < work.planes * a.levels; job += gridDim.x) {
        const u32 plane = job / a.levels;
        const Grid grid = grids[job - plane * a.levels];
        u32 *const starts = work.starts + static_cast<u64>(plane) * work.capacity + grid.first;
        u32 *const counts = work.counts + static_cast<u64>(plane) * work.chunks * work.capacity + grid.first;
        u32 done = 0;
        for (u32 first = 0; first < grid.bins; first += 4 * SCAN_THREADS) {
            // Four bins a thread. Those beyond the last one are empty.
            const u32 bin = first + 4 * threadIdx.x;
            uint4 *const column = reinterpret_cast<uint4 *>(counts + bin);
            const u32 stride = work.capacity / 4;
            uint4 count = make_uint4(0, 0, 0, 0);
            if (bin < grid.bins) {
#pragma unroll 8
                for (u32 chunk = 0; chunk < work.chunks; chunk++) {
                    const uint4 here = column[static_cast<u64>(chunk) * stride];
                    count = make_uint4(count.x + here.x, count.y + here.y, count.z + here.z, count.w + here.w);
                }
            }
            u32 all;
            const u32 before = done + sum_before(count.x + count.y + count.z + count.w, all);
            done += all;
            if (bin >= grid.bins) continue;
            uint4 start = make_uint4(before, before + count.x, before + count.x + count.y,
                                     before + count.x + count.y + count.z);
            *reinterpret_cast<uint4 *>(starts + bin) = start;
            // Four at a time, so that loads need not wait for the stores before them.
            for (u32 chunk = 0; chunk < work.chunks; chunk += 4) {
                uint4 here[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    if (chunk + i < work.chunks) here[i] = column[static_cast<u64>(chunk + i) * stride];
                }
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    if (chunk + i >= work.chunks) break;
                    column[static_cast<u64>(chunk + i) * stride] = start;
                    start = make_uint4(start.x + here[i].x, start.y + here[i].y, start.z + here[i].z, start.w + here[i].w);
                }
            }
        }
        __syncthreads(); // the last start is written below, maybe over what a thread has written above
        if (threadIdx.x == 0) {
            starts[grid.bins] = done;
            work.largest[job] = 0;
            if (job == 0) *work.next = 0;
        }
    }
}
