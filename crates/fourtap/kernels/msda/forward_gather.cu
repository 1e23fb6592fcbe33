// Forward for channels that fill 16-byte vectors. See gather.cuh and forward_rows.cuh.
//
// A block per multiprocessor takes neighbouring rows. One lane computes a sample's geometry; a group of lanes reads
// its four neighbours and sums them in f32 registers. The lanes share 16 bytes per sample through shared memory:
//
//     x: place of the first neighbour, in 16-byte units     z, w: weights of the upper and the lower row
//     y: weight of the second column; negative: it is the left one
//
// Limited by the load/store pipe (each shared word costs as much as a word of `value`) and instruction issue.
//
// Zero times an infinite or NaN pixel of a clamped border cell makes a sum NaN: such rows are recomputed at the end.
// ALTERNATE: for odd numbers of 64-byte pixels per row, read pixel pairs in an order that lets two share a wavefront.
// KEEP: copy small levels of a plane to shared memory first. A block then goes plane by plane, and warps take rows as
// they come free. Every row reads a kept level, so a plane's copies are done before the next plane. KEPT_ROOM: see
// forward_levels.cuh.

constexpr u32 KEPT_PIXEL = VECTORS * 16; // bytes
#if KEEP
extern __shared__ __align__(128) char kept_pixels[];
#endif

// What the lanes of a group need to know of a sample. The last pair of pixels of which the pair below exists too is
// `last_pair`. Of levels `kept` in shared memory a place is an address; that of the first pixel is `kept_at`.
static __device__ __forceinline__ Vector record(Sample sample, int width, int height, u32 start, u32 last_pair, u32 group,
                                                bool kept, u32 kept_at) {
    const Axis x = axis(sample.x, static_cast<float>(width)), y = axis(sample.y, static_cast<float>(height));
    const float weight = sample.weight * x.inside * y.inside;
    // In a level one pixel wide there may be no pixel to the right: then the pair is the one that ends with this pixel.
    const u32 pixel = start + y.first * width + x.first, pair = min(pixel, last_pair);
    float second = x.second + static_cast<float>(pixel - pair);
    u32 place = kept ? kept_at + (pair - start) * KEPT_PIXEL : pair * PIXEL_UNITS;
#if ALTERNATE
    if ((pair ^ group) & 1u) {
        place += kept ? KEPT_PIXEL : PIXEL_UNITS;
        second = -(1.0f - second); // -0 counts as negative
    }
#endif
    const float lower = weight * y.second;
    return {place, __float_as_uint(second), __float_as_uint(weight - lower), __float_as_uint(lower)};
}

#if KEEP
// The rows from `begin` to `end`, a warp's worth at a time to whichever warp comes next. All lanes advance together.
struct Taking {
    u32 *taken;
    u32 begin, end, lane, group;
    u32 row;
    bool live;

    __device__ __forceinline__ Taking(u32 *taken, u32 begin, u32 end, u32 lane, u32 group)
        : taken(taken), begin(begin), end(end), lane(lane), group(group) {
        advance();
    }
    __device__ __forceinline__ void advance() {
        u32 ahead = 0;
        if (lane == 0) ahead = atomicAdd(taken, static_cast<u32>(GROUPS));
        row = begin + __shfl_sync(ALL, ahead, 0) + group;
        live = row < end;
    }
};
typedef Taking Rows;
static_assert(ONE_LEVEL && PHASES == 1, "a chunk is of one level, kept or not, and levels come in order");
#else
typedef Walk Rows;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward_gather(const __grid_constant__ Arguments arguments, const __grid_constant__ Schedule schedule
#if PROJECTED
                        , const __grid_constant__ Projection projection
#endif
    ) {
    __shared__ __align__(1024) Vector records[WARPS][32 * PER_LANE]; // aligned so that `record_at` need not carry
    __shared__ int4 levels[LEVELS];

    const Arguments &a = arguments;
    if (threadIdx.x < LEVELS) {
        const Level level = level_of(a, threadIdx.x);
        // A level without pixels: a width no coordinate is inside of, and a place that exists.
        const bool empty = level.width <= 0 || level.height <= 0;
        const int start = static_cast<int>(level.start);
        levels[threadIdx.x] =
            empty ? make_int4(-2, -2, 0, -1) : make_int4(level.width, level.height, start, walked_from(a, schedule, level));
    }
    __syncthreads();
#if KEPT_ROOM
    wait_for_previous();
    if (levels_suit_matrix(levels)) return; // the kernel queued before this one has done the work
#endif

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 group = lane / GROUP, in_group = lane % GROUP, split = in_group / LANES;
    const u32 vector = min(lane % LANES, VECTORS - 1u);
    const u32 first_record = shared_address(&records[warp][group]);
    const u32 level_base = shared_address(levels);
    const int first_chunk = warp % PHASES * (CHUNKS / PHASES);
    const char *value = static_cast<const char *>(a.value), *next_location = nullptr, *next_weight = nullptr;
    char *out = nullptr;
    Pending pending;
#if PROJECTED
    const char *references = nullptr;
    Logits logits; // of the row that is walked next
#endif
    bool suspicious = false;
    // Whether what is kept of the plane is there; until it is, warps work on the larger levels.
    bool filled = true;
    u32 filled_barrier = 0, parity = 1;
    const auto has_samples = [&](int chunk) { return WHOLE || chunk * CHUNK + in_group * PER_LANE < SAMPLES; };

    const auto each_row = [&](Rows &walk) {
        // Finds where the row lies and asks for its first samples.
        const auto ask = [&](int chunk) {
#if PROJECTED
            pending.load(next_location, references, projection, chunk * CHUNK + in_group * PER_LANE);
#else
            pending.load(next_location, next_weight);
#endif
        };
        const auto start_row = [&] {
            pending.clear();
#if PROJECTED
            logits.clear();
#endif
            if (walk.live) {
                const Place place = place_of(a, schedule, levels, walk.row, vector PROJECTION_ARGUMENT);
                value = place.value;
                out = place.out;
                const u32 sample = first_chunk * CHUNK + in_group * PER_LANE;
                next_location = place.locations + sample * LOCATION_BYTES;
                next_weight = place.weights + sample * WEIGHT_BYTES;
#if PROJECTED
                references = place.references;
                logits.load(place.weights, in_group * PER_LANE);
#endif
                if (has_samples(first_chunk)) ask(first_chunk);
            }
        };
        start_row();

#pragma unroll 1
        while (__any_sync(ALL, walk.live)) {
            const bool mine = walk.live;
            char *const this_out = out;
            const char *upper = value;
            asm("" : "+l"(upper)); // one register pair, not a sum to be repeated at each load
            float sums[VECTOR] = {};
#if PROJECTED
            const Weights weights(logits);
#endif
            u32 kept_at = 0;
#if KEEP
            kept_at = shared_address(kept_pixels);
#endif

#pragma unroll 1
            for (int done = 0, chunk = first_chunk; done < CHUNKS; done++) {
                const Pending current = pending;
                const int next_chunk = PHASES > 1 && chunk + 1 == CHUNKS ? 0 : chunk + 1;
                if (done + 1 < CHUNKS) {
                    next_location += (next_chunk - chunk) * (CHUNK * LOCATION_BYTES);
                    next_weight += (next_chunk - chunk) * (CHUNK * WEIGHT_BYTES);
                    if (!WHOLE) pending.clear();
                    if (walk.live && has_samples(next_chunk)) ask(next_chunk);
                } else {
                    walk.advance();
                    start_row();
                }

                const u32 sample = chunk * CHUNK + in_group * PER_LANE;
                const u32 level_index = WHOLE || sample < SAMPLES ? level_number(sample) : 0;
                const Vector level = load_shared(level_base + level_index * 16);
                const float width = static_cast<float>(static_cast<int>(level.x)), height = static_cast<float>(static_cast<int>(level.y));
                const auto sample_at = [&](int v) {
#if PROJECTED
                    return current.sample(v, width, height, BOX_FACTOR(level_index), weights.at(chunk, v));
#else
                    return current.sample(v, width, height);
#endif
                };
                const u32 last_pair = static_cast<u32>(a.pixels) - 2 - rows_apart(level);
                const auto add_chunk = [&](bool kept) {
                    __syncwarp();
#pragma unroll
                    for (int v = 0; v < PER_LANE; v++) {
                        store_shared(record_at(first_record, in_group * PER_LANE + v),
                                     record(sample_at(v), level.x, level.y, level.z, last_pair, group, kept, kept_at));
                    }
                    __syncwarp();

                    const char *lower = upper;
                    const auto below = [&](Vector level) {
                        lower = upper + static_cast<u64>(rows_apart(level) * PIXEL_UNITS) * 16;
                        asm("" : "+l"(lower));
                    };
                    if (ONE_LEVEL && !kept) below(level);
                    Vector taps[2][4];
                    float by[2][3];
                    const auto load = [&](int step) {
                        const u32 slot = step * SPLIT + split;
                        if (!ONE_LEVEL && (SPLIT > 1 || step % POINTS == 0 || CHUNK % POINTS != 0)) {
                            const u32 number = level_number(chunk * CHUNK + slot);
                            below(load_shared(level_base + (WHOLE || number < LEVELS ? number : 0) * 16));
                        }
                        const Vector r = load_shared(record_at(first_record, slot));
                        Vector(&t)[4] = taps[step % 2];
                        float(&b)[3] = by[step % 2];
                        b[0] = __uint_as_float(r.y);
                        b[1] = __uint_as_float(r.z);
                        b[2] = __uint_as_float(r.w);
                        if (kept) {
                            const u32 here = r.x + vector * 16, down = rows_apart(level) * KEPT_PIXEL;
                            const u32 second = ALTERNATE && static_cast<int>(r.y) < 0 ? here - KEPT_PIXEL : here + KEPT_PIXEL;
                            t[0] = load_shared(here);
                            t[1] = load_shared(second);
                            t[2] = load_shared(here + down);
                            t[3] = load_shared(second + down);
                            return;
                        }
#if ALTERNATE
                        const u32 second = static_cast<int>(r.y) < 0 ? r.x - PIXEL_UNITS : r.x + PIXEL_UNITS;
                        t[0] = load_vector(upper + static_cast<u64>(r.x) * 16);
                        t[1] = load_vector(upper + static_cast<u64>(second) * 16);
                        t[2] = load_vector(lower + static_cast<u64>(r.x) * 16);
                        t[3] = load_vector(lower + static_cast<u64>(second) * 16);
#else
                        const char *above = upper + static_cast<u64>(r.x) * 16;
                        const char *beneath = lower + static_cast<u64>(r.x) * 16;
                        t[0] = load_vector(above);
                        t[1] = load_vector(above + PIXEL_UNITS * 16);
                        t[2] = load_vector(beneath);
                        t[3] = load_vector(beneath + PIXEL_UNITS * 16);
#endif
                    };
                    // The next sample's neighbours are on their way while this one's are added.
                    constexpr int STEPS = (CHUNKS == 1 ? SAMPLES + SPLIT - 1 : CHUNK) / SPLIT;
                    load(0);
#pragma unroll
                    for (int step = 0; step < STEPS; step++) {
                        if (!WHOLE && CHUNKS > 1 && chunk * CHUNK + step * SPLIT >= SAMPLES) break;
                        if (step + 1 < STEPS) load(step + 1);
                        const Vector(&t)[4] = taps[step % 2];
                        const float(&b)[3] = by[step % 2];
                        const float second = ALTERNATE ? fabsf(b[0]) : b[0], one = 1.0f - second;
                        add(sums, t[0], one * b[1]);
                        add(sums, t[1], second * b[1]);
                        add(sums, t[2], one * b[2]);
                        add(sums, t[3], second * b[2]);
                    }
                };
                // Two copies of the code, one for each kind of level; without KEEP one.
                if (KEEP && schedule.kept >> level_number(chunk * CHUNK) & 1) {
#if KEEP
                    if (!filled) wait_for_all(filled_barrier, parity);
                    filled = true;
#endif
                    add_chunk(true);
                    if ((chunk + 1) * CHUNK % POINTS == 0) kept_at += level.x * level.y * KEPT_PIXEL;
                } else {
                    add_chunk(false);
                }
                chunk = next_chunk;
            }

#pragma unroll
            for (int other = LANES; other < GROUP; other *= 2) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sums[i] += __shfl_xor_sync(ALL, sums[i], other);
            }
            if (mine && in_group < VECTORS) {
                suspicious |= !sound(sums);
                store(this_out, sums);
            }
        }
    };

#if KEEP
    __shared__ u32 taken; // rows of the piece
    __shared__ u64 barrier;
    filled_barrier = shared_address(&barrier);
    if (threadIdx.x == 0) make_barrier(filled_barrier, THREADS);
    const u32 first = blockIdx.x * schedule.share, room = min(schedule.share, schedule.turn - first);
    for (u32 turn = 0; turn < schedule.rows; turn += schedule.turn) {
        const u32 end = min(turn + first + room, schedule.rows);
        for (u32 begin = turn + first, after; begin < end; begin = after) {
            after = min(end, (schedule.by_plane.divide(begin) + 1) * schedule.plane);
            __syncthreads(); // nobody reads the last plane's pixels any more
            if (threadIdx.x == 0) taken = 0;
            const Place place = place_of(a, schedule, levels, begin, 0 PROJECTION_ARGUMENT);
            u32 target = shared_address(kept_pixels);
            for (int l = 0; l < LEVELS; l++) {
                if (!(schedule.kept >> l & 1)) continue;
                const int4 level = levels[l];
                const char *const pixels = place.value + static_cast<u64>(level.z) * (PIXEL_UNITS * 16);
                const u32 count = level.x * level.y * VECTORS;
                for (u32 i = threadIdx.x; i < count; i += THREADS) {
                    copy_async<16>(target + i * 16, pixels + (static_cast<u64>(i / VECTORS) * PIXEL_UNITS + i % VECTORS) * 16, 16);
                }
                target += count * 16;
            }
            arrive_when_copied(filled_barrier);
            filled = false;
            parity ^= 1;
            __syncthreads(); // for `taken`
            Rows rows(&taken, begin, after, lane, group);
            each_row(rows);
        }
    }
    // Another warp may take a row this time.
    if (!__syncthreads_or(suspicious)) return;
#else
    Rows rows(schedule, warp, group);
    each_row(rows);
    if (!__any_sync(ALL, suspicious)) return;
#endif
    compute_anew(a, schedule, levels, warp, lane PROJECTION_ARGUMENT);
}
