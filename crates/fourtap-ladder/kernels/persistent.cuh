// What persistent rungs share: how a warp works out where samples lie, and mixes pixels that lie in shared memory
// (kept) or are read through the caches (far).
//
// LANES lanes share the samples of a row. A lane works out PER_LANE samples of a level at a time and passes 16 bytes on
// each through shared memory: the first neighbour's place, the weight of the second column (negative: the second column
// is the left one), and the weights of the upper and lower row, attention weight included. Cells on a border are moved
// inside, so that all four neighbours exist, and the next sample's neighbours are on their way while this one's are
// added.
//
// THREADS: of a block; HEADS: M, so that the way to a right-hand neighbour is a constant; NARROW: some level is one
// pixel wide, and is then its own neighbour; KEPT_CHANNELS: of a pixel in shared memory. Sides of levels are below
// 2^23.

[[maybe_unused]] constexpr int WARPS = THREADS / 32;
constexpr int GROUPS = 32 / LANES;      // rows a warp works on
constexpr int CHUNK = LANES * PER_LANE; // samples of a row worked out at a time, all of one level
constexpr int CHUNKS_A_LEVEL = (POINTS + CHUNK - 1) / CHUNK;
constexpr int CHUNKS = LEVELS * CHUNKS_A_LEVEL;
[[maybe_unused]] constexpr int STEPS = CHUNKS_A_LEVEL == 1 && POINTS < CHUNK ? POINTS : CHUNK;
constexpr bool WHOLE = POINTS % CHUNK == 0;
static_assert(PER_LANE == 1 || WHOLE, "only lanes of one sample may be left without");
constexpr u32 PIXEL_UNITS = HEADS * VECTORS; // 16-byte units from a pixel to the next
constexpr u32 KEPT_BYTES = 2 * KEPT_CHANNELS;
[[maybe_unused]] constexpr u32 CONTROL_BYTES = 1024;
[[maybe_unused]] constexpr u32 RECORD_BYTES = 32 * PER_LANE * 16; // of a warp

// Adding 2^23 towards zero leaves the whole part of a number below 2^23 in the low bits.
constexpr float SHIFT = 8388608.0f;
constexpr u32 SHIFT_BITS = 0x4b000000u;

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border, 0 for NaN
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour
};

__device__ __forceinline__ Axis axis_of(float location, float size) {
    const float at = __fmaf_rn(location, size, -0.5f);
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    return {__saturatef(at + 1.0f) * __saturatef(size - at), clamped - (first - SHIFT),
            __float_as_uint(first) - SHIFT_BITS};
}

// How a rung that has no wishes reads: pixels through L1, what is needed once past it.
struct Plain {
    __device__ __forceinline__ Words pixel(const char *address) const { return load(address); }
    __device__ __forceinline__ Words once16(const void *address) const {
        return load_once(static_cast<const char *>(address));
    }
    __device__ __forceinline__ float2 once8(const void *address) const {
        float2 v;
        asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(address));
        return v;
    }
    __device__ __forceinline__ float once4(const void *address) const {
        float v;
        asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(address));
        return v;
    }
};

// The samples of a lane in one chunk.
struct Samples {
    float2 locations[PER_LANE];
    float weights[PER_LANE];

    template <typename Reader>
    __device__ __forceinline__ void load(const Problem &p, u32 row, int chunk, u32 in_group, const Reader &reader) {
        const u32 point = chunk % CHUNKS_A_LEVEL * CHUNK + in_group * PER_LANE;
        const u64 sample = static_cast<u64>(row) * SAMPLES + (chunk / CHUNKS_A_LEVEL * POINTS + point);
        if constexpr (PER_LANE == 2) {
            const Words both = reader.once16(p.locations + sample);
            locations[0] = make_float2(__uint_as_float(both.x), __uint_as_float(both.y));
            locations[1] = make_float2(__uint_as_float(both.z), __uint_as_float(both.w));
            const float2 pair = reader.once8(p.weights + sample);
            weights[0] = pair.x;
            weights[1] = pair.y;
        } else {
            locations[0] = make_float2(0.0f, 0.0f);
            weights[0] = 0.0f;
            if (WHOLE || point < POINTS) {
                locations[0] = reader.once8(p.locations + sample);
                weights[0] = reader.once4(p.weights + sample);
            }
        }
    }
};

// A level of which all is read through the caches; `part`: bytes to a further vector of the lane's. Places are in
// 16-byte units. Pixels of 64 bytes that lie in opposite halves of their lines share a wavefront: with an odd number of
// heads, odd groups therefore read odd pixels first.
template <typename Reader> struct Far {
    static constexpr bool ALTERNATES = CHANNELS <= 32 && HEADS % 2 == 1;
    Reader reader;
    const char *upper, *lower; // pixel 0 of the image and the one below it, of this lane's channels
    u32 first, width;

    __device__ __forceinline__ Far(const Reader &reader, const char *value, const Level &level)
        : reader(reader), upper(value), first(level.start * PIXEL_UNITS), width(level.width) {
        lower = value + (level.height > 1 ? static_cast<u64>(width * PIXEL_UNITS) * 16 : 0);
        asm("" : "+l"(lower)); // a register pair, not a sum to be repeated at each load
    }
    __device__ __forceinline__ u32 right(u32) const { return NARROW && width == 1 ? 0 : PIXEL_UNITS; }
    __device__ __forceinline__ u32 place(u32 x, u32 y) const { return first + (y * width + x) * PIXEL_UNITS; }
    __device__ __forceinline__ void load(Words (&taps)[4], u32 place, bool left, u32 part = 0) const {
        const u64 here = static_cast<u64>(place) * 16 + part;
        u64 other = here + right(place) * 16;
        if (ALTERNATES) other = static_cast<u64>(left ? place - right(place) : place + right(place)) * 16 + part;
        taps[0] = reader.pixel(upper + here);
        taps[1] = reader.pixel(upper + other);
        taps[2] = reader.pixel(lower + here);
        taps[3] = reader.pixel(lower + other);
    }
};

// A level in shared memory; places are addresses. Pixels lie side by side, whatever the number of heads.
struct Kept {
    static constexpr bool ALTERNATES = KEPT_CHANNELS <= 32;
    u32 first, down, width;
    u32 lane; // bytes to this lane's channels

    __device__ __forceinline__ Kept(u32 first, const Level &level, u32 lane)
        : first(first), down(level.height > 1 ? level.width * KEPT_BYTES : 0), width(level.width), lane(lane) {}
    __device__ __forceinline__ u32 right(u32) const { return NARROW && width == 1 ? 0 : KEPT_BYTES; }
    __device__ __forceinline__ u32 place(u32 x, u32 y) const { return first + (y * width + x) * KEPT_BYTES; }
    __device__ __forceinline__ void load(Words (&taps)[4], u32 place, bool left, u32 part = 0) const {
        const u32 here = place + lane + part, other = ALTERNATES && left ? here - right(place) : here + right(place);
        taps[0] = load_shared(here);
        taps[1] = load_shared(other);
        taps[2] = load_shared(here + down);
        taps[3] = load_shared(other + down);
    }
};

// What lanes need to know of a sample: place, second column, upper and lower row. Lanes of even and odd `turn` begin at
// pixels of even and odd number.
template <typename Source>
__device__ __forceinline__ Words record_of(const Source &source, float2 location, float weight, const Level &level,
                                           u32 turn) {
    const Axis x = axis_of(location.x, static_cast<float>(level.width));
    const Axis y = axis_of(location.y, static_cast<float>(level.height));
    const float all = weight * (x.inside * y.inside), lower = all * y.second;
    u32 place = source.place(x.first, y.first);
    float second = x.second;
    if (Source::ALTERNATES && ((y.first * level.width + x.first) ^ turn) & 1) {
        place += source.right(place);
        second = -(1.0f - second); // -0 counts as negative
    }
    return {place, __float_as_uint(second), __float_as_uint(all - lower), __float_as_uint(lower)};
}

// One sample whose neighbours have arrived.
__device__ __forceinline__ void add_sample(float (&sums)[VECTOR], const Words (&taps)[4], float column, float upper,
                                           float lower) {
    const float second = fabsf(column), one = 1.0f - second;
    add(sums, taps[0], one * upper);
    add(sums, taps[1], second * upper);
    add(sums, taps[2], one * lower);
    add(sums, taps[3], second * lower);
}

// Where a group's record of a slot lies, given where its record of slot 0 does. In each slot the groups' order is
// turned another way, so that writing a column of records meets no bank of shared memory twice.
__device__ __forceinline__ u32 record_at(u32 first, u32 slot) {
    constexpr u32 STEP = 8 / LANES > 0 ? 8 / LANES : 1;
    return (first ^ (slot / PER_LANE * STEP & (GROUPS - 1)) * 16) + slot * (GROUPS * 16);
}

// A chunk of samples of each of the warp's rows.
template <typename Source>
__device__ __forceinline__ void mix(float (&sums)[VECTOR], const Source &source, const Samples &samples,
                                    const Level &level, u32 records, u32 group, u32 in_group, int chunk) {
    __syncwarp();
#pragma unroll
    for (int v = 0; v < PER_LANE; v++) {
        store_shared(record_at(records, in_group * PER_LANE + v),
                     record_of(source, samples.locations[v], samples.weights[v], level, group));
    }
    __syncwarp();
    Words taps[2][4];
    Words record[2];
    const auto load = [&](int step) {
        record[step % 2] = load_shared(record_at(records, step));
        source.load(taps[step % 2], record[step % 2].x, static_cast<int>(record[step % 2].y) < 0);
    };
    const int count = POINTS - chunk % CHUNKS_A_LEVEL * CHUNK;
    load(0);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if (!WHOLE && CHUNKS_A_LEVEL > 1 && step >= count) break;
        if (step + 1 < STEPS) load(step + 1);
        const Words &r = record[step % 2];
        add_sample(sums, taps[step % 2], __uint_as_float(r.y), __uint_as_float(r.z), __uint_as_float(r.w));
    }
}

// Arrives at the barrier once all that this thread copies asynchronously is there.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// The block brings KEPT_CHANNELS of pixels that lie one after another into shared memory.
__device__ __forceinline__ void keep(u32 target, const char *pixels, u32 count) {
    constexpr u32 PARTS = KEPT_CHANNELS / VECTOR;
    for (u32 i = threadIdx.x; i < count * PARTS; i += THREADS) {
        copy_async(target + i * 16, pixels + (static_cast<u64>(i / PARTS) * PIXEL_UNITS + i % PARTS) * 16);
    }
}

// What the threads of a block tell each other. Of two places one is read in a turn while the other is written for the
// next.
struct Control {
    u64 filled;   // barrier: what is kept is there
    u32 items[2]; // which piece of work
    u32 units[2]; // how many of its units have been taken
};
