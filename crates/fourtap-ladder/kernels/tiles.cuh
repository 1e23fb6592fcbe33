// What the rungs share that bring the four neighbours of a sample, its tile, into shared memory: the walk of a warp
// over its rows, records of where samples lie, and the mixing of a tile.
//
// A warp takes GROUPS rows together, a group of VECTORS lanes each, and at each step one sample of every row: 2 KB of
// tiles. Where samples lie is worked out a CHUNK of a row at a time, each by one lane. A record is 16 bytes: the first
// neighbour's place in value in units of 16 bytes, then the weights of the second column, the first and the second row,
// in the order in which the row's lanes read their tile. Border cells are moved inside, so that the distances between
// the neighbours are the same for a whole level.
//
// PAIRED, who copies what: 1, consecutive lanes the consecutive pieces of a tile, so that neighbours that lie side by
// side in value are one access of twice the length; 0, a lane what it mixes itself.

constexpr int GROUPS = 32 / VECTORS;
constexpr int CHUNK = VECTORS > 8 ? VECTORS : 8;
constexpr int PER_LANE = CHUNK / VECTORS;
constexpr int CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
constexpr int TILE_BYTES = 4 * PIXEL_BYTES;
constexpr int STEP_BYTES = GROUPS * TILE_BYTES;
constexpr int CHUNK_BYTES = GROUPS * CHUNK * 16; // of records
constexpr int PIECES = 4 * VECTORS;              // of 16 bytes, of a tile

// The last chunk of a row may not be full: steps that have no sample copy and mix nothing.
__device__ __forceinline__ bool is_sample(int chunk, int slot) {
    return SAMPLES % CHUNK == 0 || chunk * CHUNK + slot < SAMPLES;
}

// From one lane for all, so that the compiler knows it to be the same in all.
__device__ __forceinline__ u32 warp_in_block() { return __shfl_sync(ALL, threadIdx.x / 32, 0); }

struct Lane {
    u32 number, group, vector;
    u32 turn; // the first neighbour its group reads, so that the groups that read together meet no bank twice

    __device__ __forceinline__ Lane() {
        number = threadIdx.x % 32;
        group = number / VECTORS;
        vector = number % VECTORS;
        turn = VECTORS < 8 ? group % (8 / VECTORS) : 0;
    }
};

// Where a group's record of a slot lies, given where its record of slot 0 does. In each slot the groups' order is
// turned another way: then no bank is met twice when the lanes of a group write their slots.
__device__ __forceinline__ u32 record_at(u32 first, int slot) {
    const u32 turned = (GROUPS >= 8 ? slot * (8 / VECTORS) : slot / (8 / GROUPS)) & (GROUPS - 1);
    return (first ^ turned * 16) + slot * (GROUPS * 16);
}

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border; 0 for NaN
    float second; // weight of the second neighbour
    int first;    // the first one, inside the level, and the second too unless there is but one
};

__device__ __forceinline__ Axis axis_of(float location, int length) {
    const float size = static_cast<float>(length), at = __fmaf_rn(location, size, -0.5f);
    Axis axis;
    axis.inside = at > -1.0f && at < size ? fminf(fminf(at + 1.0f, size - at), 1.0f) : 0.0f;
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    axis.first = min(static_cast<int>(clamped), max(length - 2, 0));
    axis.second = clamped - static_cast<float>(axis.first);
    return axis;
}

// The chunk whose records are written next: rows, samples, and what was read of them.
struct Ahead {
    u32 first;
    int chunk;
    u32 place; // of the image and head
    float2 locations[PER_LANE];
    float weights[PER_LANE];

    __device__ __forceinline__ u32 row(const Problem &p, const Lane &lane) const {
        return min(first + lane.group, row_count(p) - 1);
    }
    __device__ __forceinline__ void begin(const Problem &p, const Lane &lane, u32 rows_from) {
        first = rows_from;
        chunk = 0;
        place = static_cast<u32>((value_of_row(p, row(p, lane)) - p.value) / 16);
        load(p, lane);
    }
    // Past the last row that one again: a load that is always made is made at once.
    __device__ __forceinline__ void load(const Problem &p, const Lane &lane) {
        const u64 samples = static_cast<u64>(row(p, lane)) * SAMPLES;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const u64 sample = samples + min(chunk * CHUNK + i * VECTORS + static_cast<int>(lane.vector), SAMPLES - 1);
            locations[i] = __ldcs(p.locations + sample);
            weights[i] = __ldcs(p.weights + sample);
        }
    }
    __device__ __forceinline__ void write(const Problem &p, const Lane &lane, u32 records) const {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int slot = i * VECTORS + lane.vector;
            const Level level = p.levels[min(chunk * CHUNK + slot, SAMPLES - 1) / POINTS];
            const Axis x = axis_of(locations[i].x, level.width), y = axis_of(locations[i].y, level.height);
            const float weight = weights[i] * x.inside * y.inside, lower = weight * y.second, upper = weight - lower;
            const float column = lane.turn & 1 ? 1.0f - x.second : x.second;
            const float rows[2] = {lane.turn & 2 ? lower : upper, lane.turn & 2 ? upper : lower};
            const u32 pixel = level.start + y.first * level.width + x.first;
            store_shared(record_at(records + lane.group * 16, slot),
                         {place + pixel * (p.heads * VECTORS), __float_as_uint(column), __float_as_uint(rows[0]),
                          __float_as_uint(rows[1])});
        }
    }
    // To the next chunk; after the last one of a row, `stride` rows on.
    __device__ __forceinline__ void advance(const Problem &p, const Lane &lane, u32 stride) {
        if (chunk + 1 < CHUNKS) {
            chunk++;
            load(p, lane);
        } else {
            begin(p, lane, first + stride);
        }
    }
};

// The pieces a lane copies at each step: four of 16 bytes.
struct Pieces {
    static constexpr int CORNERS = !PAIRED ? 4 : PIECES > 32 ? 2 : 1; // that the pieces of a lane belong to
    const char *corners[CORNERS];                                     // of a tile at place 0, in the level chosen last

    static __device__ __forceinline__ u32 group(const Lane &lane, int k) {
        return PAIRED ? (k * 32 + lane.number) / PIECES : lane.group;
    }
    static __device__ __forceinline__ u32 corner(const Lane &lane, int k) {
        return PAIRED ? (k * 32 + lane.number) % PIECES / VECTORS : k ^ lane.turn;
    }
    // Where a piece lies among the tiles of a step.
    static __device__ __forceinline__ u32 target(const Lane &lane, int k) {
        return group(lane, k) * TILE_BYTES + corner(lane, k) * PIXEL_BYTES + lane.vector * 16;
    }
    // Before the copies of a slot, in the order of slots.
    __device__ __forceinline__ void choose_level(const Problem &p, const Lane &lane, int chunk, int slot) {
        const bool may_change = POINTS % CHUNK != 0 && (CHUNK % POINTS != 0 || slot % POINTS == 0);
        if (slot > 0 && !may_change) return;
        const Level level = p.levels[(chunk * CHUNK + slot) / POINTS];
        const u32 units = p.heads * VECTORS;
        const u32 right = level.width > 1 ? units : 0, down = level.height > 1 ? level.width * units : 0;
#pragma unroll
        for (int k = 0; k < CORNERS; k++) {
            const u32 from = (corner(lane, k) & 1 ? right : 0) + (corner(lane, k) & 2 ? down : 0) + lane.vector;
            corners[k] = p.value + static_cast<u64>(from) * 16;
            asm("" : "+l"(corners[k])); // one register pair, not a sum to be repeated at each copy
        }
    }
    // Where the four come from.
    __device__ __forceinline__ void find(const Lane &lane, u32 records, int slot, const char *(&sources)[4]) const {
        u32 places[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 record = record_at(records + group(lane, k) * 16, slot);
            if (k == 0 || group(lane, k) != group(lane, k - 1)) {
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(places[k]) : "r"(record) : "memory");
            } else {
                places[k] = places[k - 1];
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) sources[k] = corners[k % CORNERS] + static_cast<u64>(places[k]) * 16;
    }
};

// A tile in a lane's registers.
struct Tile {
    Words taps[4];
    Words record;

    // `tiles` of the step, 1 KB aligned.
    __device__ __forceinline__ void load(const Lane &lane, u32 tiles, u32 records, int slot) {
        const u32 first = lane.group * TILE_BYTES + lane.turn * PIXEL_BYTES + lane.vector * 16;
        record = load_shared(record_at(records + lane.group * 16, slot));
#pragma unroll
        for (int i = 0; i < 4; i++) taps[i] = load_shared(tiles + (first ^ i * PIXEL_BYTES));
    }
    __device__ __forceinline__ void add_to(float (&sums)[VECTOR]) const {
        const float second = __uint_as_float(record.y), first = 1.0f - second;
        const float rows[2] = {__uint_as_float(record.z), __uint_as_float(record.w)};
#pragma unroll
        for (int i = 0; i < 4; i++) add(sums, taps[i], (i & 1 ? second : first) * rows[i >> 1]);
    }
};
