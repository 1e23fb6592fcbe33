// A7, channel split: a block keeps and computes only CHANNELS_A_BLOCK of the channels, so that more levels fit.
//
// As A5, but an item is consecutive queries of one (image, head, slice of channels): 16 or 32 bytes of a pixel. With so
// few channels lanes share out a row's samples instead: each of LANES lanes works out its own and reads all of the
// slice, nothing is passed on, and the lanes' sums are added at the end of the row.
//
// On seed-full three levels of four fit instead of two, for four times the coordinates and places. But a wavefront then
// gathers 16-byte pieces, whose banks clash (2.4 wavefronts where one would do), and each 16 bytes of the largest level
// cost a look into L1 and a 32-byte sector from L2: should take about twice the time of A5.
//
// THREADS: of a block. CHANNELS_A_BLOCK: of a slice. CACHE_KB, ITEMS: as in A5.

constexpr int SLICE = KEPT_CHANNELS, SLICES = CHANNELS / SLICE, PARTS = SLICE / VECTOR;

// The samples of a lane, from where they lie to sums.
template <typename Source>
__device__ __forceinline__ void mix_slice(float (&sums)[PARTS][VECTOR], const Source &source, const Samples &samples,
                                          const Level &level, u32 lane, u32 swapped) {
    // Two samples of one vector, or one sample of two: eight loads on their way.
    constexpr int TOGETHER = PER_LANE * PARTS > 2 ? 1 : PER_LANE;
#pragma unroll
    for (int first = 0; first < PER_LANE; first += TOGETHER) {
        Words record[TOGETHER], taps[TOGETHER][PARTS][4];
#pragma unroll
        for (int v = 0; v < TOGETHER; v++) {
            record[v] = record_of(source, samples.locations[first + v], samples.weights[first + v], level, lane);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                source.load(taps[v][part], record[v].x, static_cast<int>(record[v].y) < 0, (part ^ swapped) * 16);
            }
        }
#pragma unroll
        for (int v = 0; v < TOGETHER; v++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                add_sample(sums[part], taps[v][part], __uint_as_float(record[v].y), __uint_as_float(record[v].z),
                           __uint_as_float(record[v].w));
            }
        }
    }
}

// Adds the sums of the LANES lanes of a row; each is left with SLICE / LANES channels, and stores them if asked to.
__device__ __forceinline__ void store_slice(char *out, float (&sums)[PARTS][VECTOR], u32 in_group, bool live) {
    // Of two parts, the one a lane read first is the one it goes on with: the other half of the lanes read the other
    // first.
    constexpr bool HALVED = PARTS == 2 && LANES > 1;
    if constexpr (HALVED) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sums[0][i] += __shfl_xor_sync(ALL, sums[1][i], LANES / 2);
    }
    int left = VECTOR;
#pragma unroll
    for (int other = HALVED ? LANES / 4 : LANES / 2; other > 0; other /= 2) {
        left /= 2;
        const bool second = in_group & other;
#pragma unroll
        for (int i = 0; i < left; i++) {
            const float low = sums[0][i], high = sums[0][i + left];
            sums[0][i] = (second ? high : low) + __shfl_xor_sync(ALL, second ? low : high, other);
        }
    }
    if (!live) return;
#pragma unroll
    for (int i = 0; i < SLICE / LANES; i += 2) {
        u32 *target = reinterpret_cast<u32 *>(out + in_group * (2 * SLICE / LANES) + 2 * i);
        __stcs(target, rounded(sums[i / VECTOR][i % VECTOR], sums[i / VECTOR][i % VECTOR + 1]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a07(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char memory[];
    Control &control = *reinterpret_cast<Control *>(memory);
    const u32 lane = threadIdx.x % 32, group = lane / LANES, in_group = lane % LANES;
    const u32 kept = shared_address(memory) + CONTROL_BYTES, filled = shared_address(&control.filled);
    u32 *counter = reinterpret_cast<u32 *>(p.scratch);
    const u32 pieces = (p.queries + ITEM_QUERIES - 1) / ITEM_QUERIES, items = p.images * HEADS * SLICES * pieces;
    // Of two parts half of the lanes read the second one first, so that not all meet in the same half of the banks.
    const u32 swapped = PARTS == 2 && LANES > 1 ? in_group / (LANES / 2) : 0;
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
        // A plane is an image, a head and a slice.
        const u32 plane = item / pieces, piece = item - plane * pieces, slice = plane % SLICES, heads = plane / SLICES;
        const u32 image = heads / HEADS, head = heads - image * HEADS;
        const u64 first = (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES + slice * (2 * SLICE);
        const char *value = p.value + first;
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
        Samples samples;
        u32 unit = take();
        if (unit < units) samples.load(p, row_of(unit), 0, in_group, Plain());
        while (unit < units) {
            const u32 row = row_of(unit), following = take();
            const bool live = unit * GROUPS + group < count;
            float sums[PARTS][VECTOR] = {};
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
                    mix_slice(sums, Kept(target, level, 0), current, level, lane, swapped);
                    if ((chunk + 1) % CHUNKS_A_LEVEL == 0) target += level.width * level.height * KEPT_BYTES;
                } else {
                    mix_slice(sums, Far<Plain>(Plain(), value, level), current, level, lane, swapped);
                }
            }
            store_slice(p.out + static_cast<u64>(row) * PIXEL_BYTES + slice * (2 * SLICE), sums, in_group, live);
            unit = following;
        }
        if (threadIdx.x == 0) control.items[(turn + 1) % 2] = next;
    }
}
