// A9, persistent + distributed: small levels held once in a cluster, each by one of its blocks; the others through L1.
//
// A cluster stays and takes one piece of work after another: PIECES pieces an image-head. One thread of the cluster
// takes it off a counter and stores its number in every block, two pieces ahead: so the levels of the next piece are
// copied while this one is worked on, and no block ever reads a number nobody has stored. A cluster barrier ends a
// piece. One block takes its part of the piece's queries; its warps take ROWS of them at a time from a counter in
// shared memory. Against A10 a block holds half as many bytes, so that L1 keeps more; but half of what is read from
// shared memory comes from the other multiprocessor, at a fifth of the speed: should lose, 0.55 to 0.65 ms.
//
// THREADS; CLUSTER: blocks; PIECES; CACHED: bit l for a level held; OWNERS: the block that holds it, two bits a level;
// STAGE_BYTES of a block's levels. Also what records.cuh asks for. Scratch begins with the counter, cleared.

__device__ constexpr int bits_in(u32 mask) { return mask == 0 ? 0 : (mask & 1) + bits_in(mask >> 1); }
constexpr int HELD = bits_in(CACHED);
constexpr int SLOTS = 4; // pieces' numbers: of this one, the next and the one after, and a power of two
__device__ __forceinline__ bool cached(int level) { return CACHED >> level & 1; }
__device__ __forceinline__ u32 owner(int level) { return OWNERS >> 2 * level & 3; }
__device__ __forceinline__ u32 kept_bytes(const Level &level) { return level.width * level.height * PIXEL_BYTES; }

__device__ __forceinline__ void store_cluster(u32 address, u32 word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// The whole cluster. Lanes find together first, as its barrier takes for granted.
__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    synchronise_cluster();
}

// A place in the shared memory of any block of the cluster.
struct Distributed {
    u32 base;
    __device__ __forceinline__ Words read(u32 pixel, u32) const { return load_cluster(base + pixel * PIXEL_BYTES); }
    __device__ __forceinline__ Distributed at(u32 pixel, u32) const { return {base + pixel * PIXEL_BYTES}; }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a09(const __grid_constant__ Problem p) {
    // Levels of two pieces, records, levels in the order they are worked on, numbers of pieces, units taken of two.
    extern __shared__ __align__(1024) char memory[];
    constexpr u32 RECORDS = 2 * STAGE_BYTES, TABLE = RECORDS + WARPS * RECORD_BYTES, NUMBERS = TABLE + LEVELS * 16;
    const u32 shared = shared_address(memory);
    volatile u32 *numbers = reinterpret_cast<volatile u32 *>(memory + NUMBERS);
    u32 *taken = reinterpret_cast<u32 *>(memory + NUMBERS + SLOTS * 4);
    const u32 rank = rank_in_cluster(), stride = static_cast<u32>(pixel_stride(p));
    const u32 pieces = p.images * p.heads * PIECES, units = (p.queries + ROWS - 1) / ROWS;

    const auto value_of = [&](u32 piece) {
        const u32 plane = piece / PIECES;
        return p.value + (static_cast<u64>(plane / p.heads) * p.pixels * p.heads + plane % p.heads) * PIXEL_BYTES;
    };
    // The leader takes the piece that will be worked on as number `turn`.
    const auto take = [&](u32 turn) {
        if (rank != 0 || threadIdx.x != 0) return;
        const u32 piece = atomicAdd(reinterpret_cast<u32 *>(p.scratch), 1u);
        for (u32 block = 0; block < CLUSTER; block++)
            store_cluster(address_in_block(shared + NUMBERS + turn % SLOTS * 4, block), piece);
    };
    // All threads: this block's levels of a piece.
    const auto copy = [&](u32 piece, u32 stage) {
        u32 target = shared + stage * STAGE_BYTES;
        for (int l = 0; l < LEVELS; l++) {
            if (!cached(l) || owner(l) != rank) continue;
            const Level &level = p.levels[l];
            const char *source = value_of(piece) + static_cast<u64>(level.start) * stride;
            const u32 vectors = level.width * level.height * VECTORS;
            for (u32 i = threadIdx.x; i < vectors; i += THREADS)
                copy_async(target + i * 16, source + static_cast<u64>(i / VECTORS) * stride + i % VECTORS * 16);
            target += kept_bytes(level);
        }
        commit_copies();
    };

    if (threadIdx.x < LEVELS) {
        const int l = threadIdx.x;
        u32 before = 0, bytes = 0;
        for (int k = 0; k < LEVELS; k++) {
            if (cached(k) && owner(k) == owner(l) && k < l) bytes += kept_bytes(p.levels[k]);
            before += cached(k) == cached(l) ? k < l : cached(l);
        }
        const Level &level = p.levels[l];
        const u32 first = cached(l) ? address_in_block(shared + bytes, owner(l)) : static_cast<u32>(level.start);
        store_shared(shared + TABLE + before * 16,
                     {static_cast<u32>(level.width), static_cast<u32>(level.height), first, static_cast<u32>(l)});
    }
    if (threadIdx.x < 2) taken[threadIdx.x] = 0;
    // Nobody stores into a block that has not begun.
    meet_cluster();
    take(0);
    take(1);
    meet_cluster();
    if (numbers[0] < pieces) copy(numbers[0], 0);
    wait_for_copies<0>();
    meet_cluster();

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, in_group = lane % LANES;
    const u32 first_record = shared + RECORDS + warp * RECORD_BYTES + group * 16;
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        const u32 piece = numbers[turn % SLOTS], next_piece = numbers[(turn + 1) % SLOTS], stage = turn % 2;
        if (piece >= pieces) break; // for all blocks of the cluster alike
        if (next_piece < pieces) copy(next_piece, stage ^ 1);
        take(turn + 2);
        // The counter of the piece before: nobody takes of that any more.
        if (threadIdx.x == 0 && turn > 0) taken[stage ^ 1] = 0;

        const u32 plane = piece / PIECES, part = piece % PIECES * CLUSTER + rank;
        const u32 begin = static_cast<u64>(units) * part / (PIECES * CLUSTER);
        const u32 end = static_cast<u64>(units) * (part + 1) / (PIECES * CLUSTER);
        const auto take_unit = [&] {
            u32 unit = 0;
            if (lane == 0) unit = atomicAdd(&taken[stage], 1u);
            return begin + __shfl_sync(ALL, unit, 0);
        };
        const u64 first_row = static_cast<u64>(plane / p.heads) * p.queries * p.heads + plane % p.heads;
        const char *value = value_of(piece) + in_group * 16;
        Pending pending;
        const auto ask = [&](u32 unit, int chunk) {
            const int level = load_shared(shared + TABLE + chunk / CHUNKS * 16).w;
            const int point = chunk % CHUNKS * CHUNK + in_group * PER_LANE;
            const u32 query = unit * ROWS + group;
            const bool there = unit < end && query < p.queries && point < POINTS;
            const u64 row = first_row + static_cast<u64>(query) * p.heads;
            pending.ask(p, row * SAMPLES + level * POINTS + point, there);
        };
        u32 unit = take_unit();
        ask(unit, 0);
#pragma unroll 1
        while (unit < end) {
            const u32 next_unit = take_unit();
            float sums[VECTOR] = {};
#pragma unroll 1
            for (int chunk = 0; chunk < LEVELS * CHUNKS; chunk++) {
                const Pending samples = pending;
                const bool last = chunk + 1 == LEVELS * CHUNKS;
                ask(last ? next_unit : unit, last ? 0 : chunk + 1);
                const Words level = load_shared(shared + TABLE + chunk / CHUNKS * 16);
                share_records(samples, first_record, group, in_group, level.x, level.y);
                const int rest = POINTS - chunk % CHUNKS * CHUNK;
                if (chunk < (LEVELS - HELD) * CHUNKS) {
                    const Global first = Global{value}.at(level.z, stride);
                    add_chunk(sums, first_record, rest, first, stride, level.x, level.y);
                } else {
                    const Distributed first{level.z + stage * STAGE_BYTES + in_group * 16};
                    add_chunk(sums, first_record, rest, first, stride, level.x, level.y);
                }
            }
            const u32 query = unit * ROWS + group;
            const u64 row = first_row + static_cast<u64>(query) * p.heads;
            if (query < p.queries) store_sums(p.out + (row * VECTORS + in_group) * 16, sums);
            unit = next_unit;
        }
        wait_for_copies<0>();
        // What was copied and stored is seen by all; nobody reads the levels of this piece any more, or leaves before.
        meet_cluster();
    }
}
