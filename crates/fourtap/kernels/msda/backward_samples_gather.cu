// Backward, gradients of locations and weights for channels that fill 16-byte vectors. See gather.cuh and
// samples.cuh.
//
// A group of lanes reads a sample's four neighbours, multiplies them by its grad_out, sums over its lanes and passes
// the sums through shared memory to the lane that has the sample. Limited by loads and the load/store pipe.
//
// SCATTER: also add to grad_value, which holds zeros, by atomic additions: fastest for small f32 problems, in an
// uncontrolled order.

#if SCATTER
static __device__ __forceinline__ void add_to(char *at, Vector grads, float weight) {
    const float a = weight * __uint_as_float(grads.x), b = weight * __uint_as_float(grads.y);
    const float c = weight * __uint_as_float(grads.z), d = weight * __uint_as_float(grads.w);
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
#else
    float *const to = reinterpret_cast<float *>(at);
    atomicAdd(to, a);
    atomicAdd(to + 1, b);
    atomicAdd(to + 2, c);
    atomicAdd(to + 3, d);
#endif
}
#endif

// How much neighbours count along one axis, and how that changes with the place.
static __device__ __forceinline__ Shares shares(float at, float size) {
    if (!(at > -1.0f && at < size)) return {};
    if (at < 0.0f) return {{at + 1.0f, 0.0f}, {1.0f, 0.0f}};
    if (at >= size - 1.0f) {
        const float share = size - at;
        return size > 1.0f ? Shares{{0.0f, share}, {0.0f, -1.0f}} : Shares{{share, 0.0f}, {-1.0f, 0.0f}};
    }
    const float second = at - floorf(at);
    return {{1.0f - second, second}, {-1.0f, 1.0f}};
}

// From the sums of the four neighbours. `moved`: the only column is read as the second one.
static __device__ __forceinline__ Result result(Sample sample, int width, int height, bool moved, const float (&sums)[4]) {
    Shares x = shares(sample.x, static_cast<float>(width));
    const Shares y = shares(sample.y, static_cast<float>(height));
    if (moved) x = {{0.0f, x.share[0]}, {0.0f, x.slope[0]}};
    const bool outside = x.slope[0] == x.slope[1] || y.slope[0] == y.slope[1];
    if (outside) return {0.0f, 0.0f, 0.0f};
    Result r = combine(x, y, sums);
    const Scale scale = scale_of(sample.weight, static_cast<float>(width), static_cast<float>(height));
    r.x = NEAREST ? 0.0f : r.x * scale.x;
    r.y = NEAREST ? 0.0f : r.y * scale.y;
    return r;
}

// The products of a group's four neighbours with its grad_out, to shared memory, where the group keeps those of a sample.
static __device__ __forceinline__ void sum_products(u32 to, const Vector (&taps)[4], const Vector &grads, u32 lane) {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = product(taps[i], grads);
    if (LANES >= 4) {
        // Each exchange halves what a lane still has to sum.
        const bool first = lane & 1, second = lane & 2;
        float a = first ? sums[1] : sums[0], b = first ? sums[3] : sums[2];
        a += __shfl_xor_sync(ALL, first ? sums[0] : sums[1], 1);
        b += __shfl_xor_sync(ALL, first ? sums[2] : sums[3], 1);
        float sum = second ? b : a;
        sum += __shfl_xor_sync(ALL, second ? a : b, 2);
#pragma unroll
        for (int other = 4; other < LANES; other *= 2) sum += __shfl_xor_sync(ALL, sum, other);
        if (lane % LANES < 4) {
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + lane % LANES * 4), "f"(sum) : "memory");
        }
    } else {
#pragma unroll
        for (int other = 1; other < LANES; other *= 2) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] += __shfl_xor_sync(ALL, sums[i], other);
        }
        if (lane % LANES == 0) {
            store_shared(to, {__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                              __float_as_uint(sums[3])});
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_backward_samples_gather(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                                 const __grid_constant__ Schedule schedule
#if PROJECTED
                                 , const __grid_constant__ Projection projection
#endif
    ) {
    let_next_begin();
    __shared__ __align__(1024) Vector products[WARPS][32 * PER_LANE];
    __shared__ u32 places[WARPS][CHUNK][GROUPS];
#if SCATTER
    static_assert(VALUE == F32, "atomic additions are of f32");
    __shared__ Vector by[WARPS][CHUNK][GROUPS]; // the four neighbours' weights
#endif
#if PROJECTED
    __shared__ Kept<1> kept;
#endif
    __shared__ int4 levels[LEVELS];
    share_levels(a, schedule, levels);

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / GROUP, in_group = lane % GROUP;
    const u32 vector = min(in_group, VECTORS - 1u);
    const u32 first_product = shared_address(&products[warp][group]), first_place = shared_address(&places[warp][0][group]);
    const u32 level_base = shared_address(levels);
    Walk walk(schedule, warp, group);
    const char *value = static_cast<const char *>(a.value), *next_location = nullptr, *next_weight = nullptr;
    const char *grad_row = static_cast<const char *>(g.grad_out);
    char *grad_location = nullptr, *grad_weight = nullptr;
    Vector grads = {0, 0, 0, 0};
    Pending pending;
#if PROJECTED
    const char *references = nullptr;
    float *next_place = nullptr;
    Statistics<float> *to_statistics = nullptr; // of that row; the group's first lane leaves them behind
    Logits logits; // of the row that is walked next
#endif
    const auto has_samples = [&](int chunk) { return WHOLE || chunk * CHUNK + in_group * PER_LANE < SAMPLES; };
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
            const Row row(a, schedule, levels, walk.row);
            value = static_cast<const char *>(a.value) + row.value(a);
            grad_row = row.grad_out(g);
            if (in_group < VECTORS) grads = load_vector(grad_row + vector * 16);
            const u32 sample = in_group * PER_LANE;
            next_location = row.locations(a) + sample * LOCATION_BYTES;
            next_weight = row.weights(a) + sample * WEIGHT_BYTES;
            grad_location = row.grad_locations(g) + sample * LOCATION_BYTES;
            grad_weight = row.grad_weights(g) + sample * WEIGHT_BYTES;
#if PROJECTED
            references = row.references(projection);
            if (projection.places) next_place = row.places(projection) + 2 * sample;
            logits.load(row.weights(a), sample);
            if (projection.statistics && in_group == 0) to_statistics = &kept_statistics<float>(a, projection, row.n, row.q, row.m);
#endif
            if (has_samples(0)) ask(0);
        }
    };
    start_row();

#pragma unroll 1
    while (__any_sync(ALL, walk.live)) {
        const bool mine = walk.live;
        const char *upper = value + vector * 16;
        asm("" : "+l"(upper)); // one register pair, not a sum to be repeated at each load
        const char *const this_value = value, *const this_row = grad_row;
#if SCATTER
        char *const grad_value = static_cast<char *>(g.value) + (upper - static_cast<const char *>(a.value));
#endif
        const Vector these = grads;
        char *const to_location = grad_location, *const to_weight = grad_weight;
#if PROJECTED
        float *const to_place = next_place;
        const Weights weights(logits);
        kept.begin(0, weights);
        if (to_statistics && mine) *to_statistics = weights.statistics;
#endif

#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Pending current = pending;
            const u32 sample = chunk * CHUNK + in_group * PER_LANE;
            const bool sampled = mine && has_samples(chunk);
            if (chunk + 1 < CHUNKS) {
                next_location += CHUNK * LOCATION_BYTES;
                next_weight += CHUNK * WEIGHT_BYTES;
                if (!WHOLE) pending.clear();
                if (walk.live && has_samples(chunk + 1)) ask(chunk + 1);
            } else {
                walk.advance();
                start_row();
            }

            const u32 level_index = WHOLE || sample < SAMPLES ? level_number(sample) : 0;
            const Vector level = load_shared(level_base + level_index * 16);
            const u32 last_pair = static_cast<u32>(a.pixels) - 2 - rows_apart(level);
            const int width = level.x, height = level.y;
            const float factor = BOX_FACTOR(level_index);
            const auto sample_at = [&](int v) {
#if PROJECTED
                return current.sample(v, static_cast<float>(width), static_cast<float>(height), factor, kept.weight_at(0, chunk, v));
#else
                return current.sample(v, static_cast<float>(width), static_cast<float>(height));
#endif
            };
            u32 moved = 0;
            __syncwarp();
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) {
                const Sample s = sample_at(v);
                const Axis x = axis(s.x, static_cast<float>(width)), y = axis(s.y, static_cast<float>(height));
                // In a level one pixel wide there may be no pixel to the right: then the pair is the one that ends with
                // this pixel.
                const u32 pixel = level.z + y.first * width + x.first, pair = min(pixel, last_pair);
                moved |= (pixel - pair) << v;
                store_shared_word(first_place + (in_group * PER_LANE + v) * (GROUPS * 4), pair * PIXEL_UNITS);
#if SCATTER
                // In this order: a weight that is not a number shall not reach a neighbour without a share.
                const float inside = x.inside * y.inside, second = x.second + static_cast<float>(pixel - pair);
                const float low = inside * y.second, up = inside - low;
                const auto part = [&](float share) { return __float_as_uint(share > 0.0f ? s.weight * share : 0.0f); };
                by[warp][in_group * PER_LANE + v][group] = {part(up * (1.0f - second)), part(up * second),
                                                            part(low * (1.0f - second)), part(low * second)};
#endif
            }
            __syncwarp();
#if SCATTER
            // Samples of a level in the same cell add to the same pixels, and all of them the same grad_out: the first one does so for
            // all, so that fewer additions meet where points crowd. Not if weights are negative: what is infinite must not cancel.
            const u32 first_of_level = sample - sample % POINTS - chunk * CHUNK; // or before the chunk's first
            const auto is_negative = [&](u32 at) {
                const Vector parts = by[warp][at][group];
                return (parts.x | parts.y | parts.z | parts.w) >> 31;
            };
            u32 of_cell[PER_LANE];
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) {
                const u32 own = in_group * PER_LANE + v;
                of_cell[v] = own;
#pragma unroll
                for (int back = 1; back < POINTS; back++) {
                    const u32 other = own - back;
                    const bool is_there = other < own && static_cast<int>(other - first_of_level) >= 0;
                    if (is_there && places[warp][other][group] == places[warp][own][group]) of_cell[v] = other;
                }
                if (is_negative(own) || is_negative(of_cell[v])) of_cell[v] = own;
            }
            __syncwarp();
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) {
                const u32 own = in_group * PER_LANE + v;
                if (of_cell[v] == own) continue;
                const Vector part = by[warp][own][group];
                float *const all = reinterpret_cast<float *>(&by[warp][of_cell[v]][group]);
                atomicAdd(all, __uint_as_float(part.x));
                atomicAdd(all + 1, __uint_as_float(part.y));
                atomicAdd(all + 2, __uint_as_float(part.z));
                atomicAdd(all + 3, __uint_as_float(part.w));
                by[warp][own][group] = {0, 0, 0, 0};
            }
            __syncwarp();
#endif

            const char *lower = upper;
            const auto below = [&](Vector level) {
                lower = upper + static_cast<u64>(rows_apart(level) * PIXEL_UNITS) * 16;
                asm("" : "+l"(lower));
            };
            if (ONE_LEVEL) below(level);
            Vector taps[2][4];
            const auto load = [&](int step) {
                if (!ONE_LEVEL && (step % POINTS == 0 || CHUNK % POINTS != 0)) {
                    const u32 number = level_number(chunk * CHUNK + step);
                    below(load_shared(level_base + (WHOLE || number < LEVELS ? number : 0) * 16));
                }
                const u32 place = load_shared_word(first_place + step * (GROUPS * 4));
                Vector(&t)[4] = taps[step % 2];
                const char *above = upper + static_cast<u64>(place) * 16, *beneath = lower + static_cast<u64>(place) * 16;
                t[0] = load_vector(above);
                t[1] = load_vector(above + PIXEL_UNITS * 16);
                t[2] = load_vector(beneath);
                t[3] = load_vector(beneath + PIXEL_UNITS * 16);
            };
            // The next sample's neighbours are on their way while this one's are multiplied.
            constexpr int STEPS = CHUNKS == 1 ? SAMPLES : CHUNK;
            load(0);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                if (!WHOLE && CHUNKS > 1 && chunk * CHUNK + step >= SAMPLES) break;
                if (step + 1 < STEPS) load(step + 1);
                sum_products(record_at(first_product, step), taps[step % 2], these, lane);
#if SCATTER
                if (mine && in_group < VECTORS) {
                    const Vector weights = by[warp][step][group];
                    const u64 place = places[warp][step][group];
                    const Vector of_step = load_shared(level_base + level_number(chunk * CHUNK + step) * 16);
                    char *const above = grad_value + place * 16;
                    char *const beneath = above + static_cast<u64>(rows_apart(of_step) * PIXEL_UNITS) * 16;
                    // A neighbour that gets nothing is left alone: it may not be the sample's.
                    if (__uint_as_float(weights.x) != 0.0f) add_to(above, these, __uint_as_float(weights.x));
                    if (__uint_as_float(weights.y) != 0.0f) add_to(above + PIXEL_UNITS * 16, these, __uint_as_float(weights.y));
                    if (__uint_as_float(weights.z) != 0.0f) add_to(beneath, these, __uint_as_float(weights.z));
                    if (__uint_as_float(weights.w) != 0.0f) add_to(beneath + PIXEL_UNITS * 16, these, __uint_as_float(weights.w));
                }
#endif
            }
            __syncwarp();

            float by_place[2 * PER_LANE], by_weight[PER_LANE];
#pragma unroll
            for (int v = 0; v < PER_LANE; v++) {
                const Vector sums = load_shared(record_at(first_product, in_group * PER_LANE + v));
                const Sample s = sample_at(v);
                Result r = result(s, width, height, moved >> v & 1,
                                  {__uint_as_float(sums.x), __uint_as_float(sums.y), __uint_as_float(sums.z),
                                   __uint_as_float(sums.w)});
                if (sampled && !is_finite(r)) r = careful(s, levels[level_number(sample)], this_value, this_row);
                by_place[2 * v] = r.x;
                by_place[2 * v + 1] = r.y;
                by_weight[v] = r.weight;
            }
#if PROJECTED
            kept.keep(chunk, by_weight);
            if (sampled && projection.places) store_numbers<F32>(reinterpret_cast<char *>(to_place + chunk * (CHUNK * 2)), by_place);
#pragma unroll
            for (int v = 0; BOXES && v < PER_LANE; v++) {
                by_place[2 * v] = by_offset(by_place[2 * v], current.scale(v, 0, static_cast<float>(width), factor));
                by_place[2 * v + 1] = by_offset(by_place[2 * v + 1], current.scale(v, 1, static_cast<float>(height), factor));
            }
#endif
            if (sampled) {
                if (g.locations) {
                    store_numbers<LOCATION>(to_location + chunk * (CHUNK * LOCATION_BYTES), by_place);
                }
#if !PROJECTED
                if (g.weights) store_numbers<WEIGHT>(to_weight + chunk * (CHUNK * WEIGHT_BYTES), by_weight);
#endif
            }
        }
#if PROJECTED
        if (g.weights) kept.store(0, to_weight - in_group * PER_LANE * WEIGHT_BYTES, in_group * PER_LANE, mine);
#endif
    }
}
