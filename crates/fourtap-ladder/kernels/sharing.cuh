// What rungs with another layout or fewer bits share: how lanes find out for each other where samples lie. Stands
// before them.
//
// A group of GROUP lanes works on one row, GROUPS neighbouring rows a warp. Samples are taken CHUNK at a time: each
// lane works out PER_LANE of them, all of one level, and leaves 16 bytes of each in shared memory for the others of its
// group. A cell at a border is moved inside and the weights follow, so that no load is conditional.
//
// GROUP, PER_LANE and THREADS are the rung's.

constexpr int GROUPS = 32 / GROUP;
constexpr int WARPS = THREADS / 32;
constexpr u32 NONE = ~0u; // no row

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border, 0 for NaN
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour: moved inside, with the second where there are two
};

__device__ __forceinline__ Axis axis_of(float location, int size) {
    const float wide = static_cast<float>(size), at = __fmaf_rn(location, wide, -0.5f);
    const float clamped = fmaxf(fminf(at, wide - 1.0f), 0.0f);
    const int first = min(static_cast<int>(clamped), max(size - 2, 0));
    const float inside = __saturatef(at + 1.0f) * __saturatef(wide - at);
    return {inside, clamped - static_cast<float>(first), static_cast<u32>(first)};
}

// width, height, first pixel, pixels to the row below; a level of one row is its own row below.
__device__ __forceinline__ int4 level_of(const Problem &p, int number) {
    const Level level = p.levels[number];
    return make_int4(level.width, level.height, level.start, level.height > 1 ? level.width : 0);
}

// Where a group's record of a slot lies, given where that of slot 0 does. In each slot the groups' order is turned
// another way, so that writing a column of records meets no bank twice.
__device__ __forceinline__ u32 record_at(u32 first, u32 slot) {
    constexpr u32 STEP = 8 / GROUP > 0 ? 8 / GROUP : 1;
    return (first ^ (slot / PER_LANE * STEP & (GROUPS - 1)) * 16) + slot * (GROUPS * 16);
}

// The samples a lane has asked for but not yet looked at.
struct Pending {
    float2 locations[PER_LANE];
    float weights[PER_LANE];

    // From this sample of the row on; such that add nothing where there is none.
    __device__ __forceinline__ void ask(const Problem &p, u32 row, u32 sample) {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            locations[i] = {0.0f, 0.0f};
            weights[i] = 0.0f;
        }
        if (row == NONE || sample >= SAMPLES) return;
        const float2 *from = p.locations + (static_cast<u64>(row) * SAMPLES + sample);
        const float *weighed = p.weights + (static_cast<u64>(row) * SAMPLES + sample);
#if PER_LANE == 1
        locations[0] = *from;
        weights[0] = *weighed;
#else
#pragma unroll
        for (int i = 0; i < PER_LANE; i += 2) {
            const float4 two = __ldcs(reinterpret_cast<const float4 *>(from + i));
            const float2 both = __ldcs(reinterpret_cast<const float2 *>(weighed + i));
            locations[i] = {two.x, two.y};
            locations[i + 1] = {two.z, two.w};
            weights[i] = both.x;
            weights[i + 1] = both.y;
        }
#endif
    }
};
