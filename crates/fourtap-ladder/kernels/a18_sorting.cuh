// A18, rows in space order: what the gather of a18_layouts.cu does not have. Stands before it.
//
// Rows of an image and head are sorted by the bin that the mean of their first KEY_POINTS locations lies in; bins are
// numbered along a Z-shaped path. Two launches: the first counts the rows of each bin and numbers them, the second
// finds where bins begin and writes the order. Limited by launches and by the latency of the counting.
//
// GRID: bins a side, 16 to 64; SORT_THREADS of a block; SORTED: rows of a block of the second launch.

constexpr u32 BINS = GRID * GRID;
// In scratch: how many rows each bin has, of each row its bin and its number there, and the order of rows.
struct Sorting {
    u32 *counts;
    uint2 *keys;
    u32 *order;
    __device__ __forceinline__ explicit Sorting(const Problem &p) {
        counts = reinterpret_cast<u32 *>(p.scratch);
        keys = reinterpret_cast<uint2 *>(counts + static_cast<u64>(p.images) * HEADS * BINS);
        order = reinterpret_cast<u32 *>(keys + row_count(p));
    }
};

// The bits of a number below 64, with gaps.
__device__ __forceinline__ u32 spread(u32 number) {
    number = (number | number << 4) & 0x30fu;
    number = (number | number << 2) & 0x333u;
    return (number | number << 1) & 0x555u;
}

__device__ __forceinline__ u32 bin_on_axis(float mean) {
    return static_cast<u32>(fminf(fmaxf(mean * GRID, 0.0f), GRID - 1.0f)); // NaN: 0
}

// A thread: the bin of one row.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) ladder_a18_keys(const __grid_constant__ Problem p) {
    const u32 row = blockIdx.x * SORT_THREADS + threadIdx.x, lane = threadIdx.x % 32;
    const bool live = row < row_count(p);
    constexpr int COUNT = KEY_POINTS < SAMPLES ? KEY_POINTS : SAMPLES;
    u32 bin = 0;
    u64 counter = ~0ull;
    if (live) {
        float2 sum = {0.0f, 0.0f};
#pragma unroll 4
        for (int i = 0; i < COUNT; i++) {
            const float2 location = p.locations[static_cast<u64>(row) * SAMPLES + i];
            sum = {sum.x + location.x, sum.y + location.y};
        }
        bin = spread(bin_on_axis(sum.x / COUNT)) | spread(bin_on_axis(sum.y / COUNT)) << 1;
        counter = static_cast<u64>(row / HEADS / p.queries * HEADS + row % HEADS) * BINS + bin;
    }
    // One addition for all lanes with the same bin, since neighbouring rows often have.
    const u32 same = __match_any_sync(ALL, counter);
    const u32 leader = __ffs(same) - 1;
    u32 first = 0;
    if (live && lane == leader) first = atomicAdd(Sorting(p).counts + counter, static_cast<u32>(__popc(same)));
    first = __shfl_sync(ALL, first, leader);
    if (live) Sorting(p).keys[row] = make_uint2(bin, first + __popc(same & ((1u << lane) - 1)));
}

// A block: SORTED rows of one image and head, after it has found for itself where each bin begins.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) ladder_a18_order(const __grid_constant__ Problem p) {
    __shared__ u32 starts[BINS], totals[SORT_THREADS / 32];
    constexpr int OF_THREAD = BINS / SORT_THREADS;
    const u32 blocks = (p.queries + SORTED - 1) / SORTED, plane = blockIdx.x / blocks;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Sorting sorting(p);
    u32 counts[OF_THREAD], sum = 0;
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        counts[i] = sorting.counts[static_cast<u64>(plane) * BINS + threadIdx.x * OF_THREAD + i];
        sum += counts[i];
    }
    u32 scanned = sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u32 before = __shfl_up_sync(ALL, scanned, distance);
        if (lane >= distance) scanned += before;
    }
    if (lane == 31) totals[warp] = scanned;
    __syncthreads();
    u32 start = scanned - sum;
    for (u32 i = 0; i < warp; i++) start += totals[i];
#pragma unroll
    for (int i = 0; i < OF_THREAD; i++) {
        starts[threadIdx.x * OF_THREAD + i] = start;
        start += counts[i];
    }
    __syncthreads();
    const u32 first = blockIdx.x % blocks * SORTED, end = min(first + SORTED, p.queries);
    for (u32 query = first + threadIdx.x; query < end; query += SORT_THREADS) {
        const u32 row = (plane / HEADS * p.queries + query) * HEADS + plane % HEADS;
        const uint2 key = sorting.keys[row];
        sorting.order[static_cast<u64>(plane) * p.queries + starts[key.x] + key.y] = row;
    }
}
