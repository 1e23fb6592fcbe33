// Summing grad_value run by run, from sorted samples. See bins.cuh.

constexpr u32 SHARED = 256; // from so many samples on, all warps of a block share a run

typedef Element<VALUE> Value;

// What a block works on together: up to RUN_WARPS neighbouring runs of each of some rows, and a block of channels.
struct Item {
    u32 plane, level, channel;
    int y, rows;
    u32 first_run, runs;
};

// Item `number`, or false if there is none. Small levels come first: their runs have the most samples.
static __device__ __forceinline__ bool item_of(u32 number, const Arguments &a, const Work &work, const Grid *grids,
                                               Item &item) {
    for (int l = a.levels - 1; l >= 0; l--) {
        const Grid &grid = grids[l];
        const u32 all = grid.items * work.planes; // the launcher sees to it that this fits
        if (number < all) {
            item.level = l;
            item.plane = number / grid.items;
            const u32 rest = number - item.plane * grid.items, blocks = (a.channels + BLOCK - 1) / BLOCK;
            const u32 piece = rest / blocks, down = piece / grid.across;
            item.channel = (rest - piece * blocks) * BLOCK;
            item.first_run = (piece - down * grid.across) * RUN_WARPS;
            item.y = down * grid.rows;
            item.rows = min(static_cast<int>(grid.rows), grid.height - item.y);
            item.runs = min(RUN_WARPS, (grid.width + RUN - 1) / RUN - item.first_run);
            return true;
        }
        number -= all;
    }
    return false;
}

// Items to a block one after another, first come, first served: they differ in length. The next one's number is asked
// for while this one is worked on.
struct Queue {
    u32 *counter;
    u32 next; // only the first thread's

    __device__ __forceinline__ Queue(const Work &work) : counter(work.next), next(0) {
        if (threadIdx.x == 0) next = atomicAdd(counter, 1);
    }
    // All threads call it.
    __device__ __forceinline__ u32 take() {
        __shared__ u32 taken;
        __syncthreads();
        if (threadIdx.x == 0) {
            taken = next;
            next = atomicAdd(counter, 1);
        }
        __syncthreads();
        return taken;
    }
};

// The samples of a run: two pieces of the sorted list, one for the cells above it and one for those below.
struct List {
    const Record *sorted;
    u32 first[2], length[2];

    __device__ __forceinline__ u32 size() const { return length[0] + length[1]; }
    // One that adds nothing if there are not so many.
    __device__ __forceinline__ Record operator[](u32 i) const {
        if (i >= size()) return {0, 0, 0, 0};
        return sorted[i < length[0] ? first[0] + i : first[1] + (i - length[0])];
    }
};

// Those of a row of an item, looked up by all lanes of a warp at once.
struct Lists {
    const Record *sorted;
    u32 bound; // a lane for each run, cell row, and the beginning and end

    __device__ __forceinline__ Lists(const Work &work, const Grid &grid, const Item &item, int y, u32 lane) {
        sorted = sorted_of(work, item.plane, item.level);
        const u32 run = min(lane / 4, item.runs - 1), from = 2 * (item.first_run + run);
        const u32 column = lane % 2 ? min(from + 3, grid.columns) : from, row = y + lane / 2 % 2;
        bound = work.starts[static_cast<u64>(item.plane) * work.capacity + grid.first + row * grid.columns + column];
    }
    // Whether any run has so many samples that warps share it.
    __device__ __forceinline__ bool any_shared(u32 lane) const {
        u32 size = lane % 2 ? bound : 0u - bound;
        size += __shfl_xor_sync(ALL, size, 1);
        size += __shfl_xor_sync(ALL, size, 2);
        return __any_sync(ALL, size > SHARED);
    }
    __device__ __forceinline__ List operator[](u32 run) const {
        List list;
        list.sorted = sorted;
#pragma unroll
        for (int below = 0; below < 2; below++) {
            list.first[below] = __shfl_sync(ALL, bound, 4 * run + 2 * below);
            list.length[below] = __shfl_sync(ALL, bound, 4 * run + 2 * below + 1) - list.first[below];
        }
        return list;
    }
};
static_assert(4 * RUN_WARPS <= 32, "a warp looks up all runs of a row");

// 1 on a pixel, falling to 0 on the next.
static __device__ __forceinline__ float hat(float apart) { return __saturatef(1.0f - fabsf(apart)); }
static __device__ __forceinline__ double hat(double apart) { return fmax(1.0 - fabs(apart), 0.0); }

static __device__ __forceinline__ bool is_finite(float number) { return fabsf(number) <= 3.402823466e38f; }
static __device__ __forceinline__ bool is_finite(double number) { return fabs(number) <= 1.7976931348623157e308; }

// The gradient of one pixel and channel as it is defined: only samples whose cells touch the pixel take part, be their
// numbers what they may. `grad_out` is that of the plane's first query and this channel.
static __device__ __forceinline__ Real careful(List list, const Value::Storage *grad_out, i64 by_query, int x, int y) {
    Real sum = 0;
    for (u32 i = 0; i < list.size(); i++) {
        const Record sample = list[i];
        const Real left = whole(sample.x), top = whole(sample.y), fx = sample.x - left, fy = sample.y - top;
        const int right = x - static_cast<int>(left), down = y - static_cast<int>(top);
        if ((right != 0 && right != 1) || (down != 0 && down != 1)) continue;
        const Real by = (right ? fx : 1 - fx) * (down ? fy : 1 - fy);
        sum = fused(sample.weight * by, Real(Value::widen(*moved(grad_out, steps<Value::Storage>(sample.query, by_query)))), sum);
    }
    return sum;
}
