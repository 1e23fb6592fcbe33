// A12, 2x2 tile by TMA: the copy engine brings the four neighbours of a sample as one box of a tensor map.
//
// A warp takes GROUPS rows together, a group of VECTORS lanes each; a round is up to four samples of every row, 8 KB of
// tiles, and STAGES rounds are on their way. A lane works out where one sample lies and asks for its box itself; a
// barrier that expects the bytes of all boxes ends the round, then every group mixes its row's tiles. Zero fill does
// the padding: a box may begin a pixel before the level, and weights need no care at borders.
// No address arithmetic and no load instructions are left, but the engine starts a box only every ten cycles or so (24
// billion a second measured, on the whole device) and passes L1 by: the 23.7 million samples of seed-full take 1 ms or
// more.
//
// THREADS of a block; STAGES.

struct Maps {
    TensorMap of[LEVEL_CAPACITY];
};

constexpr int GROUPS = 32 / VECTORS;
constexpr int ROUND = VECTORS < 4 ? VECTORS : 4; // samples of a row
constexpr int ROUNDS = (SAMPLES + ROUND - 1) / ROUND;
constexpr int BOXES = GROUPS * ROUND;
constexpr int BOX_BYTES = 4 * PIXEL_BYTES;
constexpr int TILES_BYTES = BOXES * BOX_BYTES, RECORDS_BYTES = BOXES * 16;
constexpr int WARPS = THREADS / 32;

// The round that is asked for next: rows, samples, and what was read of the lane's own sample.
struct Ahead {
    u32 first;
    int round;
    u32 row;
    float2 location;
    float weight;

    __device__ __forceinline__ void load(const Problem &p, u32 group, u32 vector) {
        row = min(first + group, row_count(p) - 1); // past the last row that one again
        const u64 sample = static_cast<u64>(row) * SAMPLES + min(round * ROUND + static_cast<int>(vector), SAMPLES - 1);
        location = __ldcs(p.locations + sample);
        weight = __ldcs(p.weights + sample);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    ladder_a12(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
    // Of each warp and stage the tiles, then the records, then a barrier.
    extern __shared__ __align__(1024) char memory[];
    const u32 lane = threadIdx.x % 32, group = lane / VECTORS, vector = lane % VECTORS;
    const u32 warp = __shfl_sync(ALL, threadIdx.x / 32, 0); // the same in all lanes, as the compiler then knows
    const u32 start = shared_address(memory), tiles = start + warp * (STAGES * TILES_BYTES);
    const u32 records = start + WARPS * (STAGES * TILES_BYTES) + warp * (STAGES * RECORDS_BYTES);
    const u32 barriers = start + WARPS * (STAGES * (TILES_BYTES + RECORDS_BYTES)) + warp * (STAGES * 8);
    // The neighbour that a group reads first, so that the groups that read together meet no bank twice.
    const u32 turn = VECTORS < 8 ? group % (8 / VECTORS) : 0;
    const u32 rows = row_count(p), stride = gridDim.x * (WARPS * GROUPS);
    u32 first = (blockIdx.x * WARPS + warp) * GROUPS;
    if (first >= rows) return;
    if (lane == 0) {
        for (int stage = 0; stage < STAGES; stage++) make_barrier(barriers + stage * 8, 1);
        publish_barriers();
    }
    __syncwarp();

    Ahead ahead = {first, 0};
    ahead.load(p, group, vector);
    // Asks for the boxes of a round, and reads what the next one needs.
    const auto fetch = [&](u32 stage) {
        if (ahead.first >= rows) return;
        const u32 barrier = barriers + stage * 8;
        const int sample = ahead.round * ROUND + vector;
        const bool takes = vector < ROUND && sample < SAMPLES;
        const int number = min(sample, SAMPLES - 1) / POINTS;
        const float width = static_cast<float>(p.levels[number].width);
        const float height = static_cast<float>(p.levels[number].height);
        float px = __fmaf_rn(ahead.location.x, width, -0.5f), py = __fmaf_rn(ahead.location.y, height, -0.5f);
        float weight = ahead.weight;
        // Where a sample takes no part, a box that exists, with weight zero. NaN and infinity fail too.
        if (!(px > -1.0f && py > -1.0f && px < width && py < height)) px = py = weight = 0.0f;
        const float left = floorf(px), top = floorf(py), lower = (py - top) * weight, upper = weight - lower;
        const float second = px - left, first = 1.0f - second;
        const u32 box = group * ROUND + vector;
        if (takes) {
            store_shared(records + stage * RECORDS_BYTES + box * 16,
                         {__float_as_uint(turn & 1 ? second : first), __float_as_uint(turn & 1 ? first : second),
                          __float_as_uint(turn & 2 ? lower : upper), __float_as_uint(turn & 2 ? upper : lower)});
        }
        const u32 count = __popc(__ballot_sync(ALL, takes));
        if (lane == 0) expect_bytes(barrier, count * BOX_BYTES);
        __syncwarp();
        if (takes) {
            const int head = ahead.row % p.heads, image = ahead.row / p.heads / p.queries;
            load_box(tiles + stage * TILES_BYTES + box * BOX_BYTES, &maps.of[number], barrier, head * CHANNELS,
                     static_cast<int>(left), static_cast<int>(top), image);
        }
        if (++ahead.round == ROUNDS) {
            ahead.round = 0;
            ahead.first += stride;
        }
        ahead.load(p, group, vector);
    };
    for (u32 stage = 0; stage < STAGES; stage++) fetch(stage);

    const u32 mine = group * (ROUND * BOX_BYTES) + turn * PIXEL_BYTES + vector * 16;
    u32 stage = 0, parity = 0;
#pragma unroll 1
    for (; first < rows; first += stride) {
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round++) {
            wait_for_phase(barriers + stage * 8, parity);
#pragma unroll
            for (int i = 0; i < ROUND; i++) {
                if (SAMPLES % ROUND != 0 && round * ROUND + i >= SAMPLES) break;
                const Words record = load_shared(records + stage * RECORDS_BYTES + (group * ROUND + i) * 16);
                Words taps[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    taps[k] = load_shared(tiles + stage * TILES_BYTES + i * BOX_BYTES + (mine ^ k * PIXEL_BYTES));
                }
                const float columns[2] = {__uint_as_float(record.x), __uint_as_float(record.y)};
                const float lines[2] = {__uint_as_float(record.z), __uint_as_float(record.w)};
#pragma unroll
                for (int k = 0; k < 4; k++) add(sums, taps[k], columns[k & 1] * lines[k >> 1]);
            }
            __syncwarp(); // all have read the stage
            fetch(stage);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        const u32 row = first + group;
        if (row < rows) store_sums(p.out + (static_cast<u64>(row) * VECTORS + vector) * 16, sums);
    }
}
