// A5, persistent: one block a multiprocessor takes work from a counter and keeps small levels in shared memory.
//
// An item is ITEM_QUERIES consecutive queries of one (image, head). One thread takes its number and hands it to the
// block, and asks for the next one meanwhile. When image or head change, the levels of the mask KEPT_LEVELS are copied
// into shared memory while warps already work on their larger levels; a barrier that counts arrivals lets them go on to
// the small ones. Within an item each warp takes 32 / VECTORS rows at a time from a counter in shared memory.
//
// Samples of kept levels never wait for L2 and, odd groups of lanes beginning with odd pixels, read two 64-byte pixels
// in a wavefront. Half of seed-full's samples are of kept levels, but most of those hit L1 anyway, and L1 loses what is
// kept (74 of 256 KB): should end within 5 % of the same kernel without. Each item ends with warps waiting for the
// last: 3 %.
//
// THREADS: of a block. CACHE_KB: most that is kept. ITEMS: of a multiprocessor, on average; few mean fewer copies and
// waits, but more images in flight in L2.

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a05(const __grid_constant__ Problem p) {
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

    u32 kept_plane = ~0u, parity = 1;
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
        const char *value = p.value + (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES;
        if (KEPT_LEVELS != 0 && plane != kept_plane) {
            u32 target = kept;
            for (int l = 0; l < LEVELS; l++) {
                const Level level = p.levels[l];
                if (!(KEPT_LEVELS >> l & 1)) continue;
                keep(target, value + static_cast<u64>(level.start) * (PIXEL_UNITS * 16), level.width * level.height);
                target += level.width * level.height * KEPT_BYTES;
            }
            arrive_when_copied(filled);
            kept_plane = plane;
            parity ^= 1;
            ready = false;
        }

        const u32 begin = piece * ITEM_QUERIES, count = min(static_cast<u32>(ITEM_QUERIES), p.queries - begin);
        const u32 units = (count + GROUPS - 1) / GROUPS;
        const auto take = [&] {
            u32 unit = 0;
            if (lane == 0) unit = atomicAdd(&control.units[turn % 2], 1u);
            return __shfl_sync(ALL, unit, 0);
        };
        // Groups past the end take the last query and store nothing.
        const auto row_of = [&](u32 unit) {
            return (image * p.queries + begin + min(unit * GROUPS + group, count - 1)) * HEADS + head;
        };
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
                const Level level = p.levels[l];
                if (KEPT_LEVELS >> l & 1) {
                    if (!ready) {
                        wait_for_phase(filled, parity);
                        ready = true;
                    }
                    mix(sums, Kept(target, level, in_group * 16), current, level, records, group, in_group, chunk);
                    if ((chunk + 1) % CHUNKS_A_LEVEL == 0) target += level.width * level.height * KEPT_BYTES;
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
