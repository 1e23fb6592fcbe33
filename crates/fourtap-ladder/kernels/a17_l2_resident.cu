// A17, L2-resident: nothing is kept in shared memory; work is ordered, and marked, so that L2 keeps what it needs.
//
// One block a multiprocessor; a warp takes 32 / VECTORS rows at a time. Rows are walked in turns, of which every block
// takes an equal run of neighbouring rows. ORDERED 0: a turn is what all blocks hold at once, rows as they lie in
// memory, as a plain grid would take them. ORDERED 1: a turn is PLANES_A_TURN planes, a plane being TOGETHER heads of
// one image, so that multiprocessors walk the same few images side by side and each stays with neighbouring queries
// longer. EVICT_LAST 1: lines of value stay in L2 as long as others can go, coordinates, weights and results go first.
//
// L2 (60 MB) holds several images either way, and a plain grid moves through the images in step already: expect 1 to 3
// % from the order, more where heads are many, and nothing from the marks, for DRAM does not bind; should marks of
// images done with outlast their use, a loss.
//
// THREADS: of a block. PLANES: most of a turn. KEPT_PERCENT: of the lines of value to mark as last.

#if EVICT_LAST
// Every load says how its lines are to leave L2.
struct Reader {
    u64 last, soon;
    __device__ __forceinline__ Reader() {
        asm("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %0, %1;"
            : "=l"(last)
            : "f"(KEPT_PERCENT / 100.0f));
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(soon));
    }
    __device__ __forceinline__ Words pixel(const char *address) const {
        Words v;
        asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(address), "l"(last));
        return v;
    }
    __device__ __forceinline__ Words once16(const void *address) const {
        Words v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(address), "l"(soon));
        return v;
    }
    __device__ __forceinline__ float2 once8(const void *address) const {
        float2 v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.f32 {%0, %1}, [%2], %3;"
                     : "=f"(v.x), "=f"(v.y)
                     : "l"(address), "l"(soon));
        return v;
    }
    __device__ __forceinline__ float once4(const void *address) const {
        float v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.f32 %0, [%1], %2;"
                     : "=f"(v)
                     : "l"(address), "l"(soon));
        return v;
    }
    __device__ __forceinline__ void store(char *address, const float (&sums)[VECTOR]) const {
        asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address),
                     "r"(rounded(sums[0], sums[1])), "r"(rounded(sums[2], sums[3])), "r"(rounded(sums[4], sums[5])),
                     "r"(rounded(sums[6], sums[7])), "l"(soon)
                     : "memory");
    }
};
#else
struct Reader : Plain {
    __device__ __forceinline__ void store(char *address, const float (&sums)[VECTOR]) const {
        store_sums(address, sums);
    }
};
#endif

// GROUPS rows that a warp takes together: where they begin in the order of the walk, and how many there are.
struct Unit {
    u32 first, count;
};

// All rows, as turns of which each block takes an equal share.
struct Walk {
    u32 turn, turns, rest; // rows of a whole turn, whole turns, rows of the last one
    u32 share, last_share; // units of a block in those

    __device__ __forceinline__ Walk(u32 rows, u32 turn)
        : turn(turn), turns(rows / turn), rest(rows % turn), share(share_of(turn)), last_share(share_of(rest)) {}
    static __device__ __forceinline__ u32 share_of(u32 rows) {
        const u32 units = (rows + GROUPS - 1) / GROUPS;
        return (units + gridDim.x - 1) / gridDim.x;
    }
    // The first unit from `number` on of those of this block that has rows; none left: of no rows. Moves `number`
    // there.
    __device__ __forceinline__ Unit find(u32 &number) const {
        for (; number < turns * share + last_share; number += WARPS) {
            const u32 which = min(number / share, turns), inside = number - which * share;
            const u32 rows = which < turns ? turn : rest, of_block = which < turns ? share : last_share;
            const u32 at = (blockIdx.x * of_block + inside) * GROUPS;
            if (at < rows) return {which * turn + at, min(rows - at, static_cast<u32>(GROUPS))};
        }
        return {0, 0};
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a17(const __grid_constant__ Problem p) {
    __shared__ __align__(1024) char memory[WARPS * RECORD_BYTES];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, in_group = lane % LANES;
    const u32 records = shared_address(memory) + warp * RECORD_BYTES + group * 16;
    const u32 rows = row_count(p), plane_rows = p.queries * TOGETHER;
    const Walk walk(rows, max(1u, ORDERED ? PLANES_A_TURN * plane_rows : gridDim.x * (WARPS * GROUPS)));
    const Reader reader;

    // Of the walk's order: the row, and where pixel 0 of its image and head is.
    const char *value = p.value;
    const auto find_row = [&](const Unit &unit) {
        // Groups past the end take the last row and store nothing.
        const u32 at = unit.first + min(group, unit.count - 1);
        const u32 plane = at / plane_rows, inside = at - plane * plane_rows, image = plane / (HEADS / TOGETHER);
        const u32 head = (plane - image * (HEADS / TOGETHER)) * TOGETHER + inside % TOGETHER;
        value = p.value + (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES + in_group * 16;
        return (image * p.queries + inside / TOGETHER) * HEADS + head;
    };
    u32 number = warp, next_row = 0;
    Unit unit = walk.find(number);
    Samples samples;
    if (unit.count > 0) {
        next_row = find_row(unit);
        samples.load(p, next_row, 0, in_group, reader);
    }
    while (unit.count > 0) {
        const u32 row = next_row;
        const bool live = group < unit.count;
        const char *mine = value;
        asm("" : "+l"(mine));
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Samples current = samples;
            if (chunk + 1 < CHUNKS) {
                samples.load(p, row, chunk + 1, in_group, reader);
            } else {
                number += WARPS;
                unit = walk.find(number);
                if (unit.count > 0) {
                    next_row = find_row(unit);
                    samples.load(p, next_row, 0, in_group, reader);
                }
            }
            const Level level = p.levels[chunk / CHUNKS_A_LEVEL];
            mix(sums, Far<Reader>(reader, mine, level), current, level, records, group, in_group, chunk);
        }
        if (live) reader.store(p.out + (static_cast<u64>(row) * VECTORS + in_group) * 16, sums);
    }
}
