// A10, multi-level TMA: small levels copied whole into shared memory by the copy engine, the others through L1.
//
// One block a multiprocessor, persistent. Its work is a list of parts of image-heads; for each the copy engine brings
// the cached levels, by boxes of whole rows of pixels, into one of STAGES buffers: with two, while the part before is
// worked on. No block-wide barrier: the last warp to leave a part asks for the levels of the next in its buffer.
// One warp takes ROWS neighbouring queries, uncached levels first, so that it meets the copied ones late.
// Should take half of the gathers of seed-full (levels 23x40 and 12x20; 46x80 misses the limit by 3 KB) off L1's
// misses; but shared memory moves no more bytes a clock than L1, and what it takes, L1 lacks: 0.47 to 0.5 ms.
//
// THREADS; STAGES; CACHED: bit l for a copied level; STAGE_BYTES of a buffer; TURN: image-heads worked on at a time, so
// that L2 holds them. Also what records.cuh asks for.

struct Maps {
    TensorMap of[LEVEL_CAPACITY];
};

constexpr u32 BOX_LIMIT = 256; // pixels, in any direction

__device__ constexpr int bits_in(u32 mask) { return mask == 0 ? 0 : (mask & 1) + bits_in(mask >> 1); }
constexpr int COPIED = bits_in(CACHED);
__device__ __forceinline__ bool cached(int level) { return CACHED >> level & 1; }

// Boxes of a level, and rows of a box, as in the plan. Where there are several, each is a multiple of 128 bytes.
__device__ __forceinline__ u32 boxes_of(const Level &level) { return (level.height + BOX_LIMIT - 1) / BOX_LIMIT; }
__device__ __forceinline__ u32 box_rows(const Level &level) {
    const u32 boxes = boxes_of(level);
    return boxes == 1 ? level.height : ((level.height + boxes - 1) / boxes + 3) / 4 * 4;
}
__device__ __forceinline__ u32 box_bytes(const Level &level) { return box_rows(level) * level.width * PIXEL_BYTES; }
__device__ __forceinline__ u32 copied_bytes(const Level &level) { return boxes_of(level) * box_bytes(level); }
__device__ __forceinline__ u32 kept_bytes(const Level &level) { return (copied_bytes(level) + 255) / 256 * 256; }

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A place in shared memory.
struct Shared {
    u32 base;
    __device__ __forceinline__ Words read(u32 pixel, u32) const { return load_shared(base + pixel * PIXEL_BYTES); }
    __device__ __forceinline__ Shared at(u32 pixel, u32) const { return {base + pixel * PIXEL_BYTES}; }
};

// A unit is ROWS queries of one image-head. In each turn every block has `room` consecutive units of those of TURN
// image-heads; what it has of one image-head is a part, numbered over all turns.
struct Share {
    u32 planes, units; // image-heads, units of each
    u32 first, room;   // the block's units of a turn
    u32 first_plane, parts;

    __device__ __forceinline__ Share(const Problem &p) {
        planes = p.images * p.heads;
        units = (p.queries + ROWS - 1) / ROWS;
        const u32 turn = TURN * units, share = (turn - 1) / gridDim.x + 1;
        const u64 begin = static_cast<u64>(blockIdx.x) * share;
        first = static_cast<u32>(min(begin, static_cast<u64>(turn)));
        room = min(share, turn - first);
        first_plane = first / units;
        parts = room == 0 ? 0 : (first + room - 1) / units - first_plane + 1;
    }
    __device__ __forceinline__ u32 plane_of(u32 part) const { return part / parts * TURN + first_plane + part % parts; }
};

struct Unit {
    u32 plane, part, query;
};

// A warp's units, one after another.
struct Walk {
    u32 turn, ahead;
    __device__ __forceinline__ Unit settle(const Share &share) {
        for (; ahead >= share.room; ahead -= share.room) turn++;
        const u32 at = share.first + ahead, plane = at / share.units;
        return {turn * TURN + plane, turn * share.parts + plane - share.first_plane, at % share.units * ROWS};
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ladder_a10(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
    // Buffers, records, levels in the order they are worked on, barriers for "copied" and "left" of each buffer, and
    // how many warps have left it.
    extern __shared__ __align__(1024) char memory[];
    constexpr u32 RECORDS = STAGES * STAGE_BYTES, TABLE = RECORDS + WARPS * RECORD_BYTES;
    constexpr u32 BARRIERS = TABLE + LEVELS * 16;
    const u32 shared = shared_address(memory), barriers = shared + BARRIERS;
    u32 *leavers = reinterpret_cast<u32 *>(memory + BARRIERS + STAGES * 16);
    const Share share(p);
    if (share.room == 0) return;
    const u32 stride = static_cast<u32>(pixel_stride(p));

    const auto copied = [&](u32 part) { return barriers + part % STAGES * 16; };
    const auto left = [&](u32 part) { return copied(part) + 8; };
    const auto parity = [](u32 part) { return part / STAGES & 1; };
    // One thread: the levels of a part into its buffer.
    const auto copy = [&](u32 part) {
        const u32 plane = share.plane_of(part);
        if (plane >= share.planes) return;
        u32 bytes = 0;
        for (int l = 0; l < LEVELS; l++) bytes += cached(l) ? copied_bytes(p.levels[l]) : 0;
        expect_bytes(copied(part), bytes);
        u32 buffer = shared + part % STAGES * STAGE_BYTES;
        const int head = plane % p.heads, image = plane / p.heads;
#pragma unroll
        for (int l = 0, map = 0; l < LEVELS; l++) {
            if (!cached(l)) continue;
            const Level &level = p.levels[l];
            for (u32 box = 0; box < boxes_of(level); box++) {
                load_box(buffer + box * box_bytes(level), &maps.of[map], copied(part), head * CHANNELS, 0,
                         static_cast<int>(box * box_rows(level)), image);
            }
            buffer += kept_bytes(level);
            map++;
        }
    };

    if (threadIdx.x < LEVELS) {
        const int l = threadIdx.x;
        u32 before = 0, bytes = 0;
        for (int k = 0; k < LEVELS; k++) {
            if (cached(k) && k < l) bytes += kept_bytes(p.levels[k]);
            before += cached(k) == cached(l) ? k < l : cached(l);
        }
        const Level &level = p.levels[l];
        const u32 first = cached(l) ? bytes : static_cast<u32>(level.start);
        store_shared(shared + TABLE + before * 16,
                     {static_cast<u32>(level.width), static_cast<u32>(level.height), first, static_cast<u32>(l)});
    }
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            make_barrier(copied(stage), 1);
            make_barrier(left(stage), WARPS);
            leavers[stage] = 0;
        }
        publish_barriers();
        for (u32 part = 0; part < STAGES; part++) copy(part);
    }
    __syncthreads();

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, in_group = lane % LANES;
    const u32 first_record = shared + RECORDS + warp * RECORD_BYTES + group * 16;
    // A warp without a unit of a part waits for its levels all the same, or it might leave twice before another once.
    const auto leave = [&](u32 part) {
        wait_for_phase(copied(part), parity(part));
        __syncwarp();
        if (lane == 0) {
            arrive(left(part));
            if (atomicInc(&leavers[part % STAGES], WARPS - 1) == WARPS - 1) {
                wait_for_phase(left(part), parity(part));
                copy(part + STAGES);
            }
        }
        __syncwarp();
    };
    const auto row_of = [&](const Unit &unit) {
        const u32 head = unit.plane % p.heads, image = unit.plane / p.heads;
        return (image * p.queries + unit.query + group) * p.heads + head;
    };
    Pending pending;
    const auto ask = [&](const Unit &unit, u32 row, int chunk) {
        const int level = load_shared(shared + TABLE + chunk / CHUNKS * 16).w;
        const int point = chunk % CHUNKS * CHUNK + in_group * PER_LANE;
        const bool there = unit.plane < share.planes && unit.query + group < p.queries && point < POINTS;
        pending.ask(p, static_cast<u64>(row) * SAMPLES + level * POINTS + point, there);
    };

    Walk walk{0, warp};
    Unit unit = walk.settle(share);
    u32 row = row_of(unit), part = 0;
    ask(unit, row, 0);
#pragma unroll 1
    while (unit.plane < share.planes) {
        for (; part < unit.part; part++) leave(part);
        const u64 first_pixel = static_cast<u64>(unit.plane / p.heads) * p.pixels * p.heads + unit.plane % p.heads;
        const char *value = p.value + first_pixel * PIXEL_BYTES + in_group * 16;
        const bool mine = unit.query + group < p.queries;
        char *const out = p.out + (static_cast<u64>(row) * VECTORS + in_group) * 16;
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < LEVELS * CHUNKS; chunk++) {
            const Pending samples = pending;
            if (chunk + 1 < LEVELS * CHUNKS) {
                ask(unit, row, chunk + 1);
            } else {
                walk.ahead += WARPS;
                unit = walk.settle(share);
                row = row_of(unit);
                ask(unit, row, 0);
            }
            const Words level = load_shared(shared + TABLE + chunk / CHUNKS * 16);
            share_records(samples, first_record, group, in_group, level.x, level.y);
            const int rest = POINTS - chunk % CHUNKS * CHUNK;
            if (chunk < (LEVELS - COPIED) * CHUNKS) {
                const Global first = Global{value}.at(level.z, stride);
                add_chunk(sums, first_record, rest, first, stride, level.x, level.y);
            } else {
                wait_for_phase(copied(part), parity(part));
                const Shared first{shared + part % STAGES * STAGE_BYTES + level.z + in_group * 16};
                add_chunk(sums, first_record, rest, first, stride, level.x, level.y);
            }
        }
        if (mine) store_sums(out, sums);
    }
    for (; share.plane_of(part) < share.planes; part++) leave(part);
}
