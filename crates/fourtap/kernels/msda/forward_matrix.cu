// Forward for 64-byte rows of 16-bit channels, one head at a time, summed on tensor cores. See forward_matrix.cuh.
//
// A warp takes four rows at a time and, in each step, one sample of each. Eight lanes (a *slot*) read 128 bytes of
// the sample's upper two neighbours and 128 of its lower two. Weights stay in registers: a lane computes two samples
// of its row and swaps half of them with one neighbour. In step j slot s has a sample of row (s - j) % 4, so that
// weights are where the product wants its columns. Sample positions pass through shared memory as 16-bit indices.
//
// Limited by the load/store pipe: each 64-byte neighbour takes a whole wavefront.
//
// KEEP: samples of the second half of the levels read shared memory by ldmatrix, which transposes, alternating with
// those of the first half. The 16-byte pieces lie so that four pixel pairs meet no bank twice: matrix m reads piece m
// ^ r of row r's pixels. KEPT_ROOM: see forward_levels.cuh.

static_assert(VALUE != F32 && CHANNELS == 32 && HEADS_TOGETHER == 1 && SPLIT == 1 && PER_LANE == 2, "as described");
constexpr int UNIT = 4;   // rows of a warp
constexpr int ROUND = 16; // samples of a row: two a lane
constexpr int ROUNDS = SAMPLES / ROUND;
static_assert(ROUNDS * ROUND == SAMPLES && (ROUNDS == 1 || ROUNDS == 2), "whole rounds");
constexpr int STEPS = KEEP ? SAMPLES / 2 : SAMPLES; // samples of levels in device memory
static_assert(STEPS % POINTS == 0 && STEPS % 8 == 0, "whole levels, and whole eights");
// Steps whose neighbours are on their way; when the next rows' samples are looked at: after all places of these have been read.
constexpr int AHEAD = 4, KEPT_AHEAD = STEPS == 8 ? 1 : 2, LOOK = STEPS - AHEAD - (STEPS == 8 ? 0 : 2);
static_assert(STEPS - 8 - (KEPT_AHEAD - 1) < LOOK, "places are read before they are replaced");
constexpr u32 KEPT_PIXEL = 64; // bytes
static_assert(KEEP || KEPT_ROOM == 0, "room for what is kept");

// Of a level, in pairs of words: lanes read no more than they need, because each word that reaches a register costs the load pipe as
// much as one of `value`. Places are pixels from `base` on.
struct __align__(32) Ground {
    u32 base;  // a pixel of the image
    u32 down;  // bytes to the row below
    u32 first; // the place of the level's first pixel
    u32 last;  // the last place that has a neighbour to the right, and below
    float width, height;
};

// The level of samples that a lane works out. With 16 samples it is the same in all rows, and stays in registers.
struct OwnLevel {
    float width, height;
    WordPair ends; // `first` and `last`; with 32 samples they are read where they are needed, for want of registers

    __device__ __forceinline__ OwnLevel(u32 ground) : ends{0, 0} {
        const WordPair size = load_shared_pair(ground + 16);
        width = __uint_as_float(size.x), height = __uint_as_float(size.y);
        if (ROUNDS == 1) ends = load_shared_pair(ground + 8);
    }
    // Its pixel at column `x` of row `y`, in f32, where all these are whole numbers.
    __device__ __forceinline__ u32 pixel(u32 x, u32 y) const {
        const float row = __uint_as_float(SHIFT_BITS + y) - SHIFT;
        return __float_as_uint(__fmaf_rn(row, width, __uint_as_float(SHIFT_BITS + x))) - SHIFT_BITS;
    }
};

// What a lane multiplies by in the steps of a round: of its row's sample `t` of each eight, both points of a pair, in the upper and in
// the lower row of pixels: left and right in a word, rounded in lanes of part 0, what rounding took away in those of part 1.
struct Factors {
    u32 of[2][2][2];
};

// Levels as slots read them. Kept ones lie one after another.
static __device__ __forceinline__ void share_grounds(const Arguments &a, int4 *levels, Ground *grounds) {
    if (threadIdx.x < LEVELS) {
        const int l = threadIdx.x;
        const Level level = level_of(a, l);
        // A level without pixels: a width no coordinate is inside of, and a place that exists.
        const bool empty = level.width <= 0 || level.height <= 0;
        const int start = static_cast<int>(level.start);
        const u32 apart = !empty && level.height > 1 ? level.width : 0;
        // The last pixel of a level of one column counts as the right one of a pair.
        const int base = empty ? 0 : level.width == 1 && start > 0 ? start - 1 : start;
        levels[l] = empty ? make_int4(-2, -2, 0, -1) : make_int4(level.width, level.height, start, -1);
        const u32 last_pair = static_cast<u32>(a.pixels) - 2 - apart;
        const float width = static_cast<float>(levels[l].x), height = static_cast<float>(levels[l].y);
        grounds[l] = {static_cast<u32>(base), apart * PIXEL_BYTES, empty ? 0u : static_cast<u32>(start - base), last_pair - base, width, height};
#if KEEP
        if (l * POINTS >= STEPS) {
            u32 before = 0;
            for (int other = STEPS / POINTS; other < l; other++) {
                const Level kept = level_of(a, other);
                before += kept.width * kept.height;
            }
            grounds[l] = {0, apart * KEPT_PIXEL, before, 0xffffu, width, height};
        }
#endif
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward_matrix(const __grid_constant__ Arguments arguments, const __grid_constant__ Schedule schedule
#if PROJECTED
                        , const __grid_constant__ Projection projection
#endif
    ) {
    __shared__ __align__(128) u32 places[WARPS][ROUNDS][32];
    __shared__ Constants constants;
    __shared__ int4 levels[LEVELS];
    __shared__ Ground grounds[LEVELS];
    __shared__ u32 taken;
#if KEEP
    extern __shared__ __align__(128) char kept_pixels[];
    __shared__ u64 barrier;
    const u32 filled = shared_address(&barrier);
    u32 parity = 1;
#endif
    const Arguments &a = arguments;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The row whose samples a lane works out, which half of a round and which pair of it. As a reader a lane belongs to slot `r`.
    const u32 r = lane / 8, part = lane / 4 % 2, t = lane % 4;
#if KEPT_ROOM
    let_next_begin();
#endif
    share_grounds(a, levels, grounds);
    write_constants(constants);
#if KEEP
    if (threadIdx.x == 0) make_barrier(filled, THREADS);
#endif
    __syncthreads();
#if KEPT_ROOM
    if (!levels_suit_matrix(levels)) return; // the kernel queued after this one does the work
#endif
    const Identity identity = read_identity(constants, lane);
    const u32 pixel = read_opaque(&constants.pixel), one = read_opaque(&constants.one);
    const u32 ground_base = shared_address(grounds);
    const auto ground_of = [&](u32 sample) { return ground_base + level_number(sample) * sizeof(Ground); };
    const auto own_sample = [&](int round) { return round * ROUND + lane % 8 * 2; };
    const OwnLevel of_all_rows(ground_of(own_sample(0)));
    const u32 place_base = shared_address(&places[warp][0][0]);
    const u32 place_to = place_base + (part * 16 + t * 4 + (t - r & 3)) * 4, place_from = place_base + r * 16;
    bool suspicious = false;
#if KEEP
    // As the one that tells ldmatrix where 16 bytes of a pixel lie: of which slot, the left or right pixel, which quarter.
    const u32 kept_slot = lane % 8 / 2, kept_matrix = lane / 8 % 2;
    const bool kept_lower = lane >= 16;
    const u32 kept_from = place_base + STEPS * 8 + kept_slot * 16;
    u32 quarter[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        quarter[j] = shared_address(kept_pixels) + lane % 2 * KEPT_PIXEL + (kept_matrix ^ (kept_slot - j & 3)) * 16;
    }
#endif

    const u32 first = blockIdx.x * schedule.share, room = min(schedule.share, schedule.turn - first);
    for (u32 turn = 0; turn < schedule.rows; turn += schedule.turn) {
        const u32 end = min(turn + first + room, schedule.rows);
        for (u32 begin = turn + first, after; begin < end; begin = after) {
            const u32 plane = schedule.by_plane.divide(begin), plane_first = plane * schedule.plane;
            after = min(end, plane_first + schedule.plane);
            const u32 n = schedule.by_planes_an_image.divide(plane), m = plane - n * schedule.planes_an_image;
            const char *const image = static_cast<const char *>(a.value) + (n * a.value_strides[0] + m * a.value_strides[2]) * ELEMENT_BYTES;
            __syncthreads(); // nobody reads the last plane's pixels any more
            if (threadIdx.x == 0) taken = 0;
#if KEEP
            u32 target = shared_address(kept_pixels);
            for (int l = STEPS / POINTS; l < LEVELS; l++) {
                const int4 level = levels[l];
                const char *const pixels = image + static_cast<u64>(level.z) * PIXEL_BYTES;
                const u32 words = level.x * level.y * 16;
                // Of each pixel word 4 c + w goes to 4 w + c: 16 bytes are what four lanes would read as word w of a vector.
                for (u32 i = threadIdx.x; i < words; i += THREADS) {
                    const u32 word = i % 16, source = word % 4 * 4 + word / 4;
                    copy_async<4>(target + i * 4, pixels + static_cast<u64>(i / 16) * PIXEL_BYTES + source * 4, 4);
                }
                target += words * 4;
            }
            arrive_when_copied(filled);
            parity ^= 1;
#endif
            __syncthreads(); // for `taken`

            Pending pending[ROUNDS]; // asked for, not looked at
#if PROJECTED
            RowLogits<ROUNDS> logits; // likewise
#endif
            const auto take = [&] {
                u32 ahead = 0;
                if (lane == 0) ahead = atomicAdd(&taken, static_cast<u32>(UNIT));
                return begin + __shfl_sync(ALL, ahead, 0);
            };
            // Asks for the samples of a lane's row, or of the last one, and returns the row's query.
            const auto ask = [&](u32 unit) {
                // Not walked in strips, `order` is 0: too much for what it saves. With 32 samples it is asked for all the same, because
                // the compiler then finds registers for everything.
                const u32 number = min(unit + r, after - 1) - plane_first;
                const u32 q = SAMPLES == 32 ? query_of(schedule.order, number, levels) : number;
#if DENSE
                const u64 row = (n * static_cast<u32>(a.queries) + q) * static_cast<u32>(a.heads) + m;
                const u64 to_locations = row * (SAMPLES * LOCATION_BYTES), to_weights = row * (SAMPLES * WEIGHT_BYTES);
#elif PROJECTED
                const u64 to_locations = to_row(a.location_strides, n, q, m, LOCATION_BYTES / 2);
                const u64 to_weights = to_row(a.weight_strides, n, q, m, WEIGHT_BYTES);
#else
                const i64 location = n * a.location_strides[0] + q * a.location_strides[1] + m * a.location_strides[2];
                const i64 weight = n * a.weight_strides[0] + q * a.weight_strides[1] + m * a.weight_strides[2];
                const i64 to_locations = location * (LOCATION_BYTES / 2), to_weights = weight * WEIGHT_BYTES;
#endif
                const char *const locations = static_cast<const char *>(a.locations) + to_locations + lane % 8 * (2 * LOCATION_BYTES);
                const char *const weights = static_cast<const char *>(a.weights) + to_weights + lane % 8 * (2 * WEIGHT_BYTES);
#if PROJECTED
                const char *const references = static_cast<const char *>(projection.references) + to_references(projection, n, q);
#endif
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
#if PROJECTED
                    pending[i].load(locations + i * (ROUND * LOCATION_BYTES), references, projection, own_sample(i));
                    logits.load(i, weights + i * (ROUND * WEIGHT_BYTES));
#else
                    pending[i].load(locations + i * (ROUND * LOCATION_BYTES), weights + i * (ROUND * WEIGHT_BYTES));
#endif
                }
                return q;
            };
            // Works out where the samples lie that were asked for, and how much they count.
            const auto look = [&](Factors (&factors)[ROUNDS]) {
#if PROJECTED
                logits.turn_into_weights();
#endif
                __syncwarp();
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
                    const OwnLevel level = ROUNDS == 1 ? of_all_rows : OwnLevel(ground_of(own_sample(i)));
                    u32 rounded[2][2], rest[2][2], both = 0;
#pragma unroll
                    for (int h = 0; h < 2; h++) {
#if PROJECTED
                        const Sample sample = pending[i].sample(h, level.width, level.height, BOX_FACTOR(level_number(own_sample(i))),
                                                                logits.weight[i][h]);
#else
                        const Sample sample = pending[i].sample(h, level.width, level.height);
#endif
                        const Axis x = axis(sample.x, level.width), y = axis(sample.y, level.height);
                        const WordPair ends = ROUNDS == 1 ? level.ends : load_shared_pair(ground_of(own_sample(i)) + 8);
                        const u32 found = ends.x + level.pixel(x.first, y.first), place = min(found, ends.y);
                        const float second = x.second + static_cast<float>(found - place);
                        const float weight = sample.weight * SCALE * (x.inside * y.inside);
                        const float lower = weight * y.second, upper = weight - lower;
                        const float upper_right = upper * second, lower_right = lower * second;
                        split<VALUE>(upper - upper_right, upper_right, rounded[h][0], rest[h][0]);
                        split<VALUE>(lower - lower_right, lower_right, rounded[h][1], rest[h][1]);
                        both |= place << 16 * h;
                    }
                    store_shared_word(place_to + i * 128, both);
                    // A lane of part 0 has samples of the first eight, and shall have the rounded weights of both.
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const u32 large = rounded[k / 2][k % 2], small = rest[k / 2][k % 2];
                        const u32 got = __shfl_xor_sync(ALL, part ? large : small, 4);
                        factors[i].of[0][k / 2][k % 2] = part ? got : large;
                        factors[i].of[1][k / 2][k % 2] = part ? small : got;
                    }
                }
                __syncwarp();
            };

            const char *mine = image + lane % 4 * 16 + part * PIXEL_BYTES;
            asm("" : "+l"(mine)); // one register pair, not a sum to be repeated
            Vector there, taps[AHEAD][2];
            const char *upper = mine;
            u32 down = 0;
            // In all rows the same with 16 samples.
            const auto stand_on = [&](int step) {
                const WordPair ground = load_shared_pair(ground_of(step + 2 * r));
                upper = at(ground.x, pixel, mine);
                down = ground.y;
            };
            if (STEPS == 8) stand_on(0);
            const auto load = [&](int step) {
                if (step % 8 == 0) {
                    there = load_shared(place_from + step * 8);
                    if (STEPS != 8) stand_on(step);
                }
                const char *const above = at(place_of_point(there, step % 4, step / 4 % 2), pixel, upper);
                taps[step % AHEAD][0] = load_vector(above);
                taps[step % AHEAD][1] = load_vector(at(down, one, above));
            };
#if KEEP
            Vector kept_there;
            u32 kept_taps[KEPT_AHEAD][2][4], kept_down = STEPS == 8 && kept_lower ? load_shared_word(ground_of(STEPS + 2 * kept_slot) + 4) : 0;
            const auto load_kept = [&](int step) {
                if (step % 8 == 0) {
                    kept_there = load_shared(kept_from + step * 8);
                    if (STEPS != 8) kept_down = kept_lower ? load_shared_word(ground_of(STEPS + step + 2 * kept_slot) + 4) : 0;
                }
                const u32 from = place_of_point(kept_there, step % 4, step / 4 % 2) * KEPT_PIXEL + quarter[step % 4] + kept_down;
                load_transposed(kept_taps[step % KEPT_AHEAD][0], from);
                load_transposed(kept_taps[step % KEPT_AHEAD][1], from ^ 32);
            };
#endif
            Factors factors[ROUNDS], coming[ROUNDS];
            u32 unit = take(), query = 0;
            if (unit < after) {
                query = ask(unit);
                look(factors);
#pragma unroll
                for (int step = 0; step < AHEAD - 1; step++) load(step);
            }
#if KEEP
            wait_for_all(filled, parity);
            if (unit < after) {
#pragma unroll
                for (int step = 0; step < KEPT_AHEAD - 1; step++) load_kept(step);
            }
#endif

#pragma unroll 1
            while (unit < after) {
                float far[2][4] = {};
#if KEEP
                float near[2][4] = {};
#endif
                u32 next = 0, next_query = 0;
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    if (step == 0) {
                        next = take();
                        next_query = ask(next);
                    }
                    if (step == LOOK) look(coming);
                    load((step + AHEAD - 1) % STEPS);
                    const bool mine_now = (t - r & 3) == step % 4;
                    const int h = step / 4 % 2;
#if KEEP
                    load_kept((step + KEPT_AHEAD - 1) % STEPS);
#endif
                    {
                        const u32(&by)[2] = factors[step / ROUND].of[step / 8 % 2][h];
                        const u32 b0 = mine_now ? by[0] : 0u, b1 = mine_now ? by[1] : 0u;
                        Vector(&v)[2] = taps[step % AHEAD];
#pragma unroll
                        for (int k = 0; k < 2; k++) {
                            transpose(v[k].x, v[k].y, identity);
                            transpose(v[k].z, v[k].w, identity);
                        }
                        multiply_add<VALUE>(far[0], v[0].x, v[0].y, v[1].x, v[1].y, b0, b1);
                        multiply_add<VALUE>(far[1], v[0].z, v[0].w, v[1].z, v[1].w, b0, b1);
                    }
#if KEEP
                    {
                        const int kept = STEPS + step;
                        const u32(&by)[2] = factors[kept / ROUND].of[kept / 8 % 2][h];
                        const u32 b0 = mine_now ? by[0] : 0u, b1 = mine_now ? by[1] : 0u;
                        const u32(&v)[2][4] = kept_taps[step % KEPT_AHEAD];
                        multiply_add<VALUE>(near[0], v[0][0], v[0][1], v[0][2], v[0][3], b0, b1);
                        multiply_add<VALUE>(near[1], v[1][0], v[1][1], v[1][2], v[1][3], b0, b1);
                    }
#endif
                }
                // This lane has row t, of its channels from 8 r on those at part + 0, 2, 4 and 6.
                float sums[4];
#pragma unroll
                for (int i = 0; i < 4; i++) sums[i] = far[i / 2][i % 2 * 2] + far[i / 2][i % 2 * 2 + 1];
#if KEEP
                float of[4]; // quarter i ^ t of the pixels
#pragma unroll
                for (int i = 0; i < 4; i++) of[i] = near[i / 2][i % 2 * 2] + near[i / 2][i % 2 * 2 + 1];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float even = t & 1 ? of[i ^ 1] : of[i], odd = t & 1 ? of[i ^ 3] : of[i ^ 2];
                    sums[i] += t & 2 ? odd : even;
                }
#endif
                const Channels channels(sums, part);
                const u32 q = unit + t - plane_first;
                if (unit + t < after) {
                    suspicious |= !channels.sound;
#if DENSE
                    const u64 row = (n * static_cast<u32>(a.queries) + q) * static_cast<u32>(a.heads) + m;
                    char *const out = static_cast<char *>(a.out) + row * (CHANNELS * ELEMENT_BYTES);
#else
                    const i64 result = n * a.out_strides[0] + q * a.out_strides[1] + m * CHANNELS;
                    char *const out = static_cast<char *>(a.out) + result * ELEMENT_BYTES;
#endif
                    channels.store(out + r * 16 + part * 8);
                }
                unit = next;
                query = next_query;
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) factors[i] = coming[i];
            }
        }
    }
    // Another warp may take a row this time.
    if (!__syncthreads_or(suspicious)) return;
    compute_anew(a, schedule, levels, warp, lane PROJECTION_ARGUMENT);
}
