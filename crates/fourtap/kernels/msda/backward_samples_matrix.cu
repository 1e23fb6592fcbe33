// Backward, gradients of locations and weights on tensor cores, for 16-bit channels that fill 4 or 8 vectors. See
// gather.cuh and samples.cuh.
//
// A warp is 8 quads, each with 64 bytes of grad_out of one row (of 128-byte rows two quads have half each). A quad
// loads 64 bytes of a sample's four neighbours at a time, and a product multiplies them by the grad_out of all quads;
// one result in eight is wanted. Lane j / 2 of quad k gets those of quad k's grad_out with what quad j loaded. So in
// turn t quad k loads for the row of quad k ^ 2t, and after four turns each lane has the results of the sample whose
// location it has read and whose gradients it writes. Lanes exchange sample positions only.
//
// Limited by waiting for loads, with 16 warps of 128 registers per thread. ALTERNATE: see forward_gather.cu.

static_assert(VALUE != F32 && (LANES == 4 || LANES == 8), "one or two quads a row");
constexpr int PARTS = LANES / 4; // quads of a row
constexpr int A_TURN = PARTS * PER_LANE;
constexpr int ROUND = A_TURN < 2 ? 2 : A_TURN; // steps of a loop: neighbours are loaded into two places in turn
static_assert(ROUND % 2 == 0, "the next round begins with the first place");
constexpr float OUTSIDE = 4.0f;

// Along one axis: the first of two neighbours, and how far from it the sample lies: less than 0 or more than 1 on a
// border, where the second or the first neighbour has no part in it.
struct Span {
    float apart;
    u32 first;
    bool turned; // of a single pixel and beyond its middle: then that pixel counts as the second
};

// Of a place in pixels.
static __device__ __forceinline__ Span span(float at, float size) {
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    Span s;
    s.first = __float_as_uint(first) - SHIFT_BITS;
    s.turned = size == 1.0f && at >= 0.0f;
    s.apart = at - (first - SHIFT) + (s.turned ? 1.0f : 0.0f);
    if (!(at > -1.0f && at < size)) s.apart = OUTSIDE;
    return s;
}

// How much the two neighbours count, and how that changes with the place. Nothing at all if `apart` is OUTSIDE.
static __device__ __forceinline__ Shares shares_at(float apart) {
    const float before = apart < 0.0f ? 1.0f : 0.0f, up_to = apart < 1.0f ? 1.0f : 0.0f, all = apart < 2.0f ? 1.0f : 0.0f;
    return {{__saturatef(1.0f - fabsf(apart)), __saturatef(1.0f - fabsf(apart - 1.0f))},
            {2.0f * before - up_to, 2.0f * up_to - before - all}};
}

// What a lane has of a chunk of a row.
struct Part {
    float x[PER_LANE], y[PER_LANE]; // from the first neighbour
#if !PROJECTED
    float weight[PER_LANE]; // otherwise in shared memory
#endif
    u32 places[PER_LANE];           // of the first neighbours, in units of 16 bytes, less than 2^31
    u32 swapped;                    // a bit each: the neighbours of a row come the other way round
#if PROJECTED && BOXES
    float scale[PER_LANE][2]; // pixels that an offset of 1 is
#endif
};

// As defined, of sample number `sample` of a row.
static __device__ __noinline__ Result anew(const Arguments &a, const Gradients &g, const Schedule &schedule,
                                           const int4 *levels, u32 walked, u32 sample PROJECTION_PARAMETER) {
    const Row row(a, schedule, levels, walked);
    const int4 level = levels[level_number(sample)];
    const char *references = nullptr;
#if PROJECTED
    references = row.references(projection);
#endif
    const Sample s = sample_of(row.locations(a), row.weights(a), references, sample, static_cast<float>(level.x),
                               static_cast<float>(level.y) PROJECTION_ARGUMENT);
    return careful(s, level, static_cast<const char *>(a.value) + row.value(a), row.grad_out(g));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_backward_samples_matrix(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                                 const __grid_constant__ Schedule schedule
#if PROJECTED
                                 , const __grid_constant__ Projection projection
#endif
    ) {
    let_next_begin();
    __shared__ int4 levels[LEVELS];
    __shared__ u32 apart[LEVELS]; // rows of a level, in bytes
#if PROJECTED
    __shared__ Kept<2> kept;
#endif
    share_levels(a, schedule, levels);
    if (threadIdx.x < LEVELS) {
        const int4 level = levels[threadIdx.x];
        apart[threadIdx.x] = (level.y > 1 ? level.x : 0) * (PIXEL_UNITS * 16);
    }
    __syncthreads();
    const u32 level_base = shared_address(levels), apart_base = shared_address(apart);

    const u32 lane = threadIdx.x % 32, quad = lane / 4, odd = quad % 2;
    // The turn in which the lane finds products; the lane that has the sample which its quad loads for in turn 0.
    const u32 my_turn = quad / 2 ^ lane % 4, source = (PARTS == 1 ? quad : quad & ~1u) * 4 + quad / 2;
    const u32 owner = PARTS == 1 ? my_turn : 2 * my_turn + odd;
    const u32 vector = quad % PARTS * 4 + lane % 4;

    const char *upper = static_cast<const char *>(a.value) + min(vector, VECTORS - 1u) * 16, *lower = upper;
    asm("" : "+l"(upper)); // one register pair, not a sum to be repeated at each load
    const auto has_samples = [&](u32 chunk) { return WHOLE || chunk * CHUNK + owner * PER_LANE < SAMPLES; };

    // What has been asked for: a chunk of the walk's row, and its grad_out.
    Walk walk(schedule, threadIdx.x / 32, quad / PARTS);
    Row row;
    u32 value = 0; // where its pixels begin, in units of 16 bytes
    Vector grads;
    Pending pending;
#if PROJECTED
    Logits logits; // of that row
    u32 odd_row = 0; // which of two places has the weights of the row that is worked on
#endif
    const auto ask = [&](u32 chunk) {
        pending.clear();
        if (walk.live && has_samples(chunk)) {
            const u32 sample = chunk * CHUNK + owner * PER_LANE;
#if PROJECTED
            pending.load(row.locations(a) + sample * LOCATION_BYTES, row.references(projection), projection, sample);
#else
            pending.load(row.locations(a) + sample * LOCATION_BYTES, row.weights(a) + sample * WEIGHT_BYTES);
#endif
        }
    };
    const auto ask_row = [&] {
        grads = {0, 0, 0, 0};
#if PROJECTED
        logits.clear();
#endif
        if (walk.live) {
            row = Row(a, schedule, levels, walk.row);
            value = static_cast<u32>(row.value(a) / 16);
            if (vector < VECTORS) grads = load_vector(row.grad_out(g) + vector * 16);
#if PROJECTED
            logits.load(row.weights(a), owner * PER_LANE);
#endif
        }
        ask(0);
    };
    const auto below = [&](u32 level) {
        lower = upper + load_shared_word(apart_base + (WHOLE || level < LEVELS ? level : 0) * 4);
        asm("" : "+l"(lower));
    };
    // From that, of the chunk which then becomes the next.
    const auto locate = [&](u32 chunk) {
        const u32 sample = chunk * CHUNK + owner * PER_LANE;
        if (ONE_LEVEL) below(level_number(chunk * CHUNK));
        const u32 level_index = WHOLE || sample < SAMPLES ? level_number(sample) : 0;
        const Vector level = load_shared(level_base + level_index * 16);
        const u32 last_pair = static_cast<u32>(a.pixels) - 2 - rows_apart(level);
        const float width = static_cast<float>(static_cast<int>(level.x)), height = static_cast<float>(static_cast<int>(level.y));
        Part part;
        part.swapped = 0;
#if PROJECTED
        // The first chunk is the next row's.
        if (chunk == 0) {
            const Weights weights(logits);
            kept.begin(odd_row ^ 1, weights);
            // The group's first lane leaves behind what sorting needs.
            if (projection.statistics && walk.live && lane % GROUP == 0) {
                kept_statistics<float>(a, projection, row.n, row.q, row.m) = weights.statistics;
            }
        }
#endif
#pragma unroll
        for (int v = 0; v < PER_LANE; v++) {
#if PROJECTED
            const float factor = BOX_FACTOR(level_index);
            const Sample s = pending.sample(v, width, height, factor, 0.0f);
#if BOXES
            part.scale[v][0] = pending.scale(v, 0, width, factor);
            part.scale[v][1] = pending.scale(v, 1, height, factor);
#endif
#else
            const Sample s = pending.sample(v, width, height);
#endif
            const Span x = span(s.x, width), y = span(s.y, height);
            // In a level one pixel wide there may be no pixel to the right: then the pair is the one that ends with this
            // pixel.
            const u32 pixel = level.z + y.first * level.x + x.first, pair = min(pixel, last_pair);
            const u32 swap = ALTERNATE ? (pair ^ quad) & 1 : 0;
            part.swapped |= (swap ^ (pixel - pair) ^ x.turned) << v;
            // The highest bit tells that the right-hand pixel comes first.
            part.places[v] = value + (pair + swap) * PIXEL_UNITS + (swap << 31);
            part.x[v] = x.apart;
            part.y[v] = y.apart;
#if !PROJECTED
            part.weight[v] = s.weight;
#endif
        }
        return part;
    };
    Vector taps[2][4];
    // Step `k` of a round.
    const auto turn_of = [](u32 round, int k) { return ROUND == A_TURN ? round : round * ROUND + k; };
    const auto load = [&](const Part &part, u32 chunk, u32 round, int k) {
        if (!ONE_LEVEL) below(level_number(chunk * CHUNK + round * ROUND + k));
        const u32 from = (source + k % A_TURN / PER_LANE * 4) ^ turn_of(round, k) * 8;
        const u32 place = __shfl_sync(ALL, part.places[k % PER_LANE], from);
        Vector(&t)[4] = taps[k % 2];
#if ALTERNATE
        u32 first = place & 0x7fffffffu;
        const u32 second = first + PIXEL_UNITS - (place >> 31) * (2 * PIXEL_UNITS);
        asm("" : "+r"(first)); // multiplied and added in one
        t[0] = load_vector(upper + static_cast<u64>(first) * 16);
        t[1] = load_vector(upper + static_cast<u64>(second) * 16);
        t[2] = load_vector(lower + static_cast<u64>(first) * 16);
        t[3] = load_vector(lower + static_cast<u64>(second) * 16);
#else
        const char *above = upper + static_cast<u64>(place) * 16, *beneath = lower + static_cast<u64>(place) * 16;
        t[0] = load_vector(above);
        t[1] = load_vector(above + PIXEL_UNITS * 16);
        t[2] = load_vector(beneath);
        t[3] = load_vector(beneath + PIXEL_UNITS * 16);
#endif
    };


    ask_row();
    Part now = locate(0);
    load(now, 0, 0, 0);
    load(now, 0, 0, 1);
    for (bool any = __any_sync(ALL, walk.live); any;) {
        // Two matrices of grad_out, of which only the first eight rows count: every other word may be anything. Shuffled,
        // where a lane asks itself: else the compiler puts them together anew for each multiplication.
        u32 these[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            these[0][i] = __shfl_sync(ALL, i < 2 ? grads.x : grads.y, lane ^ i % 2);
            these[1][i] = __shfl_sync(ALL, i < 2 ? grads.z : grads.w, lane ^ i % 2);
        }
        const bool live = walk.live;
        const u32 walked = walk.row;
        const Row this_row = row;
#if PROJECTED
        odd_row ^= 1;
#endif

#pragma unroll 1
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            const u32 sample = chunk * CHUNK + owner * PER_LANE, next_chunk = chunk + 1 < CHUNKS ? chunk + 1 : 0;
            if (next_chunk > 0) {
                ask(next_chunk);
            } else {
                walk.advance();
                ask_row();
            }

            float found[PARTS][PER_LANE][4] = {};
            const auto multiply = [&](u32 round, int k) {
                const Vector(&t)[4] = taps[k % 2];
                float(&f)[4] = found[k % A_TURN / PER_LANE][k % PER_LANE];
                const bool mine = my_turn == turn_of(round, k);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float products[4] = {};
                    multiply_add<VALUE>(products, these[0][0], these[0][1], these[0][2], these[0][3], t[i].x, t[i].y);
                    multiply_add<VALUE>(products, these[1][0], these[1][1], these[1][2], these[1][3], t[i].z, t[i].w);
                    if (mine) f[i] = odd ? products[1] : products[0];
                }
            };
            // The neighbours of two samples are on their way all the time, here and below.
            constexpr u32 LAST = CHUNK / ROUND - 1;
            const auto next_step = [&](u32 round, int k) {
                load(now, chunk, round + (k + 1) / ROUND, (k + 1) % ROUND);
                multiply(round, k);
            };
            multiply(0, 0);
#pragma unroll 1
            for (u32 round = 0; round < LAST; round++) {
#pragma unroll
                for (int k = 1; k <= ROUND; k++) next_step(round + k / ROUND, k % ROUND);
            }
#pragma unroll
            for (int k = 1; k + 1 < ROUND; k++) next_step(LAST, k);
            const Part next = locate(next_chunk);
            load(next, next_chunk, 0, 0);
            multiply(LAST, ROUND - 1);
            load(next, next_chunk, 0, 1);

            float by_place[2 * PER_LANE], by_weight[PER_LANE];
            const bool sampled = live && has_samples(chunk);
            const int4 size = levels[WHOLE || sample < SAMPLES ? level_number(sample) : 0];
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) {
                float(&f)[4] = found[0][v];
#pragma unroll
                for (int i = 0; PARTS == 2 && i < 4; i++) {
                    // Two quads have a part each of both lanes' samples.
                    const float other = found[PARTS - 1][v][i];
                    f[i] = (odd ? other : f[i]) + __shfl_xor_sync(ALL, odd ? f[i] : other, 4);
                }
                Shares x = shares_at(now.x[v]);
                if (now.swapped >> v & 1) x = {{x.share[1], x.share[0]}, {x.slope[1], x.slope[0]}};
                Result r = combine(x, shares_at(now.y[v]), f);
#if PROJECTED
                const float weight = kept.weight_at(odd_row, chunk, v);
#else
                const float weight = now.weight[v];
#endif
                const Scale scale = scale_of(weight, static_cast<float>(size.x), static_cast<float>(size.y));
                r.x = NEAREST ? 0.0f : r.x * scale.x;
                r.y = NEAREST ? 0.0f : r.y * scale.y;
                if (sampled && !is_finite(r)) r = anew(a, g, schedule, levels, walked, sample + v PROJECTION_ARGUMENT);
                by_place[2 * v] = r.x;
                by_place[2 * v + 1] = r.y;
                by_weight[v] = r.weight;
            }
#if PROJECTED
            kept.keep(chunk, by_weight);
            if (sampled && projection.places) {
                store_numbers<F32>(reinterpret_cast<char *>(this_row.places(projection) + 2 * sample), by_place);
            }
#if BOXES
#pragma unroll
            for (int i = 0; i < 2 * PER_LANE; i++) by_place[i] = by_offset(by_place[i], now.scale[i / 2][i % 2]);
#endif
#endif
            if (sampled) {
                if (g.locations) store_numbers<LOCATION>(this_row.grad_locations(g) + sample * LOCATION_BYTES, by_place);
#if !PROJECTED
                if (g.weights) store_numbers<WEIGHT>(this_row.grad_weights(g) + sample * WEIGHT_BYTES, by_weight);
#endif
            }
            now = next;
        }
#if PROJECTED
        if (g.weights) kept.store(odd_row, this_row.grad_weights(g), owner * PER_LANE, live);
#endif
        any = __any_sync(ALL, walk.live);
    }
}
