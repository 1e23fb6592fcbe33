// How backward computes grad_value without scatter-adds: samples are sorted by the pixels they touch
// (backward_sort.cu), then each pixel sums its samples in one fixed order (runs.cuh).
//
//     pixels     o   o   o   o   o   o   o   o   o   o     eight neighbours in a row of a level are a run
//     cells    :   :   :   :   :   :   :   :   :   :       between pixel centres: floor(px), floor(py), from -1 on
//     bins    [ ] [          seven          ] [ ] [        one cell that touches two runs, then seven that touch one
//
// The samples of a run are those of three consecutive bins in the row of cells above it and three in the row below. A
// *plane* is one (image, head). Each chunk of samples of one level and plane is sorted by itself, so equal inputs
// give equal lists, and a run's samples are two pieces of each chunk.

constexpr int RUN = 8;
constexpr u32 QUEUE_COUNTERS = 6; // of runs.cuh
constexpr u32 ALL = 0xffffffffu;

typedef Element<VALUE>::Real Real;

// A sample as its pixels need it: in pixels of its level.
struct __align__(4 * sizeof(Real)) Record {
    Real x, y, weight;
    u32 query;
};

struct Part;

// Mirrored in src/cuda/msda/arguments.rs.
struct Work {
    u16 *starts;    // [planes][chunks][capacity]: where the samples of bins begin, counted from their chunk's first
    Record *sorted; // [planes][level_count][samples], chunk by chunk
    u32 *largest;   // [planes][levels][chunks]: the bits of the largest finite weight
    u32 *counters;  // of the kernel that sums, see `Queue`
    // Of its walks that turned out to be long: they or their parts, how many parts have been summed of each, and the parts' sums.
    Part *late;
    u32 *arrivals;
    void *sums;
    u32 first_plane, planes; // what is sorted now
    u32 first_level, level_count;
    u32 chunks;
    u32 chunk;    // samples of a chunk, less than 2^16
    u32 samples;  // of a level of a plane, less than 2^31
    u32 capacity; // bins of all levels there is room for, a multiple of eight
    u32 part;     // samples of a part
    Divisor by_points, by_heads, by_chunks;
};

// So many equal parts of a number that is only known here.
struct Parts {
    u32 count, inverse;

    static __device__ __forceinline__ Parts of(u32 count) { return {count, 0xffffffffu / max(1u, count)}; }
    __device__ __forceinline__ u32 divide(u32 number, u32 &rest) const {
        u32 quotient = __umulhi(number, inverse); // or one less than it should be
        rest = number - quotient * count;
        if (rest >= count) {
            quotient++;
            rest -= count;
        }
        return quotient;
    }
};

struct Grid {
    int width, height;
    u32 start;   // its first pixel
    u32 columns; // bins a cell row
    u32 bins;
    u32 first; // its first bin, a multiple of eight; after its last comes one more start, the end
    // How its pixels are dealt out, by runs.cuh.
    Parts runs;  // across
    Parts items; // of a plane
    u32 rows;    // of a walk
    u32 shared;  // whether all warps of a block have the same item
    u32 longest; // samples of a walk at most; longer ones are noted for later
};

// Levels that tile the pixels, and nothing else, can be summed run by run. Those from the host do; of those from device
// memory it is seen here, if they come in order. Returns whether they do. All threads call it.
static __device__ bool lay_out(const Arguments &a, const Work &work, Grid (&grids)[LEVEL_CAPACITY]) {
    __shared__ u32 tiled;
    if (threadIdx.x < a.levels) {
        const Level level = level_of(a, threadIdx.x);
        Grid &grid = grids[threadIdx.x];
        const bool empty = level.width <= 0 || level.height <= 0;
        grid.width = empty ? 0 : level.width;
        grid.height = empty ? 0 : level.height;
        grid.start = static_cast<u32>(level.start);
        grid.columns = 2 * (grid.width / RUN) + (grid.width % RUN ? 2 : 1);
        grid.bins = empty ? 0 : (grid.height + 1) * grid.columns;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 pixels = 0;
        u64 bins = 0;
        bool in_order = true;
        for (int l = 0; l < a.levels; l++) {
            in_order = in_order && (grids[l].width == 0 || grids[l].start == pixels);
            pixels += static_cast<i64>(grids[l].width) * grids[l].height;
            grids[l].first = static_cast<u32>(bins);
            bins += (grids[l].bins + 1 + 7) / 8 * 8; // so that eight at a time can be written
        }
        tiled = (!a.shapes || (in_order && pixels == a.pixels)) && bins <= work.capacity;
    }
    __syncthreads();
    return tiled;
}

// The samples of a level of a plane, where they go in the end.
static __device__ __forceinline__ Record *sorted_of(const Work &work, u32 plane, u32 level) {
    return work.sorted + (static_cast<u64>(plane) * work.level_count + level - work.first_level) * work.samples;
}

static __device__ __forceinline__ bool is_finite(float number) { return fabsf(number) <= 3.402823466e38f; }
static __device__ __forceinline__ bool is_finite(double number) { return fabs(number) <= 1.7976931348623157e308; }

constexpr u32 NO_BIN = 0xffffffffu;

static __device__ __forceinline__ int cell_of(float at) { return __float2int_rd(at); }
static __device__ __forceinline__ int cell_of(double at) { return __double2int_rd(at); }

// The bin of a sample in its level, if it takes part.
static __device__ __forceinline__ u32 bin_of(const Grid &grid, Real px, Real py) {
    // In floating point: what is NaN or too large for an integer is told so.
    const bool inside = px > -1 && py > -1 && px < grid.width && py < grid.height;
    const u32 column = cell_of(px) + 1, row = cell_of(py) + 1;
    return inside ? row * grid.columns + column / RUN + (column + RUN - 1) / RUN : NO_BIN;
}

// So many times a stride, in bytes. WIDE: whether that may be negative or need more than 32 bits.
template <class T> static __device__ __forceinline__ i64 steps(u32 times, i64 stride) {
#if WIDE
    return times * stride * static_cast<i64>(sizeof(T));
#else
    return static_cast<i64>(static_cast<u64>(times) * static_cast<u32>(stride * sizeof(T)));
#endif
}

template <class T> static __device__ __forceinline__ const T *moved(const T *pointer, i64 bytes) {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(pointer) + bytes);
}
