// A6, persistent-full: as A5, and of the next larger level as many rows of pixels as fit.
//
// Which rows: those around the mean height of a few of the item's points, so that queries which look near their own
// place find most of what they look for. Every warp works that out from the same numbers. A sample whose two rows are
// both kept is read from shared memory, any other through the caches, by the same loads: their addresses say which
// memory.
//
// Points near their query (seed-full local) then find all levels but the largest in shared memory. But what is kept (up
// to 227 of 256 KB) leaves the largest level an L1 of 28 KB, too little even for the lines on their way: should lose 20
// to 40 % against A5 with everything kept, and at best come even with less.
//
// THREADS, CACHE_KB, ITEMS: as in A5. PARTIAL: the level kept in part, of PARTIAL_ROWS rows (LEVELS if there is none).

// Set in the place of a sample that lies in shared memory.
constexpr u32 IS_KEPT = 1u << 31;

// From device or shared memory, whichever the address is of: lanes may differ.
__device__ __forceinline__ Words load_either(const char *address) {
    Words v;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

// A level of which some rows are kept. Places are in 16-byte units, of the image or of the first kept pixel on.
struct Mixed {
    static constexpr bool ALTERNATES = CHANNELS <= 32;
    const char *far, *kept; // of this lane's channels
    u32 first, first_row, width;

    __device__ __forceinline__ u32 right(u32 place) const {
        return NARROW && width == 1 ? 0 : place & IS_KEPT ? VECTORS : PIXEL_UNITS;
    }
    __device__ __forceinline__ u32 place(u32 x, u32 y) const {
        // Unsigned: a row above the first is a very large number.
        const bool is_kept = y - first_row < PARTIAL_ROWS - 1;
        return is_kept ? IS_KEPT | ((y - first_row) * width + x) * VECTORS : first + (y * width + x) * PIXEL_UNITS;
    }
    __device__ __forceinline__ void load(Words (&taps)[4], u32 place, bool left) const {
        const u32 step = right(place), here = place & ~IS_KEPT, other = ALTERNATES && left ? here - step : here + step;
        const char *upper = place & IS_KEPT ? kept : far;
        const char *lower = upper + static_cast<u64>(width * (place & IS_KEPT ? VECTORS : PIXEL_UNITS)) * 16;
        taps[0] = load_either(upper + static_cast<u64>(here) * 16);
        taps[1] = load_either(upper + static_cast<u64>(other) * 16);
        taps[2] = load_either(lower + static_cast<u64>(here) * 16);
        taps[3] = load_either(lower + static_cast<u64>(other) * 16);
    }
};

// The first row to keep for queries of which `row` are some, one a lane.
__device__ __forceinline__ u32 first_row_for(const Problem &p, u32 row, u32 lane) {
    const u64 sample = static_cast<u64>(row) * SAMPLES + PARTIAL * POINTS + lane % POINTS;
    const float y = Plain().once8(p.locations + sample).y;
    float mean = y > 0.0f && y < 1.0f ? y / 32.0f : 0.5f / 32.0f;
    for (int other = 16; other > 0; other /= 2) mean += __shfl_xor_sync(ALL, mean, other);
    const int height = p.levels[PARTIAL].height, centre = static_cast<int>(mean * static_cast<float>(height));
    return min(max(centre - PARTIAL_ROWS / 2, 0), height - PARTIAL_ROWS);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a06(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char memory[];
    Control &control = *reinterpret_cast<Control *>(memory);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, in_group = lane % LANES;
    const u32 all_records = shared_address(memory) + CONTROL_BYTES;
    const u32 records = all_records + warp * RECORD_BYTES + group * 16;
    const u32 kept = all_records + WARPS * RECORD_BYTES, filled = shared_address(&control.filled);
    u32 *counter = reinterpret_cast<u32 *>(p.scratch);
    const u32 pieces = (p.queries + ITEM_QUERIES - 1) / ITEM_QUERIES, items = p.images * HEADS * pieces;
    if (threadIdx.x == 0) {
        make_barrier(filled, THREADS);
        control.items[0] = atomicAdd(counter, 1u);
        control.units[0] = 0;
    }

    u32 kept_plane = ~0u, kept_row = 0, parity = 1;
    bool ready = true;
    for (u32 turn = 0;; turn++) {
        __syncthreads(); // the item's number is there, and nobody still reads the last item's pixels
        const u32 item = control.items[turn % 2];
        if (item >= items) break;
        u32 next = 0;
        if (threadIdx.x == 0) {
            control.units[(turn + 1) % 2] = 0;
            next = atomicAdd(counter, 1u);
        }
        const u32 plane = item / pieces, piece = item - plane * pieces;
        const u32 image = plane / HEADS, head = plane - image * HEADS;
        const u32 begin = piece * ITEM_QUERIES, count = min(static_cast<u32>(ITEM_QUERIES), p.queries - begin);
        const auto row_of_query = [&](u32 query) { return (image * p.queries + begin + query) * HEADS + head; };
        const char *value = p.value + (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES;
        u32 first_row = 0;
        if constexpr (PARTIAL < LEVELS) {
            const u32 some = static_cast<u32>(static_cast<u64>(count - 1) * lane / 31);
            first_row = first_row_for(p, row_of_query(some), lane);
        }
        if ((KEPT_LEVELS != 0 || PARTIAL < LEVELS) && (plane != kept_plane || first_row != kept_row)) {
            u32 target = kept;
            for (int l = 0; l < LEVELS; l++) {
                const Level level = p.levels[l];
                const char *pixels = value + static_cast<u64>(level.start) * (PIXEL_UNITS * 16);
                if (l == PARTIAL) {
                    pixels += static_cast<u64>(first_row * level.width) * (PIXEL_UNITS * 16);
                    keep(target, pixels, level.width * PARTIAL_ROWS);
                    target += level.width * PARTIAL_ROWS * KEPT_BYTES;
                } else if (KEPT_LEVELS >> l & 1) {
                    if (plane != kept_plane) keep(target, pixels, level.width * level.height);
                    target += level.width * level.height * KEPT_BYTES;
                }
            }
            arrive_when_copied(filled);
            kept_plane = plane;
            kept_row = first_row;
            parity ^= 1;
            ready = false;
        }

        const u32 units = (count + GROUPS - 1) / GROUPS;
        const auto take = [&] {
            u32 unit = 0;
            if (lane == 0) unit = atomicAdd(&control.units[turn % 2], 1u);
            return __shfl_sync(ALL, unit, 0);
        };
        // Groups past the end take the last query and store nothing.
        const auto row_of = [&](u32 unit) { return row_of_query(min(unit * GROUPS + group, count - 1)); };
        const char *mine = value + in_group * 16;
        asm("" : "+l"(mine));
        Samples samples;
        u32 unit = take();
        if (unit < units) samples.load(p, row_of(unit), 0, in_group, Plain());
        while (unit < units) {
            const u32 row = row_of(unit), following = take();
            const bool live = unit * GROUPS + group < count;
            float sums[VECTOR] = {};
            u32 target = kept;
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                const Samples current = samples;
                if (chunk + 1 < CHUNKS) {
                    samples.load(p, row, chunk + 1, in_group, Plain());
                } else if (following < units) {
                    samples.load(p, row_of(following), 0, in_group, Plain());
                }
                const int l = chunk / CHUNKS_A_LEVEL;
                const bool last = (chunk + 1) % CHUNKS_A_LEVEL == 0;
                const Level level = p.levels[l];
                if (!ready && (l == PARTIAL || KEPT_LEVELS >> l & 1)) {
                    wait_for_phase(filled, parity);
                    ready = true;
                }
                if (l == PARTIAL) {
                    const char *window = memory + (target - shared_address(memory)) + in_group * 16;
                    const u32 first = level.start * PIXEL_UNITS, width = level.width;
                    const Mixed mixed = {mine, window, first, first_row, width};
                    mix(sums, mixed, current, level, records, group, in_group, chunk);
                    if (last) target += level.width * PARTIAL_ROWS * KEPT_BYTES;
                } else if (KEPT_LEVELS >> l & 1) {
                    mix(sums, Kept(target, level, in_group * 16), current, level, records, group, in_group, chunk);
                    if (last) target += level.width * level.height * KEPT_BYTES;
                } else {
                    mix(sums, Far<Plain>(Plain(), mine, level), current, level, records, group, in_group, chunk);
                }
            }
            if (live) store_sums(p.out + (static_cast<u64>(row) * VECTORS + in_group) * 16, sums);
            unit = following;
        }
        if (threadIdx.x == 0) control.items[(turn + 1) % 2] = next;
    }
}
