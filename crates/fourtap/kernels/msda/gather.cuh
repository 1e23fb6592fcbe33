// What the kernels share that gather 16-byte vectors of channels.
//
// A *row* is one (image, query, head). A group of GROUP lanes works on one row; each lane owns 16 bytes of channels. The
// four neighbours of a sample are then four loads of 16 bytes a lane.
//
// Where a sample lies is worked out once, by one lane, and passed to the others through shared memory. On a border the
// cell is moved inside, with no weight on the neighbour that lies outside. So each sample reads four pixels, always valid
// ones, and no load is conditional.
//
// Rows are walked so that those in flight on a multiprocessor share pixels: heads a few at a time, images in turns, and
// where queries are pixels, in strips of neighbouring ones.
//
// Specialised by: VALUE, LOCATION, WEIGHT (types), CHANNELS, LEVELS, POINTS; PIXEL_UNITS (16-byte units from a pixel to
// the next); THREADS; PER_LANE (samples a lane works out at a time); SPLIT (groups of lanes that share the samples of a
// row); HEADS_TOGETHER (heads walked side by side: two 64-byte pixels of different line halves are read in one go);
// PHASES (parts of the levels that warps begin at, so that some wait for the large ones while others read the small
// ones from L1); DENSE (whether locations, weights and what belongs to a row are row-major without gaps).

typedef Element<VALUE> Value;
constexpr int ELEMENT_BYTES = sizeof(Value::Storage);
constexpr int VECTOR = 16 / ELEMENT_BYTES;
constexpr int VECTORS = CHANNELS / VECTOR;
static_assert(VECTORS * VECTOR == CHANNELS, "channels fill vectors");
__device__ constexpr int power_of_two(int least) { return least <= 1 ? 1 : 2 * power_of_two((least + 1) / 2); }
constexpr int LANES = power_of_two(VECTORS);
constexpr int GROUP = LANES * SPLIT;
constexpr int GROUPS = 32 / GROUP;
static_assert(GROUPS > 0, "a row fits a warp");
static_assert(POINTS % PER_LANE == 0, "the samples of a lane are of one level");
constexpr int SAMPLES = LEVELS * POINTS;
constexpr int CHUNK = GROUP * PER_LANE;
constexpr int CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
static_assert(CHUNKS % PHASES == 0, "each part has as many chunks");
constexpr bool WHOLE = SAMPLES % CHUNK == 0;
constexpr bool ONE_LEVEL = POINTS % CHUNK == 0; // a chunk never crosses levels
constexpr int WARPS = THREADS / 32;
constexpr int STRIP = 16;
constexpr u32 ALL = 0xffffffffu;
constexpr int LOCATION_BYTES = 2 * sizeof(Element<LOCATION>::Storage);
constexpr int WEIGHT_BYTES = sizeof(Element<WEIGHT>::Storage);

// Mirrored in src/cuda/msda/arguments.rs.
struct Schedule {
    u32 rows;  // in all
    u32 turn;  // rows of a turn, in which every block takes `share` consecutive ones
    u32 share; // a multiple of GROUPS
    u32 plane; // rows of the heads walked together of one image
    u32 planes_an_image;
    u32 order; // 0: queries as they come; 1: queries are the pixels of all levels, walked in strips
    Divisor by_plane, by_planes_an_image;
    u32 kept; // the levels kept in shared memory, a bit each; only of kernels that keep any
};

struct Sample {
    float x, y, weight;
};

// The samples a lane has loaded but not yet looked at.
struct Pending {
    u32 location[LOCATION_BYTES * PER_LANE / 4 > 0 ? LOCATION_BYTES * PER_LANE / 4 : 1];
    u32 weight[WEIGHT_BYTES * PER_LANE / 4 > 0 ? WEIGHT_BYTES * PER_LANE / 4 : 1];

    __device__ __forceinline__ void load(const char *locations, const char *weights) {
        Once<LOCATION_BYTES * PER_LANE>::load(location, locations);
        Once<WEIGHT_BYTES * PER_LANE>::load(weight, weights);
    }
    // Samples that add nothing.
    __device__ __forceinline__ void clear() {
        for (u32 &word : location) word = 0;
        for (u32 &word : weight) word = 0;
    }
    __device__ __forceinline__ Sample sample(int v) const {
        Sample s;
#if LOCATION == F32
        s.x = __uint_as_float(location[2 * v]);
        s.y = __uint_as_float(location[2 * v + 1]);
#else
        Element<LOCATION>::widen(location[v], s.x, s.y);
#endif
#if WEIGHT == F32
        s.weight = __uint_as_float(weight[v]);
#else
        float pair[2];
        Element<WEIGHT>::widen(weight[v / 2], pair[0], pair[1]);
        s.weight = pair[v % 2];
#endif
        return s;
    }
};

// Adding 2^23 towards zero leaves the whole part of a number below 2^23 in the low bits: a floor that costs one addition.
constexpr float SHIFT = 8388608.0f;
constexpr u32 SHIFT_BITS = 0x4b000000u;

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour
};

static __device__ __forceinline__ Axis axis(float location, float size) {
    const float at = __fmaf_rn(location, size, -0.5f);
    Axis a;
    // At most one of the two is below 1; NaN saturates to 0.
    a.inside = __saturatef(at + 1.0f) * __saturatef(size - at);
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    a.second = clamped - (first - SHIFT);
    a.first = __float_as_uint(first) - SHIFT_BITS;
    return a;
}

// Pixels from a row of a level to the next; 0 if it has but one, which then counts as its own next.
static __device__ __forceinline__ u32 rows_apart(Vector level) { return static_cast<int>(level.y) > 1 ? level.x : 0u; }

// The query walked as number `i`.
static __device__ __forceinline__ u32 query_of(u32 order, u32 i, const int4 *levels) {
    if (order == 0) {
        return i;
    }
    int holds = 0;
    u32 latest = 0;
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
        const u32 start = levels[l].w; // out of reach if the level is empty
        if (start <= i && start >= latest) {
            holds = l;
            latest = start;
        }
    }
    const int4 level = levels[holds];
    const u32 width = level.x, height = level.y, start = level.z;
    const u32 inside = i - start;
    if (level.x <= 0 || inside >= width * height) {
        return i; // levels from device memory that do not tile S: any order that takes each query once will do
    }
    const u32 strip = inside / (STRIP * height), rest = inside - strip * (STRIP * height), x = strip * STRIP;
    if (x + STRIP <= width) {
        return start + rest / STRIP * width + x + rest % STRIP;
    }
    const u32 narrow = width - x, y = rest / narrow;
    return start + y * width + x + (rest - y * narrow);
}

// The rows of one group of lanes, one after another.
struct Walk {
    const Schedule &schedule;
    u32 turn;  // first row of the turn
    u32 ahead; // how far the group is into what the block has of the turn
    u32 row;
    bool live; // whether there is such a row: once there is none, there will be none

    __device__ __forceinline__ Walk(const Schedule &schedule, u32 warp, u32 group) : schedule(schedule) {
        turn = 0;
        ahead = warp * GROUPS + group;
        settle();
    }
    __device__ __forceinline__ void settle() {
        const u32 first = blockIdx.x * schedule.share, room = min(schedule.share, schedule.turn - first);
        while (ahead >= room && turn < schedule.rows) {
            ahead -= room;
            turn += schedule.turn;
        }
        row = turn + first + ahead;
        live = turn < schedule.rows && row < schedule.rows;
    }
    __device__ __forceinline__ void advance() {
        ahead += WARPS * GROUPS;
        settle();
    }
};

// Where a group's record of a slot lies, given where its record of slot 0 does. In each slot the groups' order is turned
// another way, so that writing a column of records meets no bank of shared memory twice.
static __device__ __forceinline__ u32 record_at(u32 first, u32 slot) {
    constexpr u32 STEP = 8 / GROUP > 0 ? 8 / GROUP : 1;
    return (first ^ (slot / PER_LANE * STEP & (GROUPS - 1)) * 16) + slot * (GROUPS * 16);
}
