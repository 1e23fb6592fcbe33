// A16, the best of all combined: what paid on the other rungs, and nothing else.
//
// - Geometry once a sample: one lane works it out, the lanes of the row's group read 16 bytes of it from shared memory (A4),
//   coordinates come by the widest loads, a chunk ahead.
// - Cells on a border are moved inside, so that no load is conditional; a cell is a place and three weights.
// - One block a multiprocessor takes neighbouring rows, images in turns that L2 holds, queries that are pixels in strips of
//   16 columns (A5, A17, A18): L1 serves what neighbours share.
// - Two 64-byte pixels in one wavefront: neighbouring groups read opposite halves of lines, two heads of a query, or pixel
//   pairs in alternating order.
// - The next sample's neighbours are on their way while this one's are added.
// - Of a single head the levels of the mask KEPT, half of all, lie in shared memory (A5), copied while warps already work on
//   the larger ones; a block then takes its rows plane by plane.
// Left out, because they lose: tiles, boxes, clusters, tensor cores, specialised warps, more of the levels.
//
// HALF: corners mixed in half precision, then summed in f32; a quarter fewer instructions for an error twice as large.
// THREADS; QUERIES, HEADS; PIXEL_QUERIES (queries are the pixels); TURN (rows of all blocks until the next turn), SHARE (of
// them, a block's); KEPT.

constexpr int LANES = VECTORS, GROUPS = 32 / LANES, WARPS = THREADS / 32;
constexpr int PER_LANE = POINTS % 2 == 0 ? 2 : 1; // samples a lane works out at a time, of one level
constexpr int CHUNK = LANES * PER_LANE, CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
constexpr bool WHOLE = SAMPLES % CHUNK == 0;
constexpr u32 TOGETHER = CHANNELS == 32 && HEADS % 2 == 0 ? 2 : 1;  // heads of a query side by side
constexpr bool ALTERNATE = CHANNELS == 32 && TOGETHER == 1;
constexpr u32 PLANE = QUERIES * TOGETHER, PLANES_AN_IMAGE = HEADS / TOGETHER;
constexpr u32 UNITS = HEADS * PIXEL_BYTES / 16; // 16-byte units from a pixel to the next
constexpr u32 STRIP = 16;
constexpr u32 RECORD_BYTES = WARPS * GROUPS * CHUNK * 16;
static_assert(KEPT == 0 || POINTS % CHUNK == 0, "a chunk is of one level, kept or not");

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border
    float second; // weight of the second neighbour
    u32 first;
};

__device__ __forceinline__ Axis axis(float location, float size) {
    constexpr float SHIFT = 8388608.0f; // added towards zero, it leaves the whole part in the low bits
    const float at = __fmaf_rn(location, size, -0.5f);
    Axis a;
    a.inside = __saturatef(at + 1.0f) * __saturatef(size - at); // NaN saturates to 0
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    a.second = clamped - (first - SHIFT);
    a.first = __float_as_uint(first) - 0x4b000000u;
    return a;
}

// x: the first neighbour's place in 16-byte units; y: the weight of the second column (negative: that is the left one); z, w:
// the weights of the upper and the lower row.
// Of a level in shared memory, which begins at `kept_at`, the place is an address.
__device__ __forceinline__ Words record_of(float2 location, float sample_weight, const Level &level, u32 pixels, u32 group,
                                           bool kept, u32 kept_at) {
    const Axis x = axis(location.x, static_cast<float>(level.width)), y = axis(location.y, static_cast<float>(level.height));
    const float weight = sample_weight * x.inside * y.inside, lower = weight * y.second;
    // In a level one pixel wide there may be no pixel to the right: then the pair is the one that ends with this pixel.
    const u32 pixel = level.start + y.first * level.width + x.first, pair = min(pixel, pixels - 2 - level.below);
    float second = x.second + static_cast<float>(pixel - pair);
    u32 place = kept ? kept_at + (pair - level.start) * PIXEL_BYTES : pair * UNITS;
    if (ALTERNATE && ((pair ^ group) & 1)) {
        place += kept ? PIXEL_BYTES : UNITS;
        second = -(1.0f - second); // -0 counts as negative
    }
    return {place, __float_as_uint(second), __float_as_uint(weight - lower), __float_as_uint(lower)};
}

// Where a group's record of a slot lies, turned so that writing a column of records meets no bank twice.
__device__ __forceinline__ u32 record_at(u32 first, u32 slot) {
    constexpr u32 STEP = 8 / LANES > 0 ? 8 / LANES : 1;
    return (first ^ (slot / PER_LANE * STEP & (GROUPS - 1)) * 16) + slot * (GROUPS * 16);
}

// The query walked as the i-th.
__device__ __forceinline__ u32 query_of(const Problem &p, u32 i) {
    if (!PIXEL_QUERIES) return i;
    int l = 0;
#pragma unroll
    for (int other = 1; other < LEVELS; other++) {
        if (static_cast<u32>(p.levels[other].start) <= i) l = other;
    }
    const u32 width = p.levels[l].width, height = p.levels[l].height, start = p.levels[l].start, inside = i - start;
    const u32 strip = inside / (STRIP * height), rest = inside - strip * (STRIP * height), x = strip * STRIP;
    const u32 wide = min(STRIP, width - x), y = rest / wide;
    return start + y * width + x + (rest - y * wide);
}

__device__ __forceinline__ void mix(u32 (&mixed)[4], const Words &tap, float weight) {
    u32 pair = rounded(weight, weight);
    const u32 words[4] = {tap.x, tap.y, tap.z, tap.w};
#pragma unroll
    for (int i = 0; i < 4; i++) asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(mixed[i]) : "r"(words[i]), "r"(pair));
}

// Arrives once everything this thread has had copied is there.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a16(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ u64 filled_barrier;
    __shared__ u32 taken; // rows of the piece
    const u32 filled_at = shared_address(&filled_barrier), all_kept = shared_address(memory) + RECORD_BYTES;
    u32 begin = 0, after = 0, parity = 1;
    bool filled = true;
    if (KEPT != 0 && threadIdx.x == 0) make_barrier(filled_at, THREADS);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, vector = lane % LANES;
    const u32 first_record = shared_address(memory) + (warp * GROUPS * CHUNK + group) * 16;
    const u32 rows = row_count(p), first_row = blockIdx.x * SHARE, room = min(static_cast<u32>(SHARE), TURN - first_row);
    u32 turn = 0, ahead = warp * GROUPS + group;
    bool live;
    const char *value = p.value;
    char *out = nullptr;
    const float2 *next_location = nullptr;
    const float *next_weight = nullptr;
    float coordinates[2 * PER_LANE], weights[PER_LANE];

    const auto ask = [&](int chunk) {
#pragma unroll
        for (int v = 0; v < PER_LANE; v++) coordinates[2 * v] = coordinates[2 * v + 1] = weights[v] = 0.0f;
        if (!live || !(WHOLE || chunk * CHUNK + vector * PER_LANE < SAMPLES)) return;
        const float2 *location = next_location + chunk * CHUNK;
        const float *weight = next_weight + chunk * CHUNK;
        if (PER_LANE == 2) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(coordinates[0]), "=f"(coordinates[1]), "=f"(coordinates[2 * PER_LANE - 2]),
                           "=f"(coordinates[2 * PER_LANE - 1])
                         : "l"(location));
            asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
                         : "=f"(weights[0]), "=f"(weights[PER_LANE - 1])
                         : "l"(weight));
        } else {
            asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
                         : "=f"(coordinates[0]), "=f"(coordinates[1])
                         : "l"(location));
            asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(weights[0]) : "l"(weight));
        }
    };
    const auto start_row = [&] {
        u32 number;
        if (KEPT != 0) { // to whichever warp comes next; the order of a pair of pixels goes by the row, not the warp
            u32 next = 0;
            if (lane == 0) next = atomicAdd(&taken, static_cast<u32>(GROUPS));
            number = begin + __shfl_sync(ALL, next, 0) + group;
            live = number < after;
        } else {
            while (ahead >= room && turn < rows) ahead -= room, turn += TURN;
            number = turn + first_row + ahead;
            live = turn < rows && number < rows;
        }
        if (live) {
            const u32 plane = number / PLANE, at = number % PLANE, image = plane / PLANES_AN_IMAGE;
            const u32 head = plane % PLANES_AN_IMAGE * TOGETHER + at % TOGETHER, query = query_of(p, at / TOGETHER);
            const u64 row = (image * QUERIES + query) * HEADS + head;
            value = p.value + (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES + vector * 16;
            out = p.out + row * PIXEL_BYTES + vector * 16;
            next_location = p.locations + row * SAMPLES + vector * PER_LANE;
            next_weight = p.weights + row * SAMPLES + vector * PER_LANE;
        }
        ask(0);
    };
    const auto each_row = [&] {
        start_row();
#pragma unroll 1
        while (__any_sync(ALL, live)) {
            const bool mine = live;
            char *const this_out = out;
            const char *upper = value;
            asm("" : "+l"(upper)); // one register pair, not a sum to be repeated at each load
            float sums[VECTOR] = {};
            u32 kept_at = all_kept;
            // Two copies of the code, one for levels in shared memory.
            const auto add_chunk = [&](int chunk, bool kept) {
                const u32 sample = chunk * CHUNK + vector * PER_LANE;
                const Level level = p.levels[(WHOLE || sample < SAMPLES ? sample : 0) / POINTS];
                Words mine_of[PER_LANE];
#pragma unroll
                for (int v = 0; v < PER_LANE; v++) {
                    mine_of[v] = record_of({coordinates[2 * v], coordinates[2 * v + 1]}, weights[v], level, p.pixels, group, kept,
                                           kept_at);
                }
                if (chunk + 1 < CHUNKS) {
                    ask(chunk + 1);
                } else {
                    ahead += WARPS * GROUPS;
                    start_row();
                }
                __syncwarp();
#pragma unroll
                for (int v = 0; v < PER_LANE; v++) store_shared(record_at(first_record, vector * PER_LANE + v), mine_of[v]);
                __syncwarp();

                Words taps[2][4];
                float by[2][3];
                const auto load_sample = [&](int slot) {
                    const u32 number = chunk * CHUNK + slot;
                    const u32 below = p.levels[(WHOLE || number < SAMPLES ? number : 0) / POINTS].below * UNITS;
                    const Words r = load_shared(record_at(first_record, slot));
                    float(&b)[3] = by[slot % 2];
                    b[0] = __uint_as_float(r.y), b[1] = __uint_as_float(r.z), b[2] = __uint_as_float(r.w);
                    if (kept) {
                        const u32 here = r.x + vector * 16, down = level.below * PIXEL_BYTES;
                        const u32 other = ALTERNATE && static_cast<int>(r.y) < 0 ? here - PIXEL_BYTES : here + PIXEL_BYTES;
                        Words(&t)[4] = taps[slot % 2];
                        t[0] = load_shared(here), t[1] = load_shared(other);
                        t[2] = load_shared(here + down), t[3] = load_shared(other + down);
                        return;
                    }
                    const u32 second = ALTERNATE && static_cast<int>(r.y) < 0 ? r.x - UNITS : r.x + UNITS;
                    const char *lower = upper + static_cast<u64>(below) * 16;
                    Words(&t)[4] = taps[slot % 2];
                    t[0] = load(upper + static_cast<u64>(r.x) * 16);
                    t[1] = ALTERNATE ? load(upper + static_cast<u64>(second) * 16)
                                     : load(upper + static_cast<u64>(r.x) * 16 + UNITS * 16);
                    t[2] = load(lower + static_cast<u64>(r.x) * 16);
                    t[3] = ALTERNATE ? load(lower + static_cast<u64>(second) * 16)
                                     : load(lower + static_cast<u64>(r.x) * 16 + UNITS * 16);
                };
                load_sample(0);
#pragma unroll
                for (int slot = 0; slot < CHUNK; slot++) {
                    if (!WHOLE && chunk * CHUNK + slot >= SAMPLES) break;
                    if (slot + 1 < CHUNK) load_sample(slot + 1);
                    const Words(&t)[4] = taps[slot % 2];
                    const float(&b)[3] = by[slot % 2];
                    const float second = ALTERNATE ? fabsf(b[0]) : b[0], one = 1.0f - second;
                    const float corner[4] = {one * b[1], second * b[1], one * b[2], second * b[2]};
                    u32 mixed[4] = {};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (HALF) {
                            mix(mixed, t[i], corner[i]);
                        } else {
                            add(sums, t[i], corner[i]);
                        }
                    }
                    if (HALF) add(sums, {mixed[0], mixed[1], mixed[2], mixed[3]}, 1.0f);
                }
            };
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                if (KEPT >> (chunk * CHUNK / POINTS) & 1) {
                    if (!filled) wait_for_phase(filled_at, parity);
                    filled = true;
                    const Level &level = p.levels[chunk * CHUNK / POINTS];
                    add_chunk(chunk, true);
                    if ((chunk + 1) * CHUNK % POINTS == 0) kept_at += level.width * level.height * PIXEL_BYTES;
                } else {
                    add_chunk(chunk, false);
                }
            }
            if (mine) store_sums(this_out, sums);
        }
    };

    if (KEPT == 0) {
        each_row();
        return;
    }
    for (u32 start = first_row; start < rows; start += TURN) {
        const u32 end = min(start + room, rows);
        for (begin = start; begin < end; begin = after) {
            const u32 plane = begin / PLANE;
            after = min(end, (plane + 1) * PLANE);
            __syncthreads(); // nobody reads the last plane's pixels any more
            if (threadIdx.x == 0) taken = 0;
            const u64 first_pixel = static_cast<u64>(plane / PLANES_AN_IMAGE) * p.pixels * HEADS + plane % PLANES_AN_IMAGE;
            u32 target = all_kept;
            for (int l = 0; l < LEVELS; l++) {
                if (!(KEPT >> l & 1)) continue;
                const char *pixels = p.value + first_pixel * PIXEL_BYTES + static_cast<u64>(p.levels[l].start) * (UNITS * 16);
                const u32 count = p.levels[l].width * p.levels[l].height * VECTORS;
                for (u32 i = threadIdx.x; i < count; i += THREADS) {
                    copy_async(target + i * 16, pixels + (static_cast<u64>(i / VECTORS) * UNITS + i % VECTORS) * 16);
                }
                target += count * 16;
            }
            arrive_when_copied(filled_at);
            filled = false, parity ^= 1;
            __syncthreads(); // for `taken`
            each_row();
        }
    }
}
