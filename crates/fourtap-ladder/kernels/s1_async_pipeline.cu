// Suite 1, async pipeline: the next step's coordinates and weights come by cp.async while this one's neighbours are
// added.
//
// A warp takes GROUPS rows at a time, TURNS times over, and fetches for itself: of each row STEP points of one level
// into one of two buffers in shared memory, always one step ahead, also across rows. Neighbours are gathered as in A3.
// A step then never waits for coordinates, which come from DRAM (A3 waits twice a level); a warp needs no block
// barrier, only to wait for its own copies. Should gain 5 %: other warps hide most of that waiting already. L1 loses
// the buffers, about 40 KB.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; TURNS: rows that a group of lanes takes one after another.

constexpr int GROUPS = 32 / VECTORS, WARPS = THREADS / 32;
constexpr int STEP = largest_divisor(POINTS, 8);
constexpr int STEPS = SAMPLES / STEP;
constexpr int READ = STEP % 4 == 0 ? 4 : STEP % 2 == 0 ? 2 : 1;
constexpr int UNROLLED = largest_divisor(STEP / READ, 4 / READ);

struct __align__(16) Stage {
    float2 locations[GROUPS][STEP];
    float weights[GROUPS][STEP];
};

template <int BYTES> __device__ __forceinline__ void copy_piece(u32 target, const char *source) {
    if constexpr (BYTES == 16) {
        copy_async(target, source);
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(source), "n"(BYTES) : "memory");
    }
}

// What a lane fetches of its warp's coordinates (ITEM 8) or weights (4), in pieces as large as their places allow.
template <int ITEM> struct Pieces {
    static constexpr int BYTES = STEP * ITEM, PIECE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4;
    static constexpr int PIECES = BYTES / PIECE, ALL_PIECES = GROUPS * PIECES, COUNT = (ALL_PIECES + 31) / 32;
    const char *from[COUNT];

    __device__ __forceinline__ void start(const void *source, u64 first_row, u64 last_row) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const u32 i = k * 32 + threadIdx.x % 32;
            const u64 row = min(first_row + i / PIECES, last_row);
            from[k] = static_cast<const char *>(source) + row * (SAMPLES * ITEM) + i % PIECES * PIECE;
        }
    }
    __device__ __forceinline__ void fetch(void *target) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const u32 i = k * 32 + threadIdx.x % 32;
            if (i < ALL_PIECES) copy_piece<PIECE>(shared_address(target) + i * PIECE, from[k]);
            from[k] += BYTES;
        }
    }
};

KERNEL ladder_s1_async(const __grid_constant__ Problem p) {
    __shared__ Stage stages[WARPS][2];
    const u32 warp = threadIdx.x / 32, group = threadIdx.x % 32 / VECTORS, rows = row_count(p);
    const u32 stride = p.heads * PIXEL_BYTES;
    u64 first_row = (static_cast<u64>(blockIdx.x) * TURNS * WARPS + warp) * GROUPS;
    Pieces<8> locations;
    Pieces<4> weights;
    const auto start = [&](u64 row) {
        locations.start(p.locations, row, rows - 1);
        weights.start(p.weights, row, rows - 1);
    };
    const auto fetch = [&](Stage &stage) {
        locations.fetch(stage.locations);
        weights.fetch(stage.weights);
    };
    start(first_row);
    fetch(stages[warp][0]);
    commit_copies();
    int stage = 0;
#pragma unroll 1
    for (int turn = 0; turn < TURNS && first_row < rows; turn++, first_row += WARPS * GROUPS) {
        const Place place = place_of(p, first_row * VECTORS + threadIdx.x % 32);
        const char *value = value_of_row(p, place.row) + 16 * place.vector;
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int step = 0; step < STEPS; step++, stage ^= 1) {
            __syncwarp(); // all lanes are done with what the next step overwrites
            if (step + 1 == STEPS) start(first_row + WARPS * GROUPS);
            if (step + 1 < STEPS || turn + 1 < TURNS) fetch(stages[warp][stage ^ 1]);
            commit_copies();
            wait_for_copies<1>();
            __syncwarp();
            const Level level = p.levels[step * STEP / POINTS];
            const Corners corners = corners_of(value, stride, level);
            const Stage &current = stages[warp][stage];
#pragma unroll UNROLLED
            for (int point = 0; point < STEP; point += READ) {
                const Samples<READ> samples(&current.locations[group][point], &current.weights[group][point]);
#pragma unroll
                for (int i = 0; i < READ; i++) {
                    const Record record = samples.record(i, level);
                    add_sample(sums, load_taps(corners, record.pixel, stride), record);
                }
            }
        }
        if (place.live) store_sums(out_of(p, place), sums);
    }
    wait_for_copies<0>();
}
