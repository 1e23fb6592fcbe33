// What the kernels on 16-byte vectors of channels share: which rows a block takes, and the geometry of samples.
//
// A *row* is one (image, query, head). A group of GROUP lanes works on it; each lane owns 16 bytes of channels, so a
// sample's four neighbours are four 16-byte loads per lane. One lane computes a sample's geometry and shares it. A
// cell on a border moves inside, with weight zero outside: each sample reads four valid pixels without branches. Rows
// in flight on a multiprocessor share pixels: few heads at a time, images in turns, queries that are pixels in
// strips.
//
// VALUE, LOCATION, WEIGHT: types. CHANNELS, LEVELS, POINTS, THREADS. PIXEL_UNITS: 16-byte units between pixels.
// PER_LANE: samples a lane computes at a time. SPLIT: groups that share a row's samples. HEADS_TOGETHER: heads walked
// side by side. PHASES: parts of the levels at which warps begin. DENSE: whether rows are row-major without gaps.
// PROJECTED (see projection.cuh) adds TURNS, reference points of a level; NARROW, whether all rows lie within 2^32
// bytes; EXACT; and for uneven levels FIRST_SAMPLES and SAMPLE_COUNT, POINTS then being a divisor of all their
// numbers.

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
#ifdef FIRST_SAMPLES
constexpr int SAMPLES = SAMPLE_COUNT;
#else
constexpr int SAMPLES = LEVELS * POINTS;
#endif
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

// The level of a sample.
static __device__ __forceinline__ u32 level_number(u32 sample) {
#ifdef FIRST_SAMPLES
    constexpr u32 first[LEVELS] = {FIRST_SAMPLES};
    u32 level = 0;
#pragma unroll
    for (int l = 1; l < LEVELS; l++) level += sample >= first[l];
    return level;
#else
    return sample / POINTS;
#endif
}

struct Sample {
    float x, y; // in pixels
    float weight;
};

static __device__ __forceinline__ float in_pixels(float location, float size) { return __fmaf_rn(location, size, -0.5f); }

#if PROJECTED
constexpr int REFERENCE_NUMBERS = BOXES ? 4 : 2;
constexpr int REFERENCE_BYTES = sizeof(Element<REFERENCE>::Storage);
constexpr int REFERENCES = TURNS > 1 ? PER_LANE : 1; // of the samples of a lane
constexpr u32 NO_LOGIT = WEIGHT == F32 ? 0xff800000u : WEIGHT == F16 ? 0xfc00fc00u : 0xff80ff80u; // minus infinity

// EXACT: whether results are kept in f32, so that small weights shall have all their digits.
static __device__ __forceinline__ float power_of_gather(float logit, float largest) {
#if EXACT
    return expf(logit - largest);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"((logit - largest) * 1.4426950408889634f));
    return result;
#endif
}

// The logits of a lane's samples of a row, all chunks, as they are stored.
struct Logits {
    static constexpr int WORDS = WEIGHT_BYTES * PER_LANE / 4 > 0 ? WEIGHT_BYTES * PER_LANE / 4 : 1;
    u32 words[CHUNKS][WORDS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
            for (u32 &word : words[c]) word = NO_LOGIT;
        }
    }
    // `first`: the lane's first sample of a chunk.
    __device__ __forceinline__ void load(const char *row, u32 first) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            if (WHOLE || c * CHUNK + first < SAMPLES) {
                Once<WEIGHT_BYTES * PER_LANE>::load(words[c], row + (c * CHUNK + first) * WEIGHT_BYTES);
            }
        }
    }
    __device__ __forceinline__ float logit(int c, int v) const {
#if WEIGHT == F32
        return __uint_as_float(words[c][v]);
#else
        float pair[2];
        Element<WEIGHT>::widen(words[c][v / 2], pair[0], pair[1]);
        return pair[v % 2];
#endif
    }
};

// Their softmax. All lanes of a group call it together.
struct Weights {
    float of[CHUNKS][PER_LANE];
    Statistics<float> statistics;

    __device__ __forceinline__ Weights() {}
    __device__ __forceinline__ Weights(const Logits &logits) {
        float largest = logits.logit(0, 0);
#pragma unroll
        for (int i = 1; i < CHUNKS * PER_LANE; i++) largest = fmaxf(largest, logits.logit(i / PER_LANE, i % PER_LANE));
#pragma unroll
        for (int other = 1; other < GROUP; other *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS * PER_LANE; i++) {
            float &weight = of[i / PER_LANE][i % PER_LANE];
            weight = power_of_gather(logits.logit(i / PER_LANE, i % PER_LANE), largest);
            sum += weight;
        }
#pragma unroll
        for (int other = 1; other < GROUP; other *= 2) sum += __shfl_xor_sync(ALL, sum, other);
        const float inverse = 1.0f / sum;
        statistics = {largest, inverse};
#pragma unroll
        for (int i = 0; i < CHUNKS * PER_LANE; i++) of[i / PER_LANE][i % PER_LANE] *= inverse;
    }
    // Without indexing registers.
    __device__ __forceinline__ float at(int chunk, int v) const {
        float weight = of[0][v];
#pragma unroll
        for (int c = 1; c < CHUNKS; c++) weight = chunk == c ? of[c][v] : weight;
        return weight;
    }
};

// Bytes from the first row of a tensor to another, which is not before it.
static __device__ __forceinline__ u64 to_row(const i64 *strides, u32 n, u32 q, u32 m, u32 bytes) {
#if NARROW
    const u32 elements = n * static_cast<u32>(strides[0]) + q * static_cast<u32>(strides[1]) + m * static_cast<u32>(strides[2]);
    return static_cast<u64>(elements) * bytes;
#else
    return static_cast<u64>(n * strides[0] + q * strides[1] + m * strides[2]) * bytes;
#endif
}

// The same to the reference points of a row.
static __device__ __forceinline__ u64 to_references(const Projection &p, u32 n, u32 q) {
#if NARROW
    return static_cast<u64>(n * static_cast<u32>(p.strides[0]) + q * static_cast<u32>(p.strides[1])) * REFERENCE_BYTES;
#else
    return static_cast<u64>(n * p.strides[0] + q * p.strides[1]) * REFERENCE_BYTES;
#endif
}

// From the reference points of a row to those of a sample, in bytes.
static __device__ __forceinline__ i64 to_reference(const Projection &p, u32 sample) {
    const u32 level = level_number(sample);
    i64 elements = level * p.strides[2];
    if (TURNS > 1) elements += (sample - p.first[level]) % TURNS * p.strides[3];
    return elements * REFERENCE_BYTES;
}

// Data that other lanes and heads read, too.
template <int BYTES> static __device__ __forceinline__ void load_reference(u32 *words, const char *address) {
    if (BYTES == 4) asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(words[0]) : "l"(address));
    if (BYTES == 8) asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[BYTES / 8]) : "l"(address));
    if (BYTES == 16) {
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[BYTES / 16]), "=r"(words[BYTES / 8]), "=r"(words[BYTES * 3 / 16])
                     : "l"(address));
    }
}

// The samples a lane has loaded but not yet looked at; not their logits.
struct Pending {
    static constexpr int OF_REFERENCE = REFERENCE_NUMBERS * REFERENCE_BYTES;
    u32 offset[LOCATION_BYTES * PER_LANE / 4];
    u32 reference[REFERENCES][OF_REFERENCE / 4];

    // `references`: those of the row.
    __device__ __forceinline__ void load(const char *offsets, const char *references, const Projection &p, u32 sample) {
        Once<LOCATION_BYTES * PER_LANE>::load(offset, offsets);
#pragma unroll
        for (int v = 0; v < REFERENCES; v++) load_reference<OF_REFERENCE>(reference[v], references + to_reference(p, sample + v));
    }
    // Samples that are somewhere.
    __device__ __forceinline__ void clear() {
        for (u32 &word : offset) word = 0;
        for (auto &words : reference) {
            for (u32 &word : words) word = 0;
        }
    }
    __device__ __forceinline__ float reference_number(int v, int i) const {
        const u32(&words)[OF_REFERENCE / 4] = reference[REFERENCES > 1 ? v : 0];
#if REFERENCE == F32
        return __uint_as_float(words[i]);
#else
        float pair[2];
        Element<REFERENCE>::widen(words[i / 2], pair[0], pair[1]);
        return pair[i % 2];
#endif
    }
    __device__ __forceinline__ void offset_of(int v, float &x, float &y) const {
#if LOCATION == F32
        x = __uint_as_float(offset[2 * v]);
        y = __uint_as_float(offset[2 * v + 1]);
#else
        Element<LOCATION>::widen(offset[v], x, y);
#endif
    }
    // Pixels that an offset of 1 is, by axis.
    __device__ __forceinline__ float scale(int v, int axis, float size, float factor) const {
        return BOXES ? pixels_of_offset(reference_number(v, BOXES ? 2 + axis : 0), size, factor) : 1.0f;
    }
    __device__ __forceinline__ Sample sample(int v, float width, float height, float factor, float weight) const {
        float x, y;
        offset_of(v, x, y);
        if (BOXES) {
            x = rounded_product(x, scale(v, 0, width, factor));
            y = rounded_product(y, scale(v, 1, height, factor));
        }
        return {place_at(reference_number(v, 0), x, width), place_at(reference_number(v, 1), y, height), weight};
    }
};
#else

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
    __device__ __forceinline__ Sample sample(int v, float width, float height) const {
        Sample s;
#if LOCATION == F32
        s.x = __uint_as_float(location[2 * v]);
        s.y = __uint_as_float(location[2 * v + 1]);
#else
        Element<LOCATION>::widen(location[v], s.x, s.y);
#endif
        s.x = in_pixels(s.x, width);
        s.y = in_pixels(s.y, height);
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
#endif

#if PROJECTED
#define PROJECTION_PARAMETER , const Projection &projection
#define PROJECTION_ARGUMENT , projection
#else
#define PROJECTION_PARAMETER
#define PROJECTION_ARGUMENT
#endif
// Of boxes, on a level.
#if PROJECTED && BOXES
#define BOX_FACTOR(level) static_cast<float>(projection.factors[level])
#else
#define BOX_FACTOR(level) 0.0f
#endif

// A sample of a row, read by itself.
static __device__ __forceinline__ Sample sample_of(const char *row_locations, const char *row_weights, const char *row_references,
                                                   int sample, float width, float height PROJECTION_PARAMETER) {
#if PROJECTED
    const auto *const logits = reinterpret_cast<const Element<WEIGHT>::Storage *>(row_weights);
    const auto *const offset = reinterpret_cast<const Element<LOCATION>::Storage *>(row_locations) + 2 * sample;
    const auto *const reference =
        reinterpret_cast<const Element<REFERENCE>::Storage *>(row_references + to_reference(projection, sample));
    float x = Element<LOCATION>::widen(offset[0]), y = Element<LOCATION>::widen(offset[1]);
    if (BOXES) {
        const float factor = static_cast<float>(projection.factors[level_number(sample)]);
        x = rounded_product(x, pixels_of_offset(float(Element<REFERENCE>::widen(reference[BOXES ? 2 : 0])), width, factor));
        y = rounded_product(y, pixels_of_offset(float(Element<REFERENCE>::widen(reference[BOXES ? 3 : 0])), height, factor));
    }
    const Statistics<float> statistics = statistics_of<float>(logits, 1, SAMPLES);
    return {place_at(float(Element<REFERENCE>::widen(reference[0])), x, width),
            place_at(float(Element<REFERENCE>::widen(reference[1])), y, height),
            statistics.weight(Element<WEIGHT>::widen(logits[sample]))};
#else
    const auto *location = reinterpret_cast<const Element<LOCATION>::Storage *>(row_locations) + 2 * sample;
    return {in_pixels(Element<LOCATION>::widen(location[0]), width), in_pixels(Element<LOCATION>::widen(location[1]), height),
            Element<WEIGHT>::widen(reinterpret_cast<const Element<WEIGHT>::Storage *>(row_weights)[sample])};
#endif
}

// Adding 2^23 towards zero leaves the whole part of a number below 2^23 in the low bits: a floor that costs one addition.
constexpr float SHIFT = 8388608.0f;
constexpr u32 SHIFT_BITS = 0x4b000000u;

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour
};

// Of a place in pixels.
static __device__ __forceinline__ Axis axis(float at, float size) {
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

// Where walking meets a level: at its first pixel; out of reach if another one begins inside it, as those from device memory
// may: its pixels would not be its own.
static __device__ __forceinline__ int walked_from(const Arguments &a, const Schedule &schedule, const Level &level) {
    const i64 end = level.start + static_cast<i64>(level.width) * level.height;
#pragma unroll 1
    for (int other = 0; schedule.order && a.shapes && other < LEVELS; other++) {
        const Level begins = level_of(a, other);
        if (begins.width > 0 && begins.start > level.start && begins.start < end) return -1;
    }
    return static_cast<int>(level.start);
}

// The query walked as number `i`.
static __device__ __forceinline__ u32 query_of(u32 order, u32 i, const int4 *levels) {
    if (order == 0) {
        return i;
    }
    int holds = -1;
    u32 latest = 0;
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
        const u32 start = levels[l].w; // out of reach if the level is empty, or has pixels of another
        if (start <= i && start >= latest) {
            holds = l;
            latest = start;
        }
    }
    if (holds < 0) return i;
    const int4 level = levels[holds];
    const u32 width = level.x, height = level.y, start = level.z;
    const u32 inside = i - start;
    // Levels from device memory that do not tile S: any order that takes each query once will do.
    if (inside >= width * height) return i;
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
