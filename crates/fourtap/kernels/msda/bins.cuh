// How grad_value is computed without scattering: samples are sorted by the pixels they touch, and each pixel then sums
// what belongs to it, in one fixed order.
//
// The *cell* of a sample is the square of pixel centres it lies in: floor(py) and floor(px), from -1 on. A *run* is
// eight pixels of a row of a level. Samples are sorted into *bins* of cells of one cell row: the one cell that touches
// two neighbouring runs, then the seven that touch one run only, and so on. The samples of a run are then those of
// three consecutive bins of the cell row above it, and of three of the cell row below.
//
// A *plane* is one (image, head). The samples of each level of a plane are cut into chunks. Bins are counted a chunk
// (backward_count.cu), places are given out to bins and chunks in order (backward_scan.cu), and samples are written to
// theirs (backward_place.cu): equal inputs always make the same list.

constexpr int RUN = 8;
constexpr u32 ALL = 0xffffffffu;

typedef Element<VALUE>::Real Real;

// A sample as its pixels need it: in pixels of its level.
struct __align__(4 * sizeof(Real)) Record {
    Real x, y, weight;
    u32 query;
};

// Mirrored in src/cuda/msda/arguments.rs.
struct Work {
    u32 *counts;    // [planes][chunks][capacity]: samples a bin and chunk, then the places of their first ones
    u32 *starts;    // [planes][capacity]: the places of bins' first samples
    Record *sorted; // [planes][level_count][samples]
    u32 *largest;   // [planes][levels]: the bits of the largest finite weight
    u32 *next;      // the next piece of work
    u32 first_plane, planes; // what is sorted now
    u32 first_level, level_count;
    u32 chunks;
    u32 chunk;    // samples of a chunk, at most CHUNK
    u32 samples;  // of a level of a plane, less than 2^31
    u32 capacity; // bins of all levels there is room for, a multiple of four
};

struct Grid {
    int width, height;
    u32 start;   // its first pixel
    u32 columns; // bins a cell row
    u32 bins;
    u32 first; // its first bin, a multiple of four; after its last comes one more start, the end
    u32 rows;   // of an item, see runs.cuh
    u32 across; // items across
    u32 items;  // of a plane
};

constexpr int RUN_WARPS = 4; // runs a block sums at a time
constexpr int BLOCK = 32;    // channels a warp sums at a time
constexpr u32 USUAL = 64;    // samples a warp should find in an item, if they are spread evenly

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
        grid.across = (grid.width + RUN * RUN_WARPS - 1) / (RUN * RUN_WARPS);
        const u64 pixels = static_cast<u64>(grid.width) * grid.height;
        grid.rows = static_cast<u32>(max(u64(1), min(u64(4), USUAL * pixels / (u64(RUN) * work.samples))));
        grid.items = (grid.height + grid.rows - 1) / grid.rows * grid.across * ((a.channels + BLOCK - 1) / BLOCK);
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
            if (static_cast<u32>(l) - work.first_level >= work.level_count) grids[l].bins = grids[l].items = 0;
            bins += (grids[l].bins + 1 + 3) / 4 * 4; // so that four at a time can be read
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

constexpr u32 NO_BIN = 0xffffffffu;

// The bin of a sample in its level, if it takes part.
static __device__ __forceinline__ u32 bin_of(const Grid &grid, Real px, Real py) {
    // In floating point: what is NaN or too large for an integer fails here.
    if (!(px > -1 && py > -1 && px < grid.width && py < grid.height)) {
        return NO_BIN;
    }
    const u32 column = static_cast<int>(whole(px)) + 1, row = static_cast<int>(whole(py)) + 1;
    return row * grid.columns + 2 * (column / RUN) + (column % RUN ? 1 : 0);
}

// Samples of a chunk, at most: so many the lanes of a block can hold.
constexpr u32 CHUNK = 16384 / sizeof(Real);

// Bins that are sorted into at a time. A level with more is gone through several times.
constexpr u32 BAND = 6016; // as many as leave room for the tables of 16 warps in 192 KiB
constexpr int COUNT_WARPS = 8; // of a block that counts

// What a block sorts: the samples of one chunk of one level of one plane that fall into one band of bins.
struct Job {
    u32 plane, chunk, level, band;
};

static __device__ __forceinline__ u32 bands_of(const Grid &grid) { return (grid.bins + BAND - 1) / BAND; }

static __device__ __forceinline__ u32 bands_of_all(const Arguments &a, const Grid *grids) {
    u32 bands = 0;
    for (int l = 0; l < a.levels; l++) bands += bands_of(grids[l]);
    return bands;
}

// Neighbouring jobs read neighbouring memory, and write to few planes at a time, which L2 holds.
static __device__ __forceinline__ Job job_of(u64 number, u32 bands, const Work &work, const Grid *grids) {
    Job job;
    job.band = number % bands;
    number /= bands;
    job.plane = number / work.chunks;
    job.chunk = number - static_cast<u64>(job.plane) * work.chunks;
    job.level = 0;
    while (job.band >= bands_of(grids[job.level])) job.band -= bands_of(grids[job.level++]);
    return job;
}

// A lane's way through the samples of a level of a plane, 32 at a time.
struct Samples {
    u32 index, end;
    u32 query, point;
    u32 query_step, point_step, points;

    // Of `part` of a chunk.
    __device__ __forceinline__ Samples(const Arguments &a, const Work &work, u32 chunk, u32 part, u32 parts, u32 lane) {
        points = a.points;
        const u32 each = (work.chunk + 32 * parts - 1) / (32 * parts) * 32, first = chunk * work.chunk + part * each;
        index = first + lane;
        end = min(min(work.samples, (chunk + 1) * work.chunk), first + each);
        query = index / points;
        point = index - query * points;
        query_step = 32 / points;
        point_step = 32 - query_step * points;
    }
    __device__ __forceinline__ void advance() {
        index += 32;
        query += query_step;
        point += point_step;
        if (point >= points) {
            point -= points;
            query++;
        }
    }
};

// So many times a stride, in bytes. WIDE: whether that may be negative or need more than 32 bits.
template <class T> static __device__ __forceinline__ i64 steps(u32 times, i64 stride) {
#if WIDE
    return times * stride * static_cast<i64>(sizeof(T));
#else
    return static_cast<i64>(static_cast<u64>(times) * static_cast<u32>(stride * sizeof(T)));
#endif
}

// The same for two strides, the sum of which needs no more than 32 bits either.
template <class T> static __device__ __forceinline__ i64 steps(u32 times, i64 stride, u32 times_too, i64 stride_too) {
#if WIDE
    return (times * stride + times_too * stride_too) * static_cast<i64>(sizeof(T));
#else
    return times * static_cast<u32>(stride * sizeof(T)) + times_too * static_cast<u32>(stride_too * sizeof(T));
#endif
}

template <class T> static __device__ __forceinline__ const T *moved(const T *pointer, i64 bytes) {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(pointer) + bytes);
}

typedef Element<LOCATION>::Storage Location;

// PAIRED: whether x and y of a location lie side by side, aligned to their pair.
static __device__ __forceinline__ void load_location(const Location *at, i64 by_axis, Real &x, Real &y) {
#if PAIRED
    struct __align__(2 * sizeof(Location)) Pair {
        Location x, y;
    };
    const Pair pair = *reinterpret_cast<const Pair *>(at);
    x = Element<LOCATION>::widen(pair.x);
    y = Element<LOCATION>::widen(pair.y);
#else
    x = Element<LOCATION>::widen(at[0]);
    y = Element<LOCATION>::widen(at[by_axis]);
#endif
}

// In pixels.
static __device__ __forceinline__ Real in_pixels(Real location, int size) {
    return fused(location, static_cast<Real>(size), Real(-0.5));
}
