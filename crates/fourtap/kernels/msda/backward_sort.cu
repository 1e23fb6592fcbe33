// Backward, sorting the samples of a chunk by their bins. See bins.cuh.
//
// A block holds a chunk in shared memory. Each warp numbers its samples within each bin, in order; warps that share a
// table of counts go one after another. Prefix sums over tables and bins give each sample its place, and samples
// leave in whole lines. Limited by integer instructions and barriers.
//
// VALUE, LOCATION, WEIGHT: element types. PAIRED, WIDE: see below. SORT_WARPS: warps of a block. EACH: samples of a
// lane. EIGHTS: how many times eight bins a thread has. PROJECTED kernels also by FOURS: points come in fours, side
// by side and aligned, with one aligned reference point for all; a lane then takes four neighbouring samples at a
// time.

constexpr u32 THREADS = 32 * SORT_WARPS;
constexpr u32 CHUNK = EACH * THREADS;
constexpr u32 TABLES = 4;
// Bins that are sorted into at a time; the last ones are for samples of no bin of these. A level with more is gone through
// several times.
constexpr u32 TABLE = 8 * EIGHTS * THREADS, BAND = TABLE - 8;

typedef Element<WEIGHT>::Storage Weight;
typedef Element<LOCATION>::Storage Location;

// PAIRED: whether x and y of a location lie side by side, aligned to their pair.
static __device__ __forceinline__ void load_location(const Location *at, i64 by_axis, Real &x, Real &y) {
#if PAIRED
    struct __align__(2 * sizeof(Location)) Pair {
        Location x, y;
    };
    const Pair pair = *reinterpret_cast<const Pair *>(at);
    x = Element<LOCATION>::widen(pair.x);
    y = Element<LOCATION>::widen(pair.y);
#else
    x = Element<LOCATION>::widen(at[0]);
    y = Element<LOCATION>::widen(at[by_axis]);
#endif
}

// In pixels.
static __device__ __forceinline__ Real in_pixels(Real location, int size) {
    return fused(location, static_cast<Real>(size), Real(-0.5));
}

// WIDE: whether strides in bytes may be negative or need more than 32 bits.
#if WIDE
typedef i64 Offset;
#else
typedef u32 Offset;
#endif

// Samples a warp has of a chunk.
static __device__ __forceinline__ u32 part_of(const Work &work) { return (work.chunk + THREADS - 1) / THREADS * 32; }

// A lane's way through the samples of a part of a chunk, 32 at a time.
struct Samples {
    u32 index, end;
    u32 point, points, point_step;
    Offset location, weight; // in bytes, from the plane's first ones of the level
    Offset location_step, weight_step, location_turn, weight_turn; // a turn: from the last point to the next query's first

    __device__ __forceinline__ Samples(const Arguments &a, const Work &work, u32 chunk, u32 part, u32 lane) {
        const u32 each = part_of(work), first = chunk * work.chunk + part * each;
        index = first + lane;
        end = min(min(work.samples, (chunk + 1) * work.chunk), first + each);
        points = a.points;
        const u32 query = work.by_points.divide(index), query_step = work.by_points.divide(32);
        point = index - query * points;
        point_step = 32 - query_step * points;
        const Offset location_query = a.location_strides[1] * sizeof(Location);
        const Offset location_point = a.location_strides[4] * sizeof(Location);
        const Offset weight_query = a.weight_strides[1] * sizeof(Weight), weight_point = a.weight_strides[4] * sizeof(Weight);
        location = query * location_query + point * location_point;
        weight = query * weight_query + point * weight_point;
        location_step = query_step * location_query + point_step * location_point;
        weight_step = query_step * weight_query + point_step * weight_point;
        location_turn = location_query - points * location_point;
        weight_turn = weight_query - points * weight_point;
    }
    // TURNS: whether there may be a turn in between.
    template <bool TURNS> __device__ __forceinline__ void advance() {
        index += 32;
        location += location_step;
        weight += weight_step;
        if (TURNS) {
            point += point_step;
            if (point >= points) {
                point -= points;
                location += location_turn;
                weight += weight_turn;
            }
        }
    }
};

// A chunk of one level of one plane. Neighbouring jobs read neighbouring memory.
struct Job {
    u32 plane, chunk, level; // the plane is counted from the first one sorted now

    __device__ __forceinline__ Job(u32 number, const Work &work) {
        const u32 piece = number / work.level_count;
        level = work.first_level + number - piece * work.level_count;
        plane = piece / work.chunks;
        chunk = piece - plane * work.chunks;
    }
};

#if PROJECTED
// Neighbouring numbers, read at once as far as they fit 16 bytes.
template <class T, int N> struct Group {
    T of[N];
};
template <class T, int N> static __device__ __forceinline__ Group<T, N> load_group(const T *from) {
    constexpr int BYTES = N * sizeof(T), STEP = BYTES < 16 ? BYTES : 16;
    struct __align__(STEP) Piece {
        T of[STEP / sizeof(T)];
    };
    Group<T, N> group;
#pragma unroll
    for (int i = 0; i < BYTES / STEP; i++) {
        const Piece piece = reinterpret_cast<const Piece *>(from)[i];
#pragma unroll
        for (u32 j = 0; j < STEP / sizeof(T); j++) group.of[i * (STEP / sizeof(T)) + j] = piece.of[j];
    }
    return group;
}

// The same of a projected problem, whose samples are found by their number.
struct Projected {
    u32 index, end, points, level;
    const Location *offsets; // of the plane's first query, of the level
    const Weight *logits;
    const Element<REFERENCE>::Storage *references;
    const Statistics<Real> *statistics; // of the plane
    Real width, height, factor;

    __device__ __forceinline__ Projected(const Arguments &a, const Work &work, const Projection &p, const Grid &grid,
                                         const Job &job, i64 n, i64 m, u32 part, u32 lane) {
        const u32 each = part_of(work), first = job.chunk * work.chunk + part * each;
        points = p.first[job.level + 1] - p.first[job.level];
        level = job.level;
        index = first + lane;
        const u32 samples = static_cast<u32>(a.queries) * points;
        end = min(min(samples, (job.chunk + 1) * work.chunk), first + each);
        offsets = static_cast<const Location *>(a.locations) + n * a.location_strides[0] + m * a.location_strides[2] +
                  p.first[job.level] * a.location_strides[4];
        logits = static_cast<const Weight *>(a.weights) + n * a.weight_strides[0] + m * a.weight_strides[2] +
                 p.first[job.level] * a.weight_strides[3];
        references = static_cast<const Element<REFERENCE>::Storage *>(p.references) + n * p.strides[0] + job.level * p.strides[2];
        statistics = static_cast<const Statistics<Real> *>(p.statistics) + (n * a.heads + m) * a.queries;
        width = grid.width;
        height = grid.height;
        factor = static_cast<Real>(p.factors[job.level]);
    }
#if FOURS
    // Samples `first` to `first + 4` of the lane's.
    __device__ __forceinline__ void take_four(const Arguments &a, const Projection &p, u32 first, Real (&x)[EACH], Real (&y)[EACH],
                                              Real (&weight)[EACH]) const {
#pragma unroll
        for (u32 i = first; i < first + 4; i++) {
            x[i] = y[i] = NOWHERE_PLACE;
            weight[i] = 0;
        }
        if (index >= end) return;
        const u32 query = p.by_points[level].divide(index), point = index - query * points;
        const auto *const offset = moved(offsets, steps<Location>(query, a.location_strides[1])) + point * 2;
        const auto *const logit = moved(logits, steps<Weight>(query, a.weight_strides[1])) + point;
        const auto *const reference = references + query * p.strides[1];
        const Group<Location, 8> of_offsets = load_group<Location, 8>(offset);
        const Group<Weight, 4> of_logits = load_group<Weight, 4>(logit);
        const Group<Element<REFERENCE>::Storage, BOXES ? 4 : 2> of_reference =
            load_group<Element<REFERENCE>::Storage, BOXES ? 4 : 2>(reference);
        const Statistics<Real> row = statistics[query];
        const Real reference_x = Element<REFERENCE>::widen(of_reference.of[0]), reference_y = Element<REFERENCE>::widen(of_reference.of[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            Real by_x = Element<LOCATION>::widen(of_offsets.of[2 * i]), by_y = Element<LOCATION>::widen(of_offsets.of[2 * i + 1]);
#if BOXES
            by_x = rounded_product(by_x, pixels_of_offset(Real(Element<REFERENCE>::widen(of_reference.of[2])), width, factor));
            by_y = rounded_product(by_y, pixels_of_offset(Real(Element<REFERENCE>::widen(of_reference.of[3])), height, factor));
#endif
            x[first + i] = place_at(reference_x, by_x, width);
            y[first + i] = place_at(reference_y, by_y, height);
            weight[first + i] = row.weight(Real(Element<WEIGHT>::widen(of_logits.of[i])));
        }
    }
#endif
    __device__ __forceinline__ void take(const Arguments &a, const Projection &p, Real &x, Real &y, Real &weight) const {
        x = y = NOWHERE_PLACE;
        weight = 0;
        if (index >= end) return;
        const u32 query = p.by_points[level].divide(index), point = index - query * points;
        const auto *const offset = moved(offsets, steps<Location>(query, a.location_strides[1])) + point * a.location_strides[4];
        const auto *const logit = moved(logits, steps<Weight>(query, a.weight_strides[1])) + point * a.weight_strides[3];
        const auto *const reference = references + query * p.strides[1] + (p.turns > 1 ? point % p.turns * p.strides[3] : 0);
        Real by_x, by_y;
        load_location(offset, a.location_strides[5], by_x, by_y);
#if BOXES
        by_x = rounded_product(by_x, pixels_of_offset(Real(Element<REFERENCE>::widen(reference[2 * p.strides[4]])), width, factor));
        by_y = rounded_product(by_y, pixels_of_offset(Real(Element<REFERENCE>::widen(reference[3 * p.strides[4]])), height, factor));
#endif
        x = place_at(Real(Element<REFERENCE>::widen(reference[0])), by_x, width);
        y = place_at(Real(Element<REFERENCE>::widen(reference[p.strides[4]])), by_y, height);
        weight = statistics[query].weight(Real(Element<WEIGHT>::widen(*logit)));
    }
};
#if FOURS
// The number of what is kept as number `kept`: of each lane four in a row.
#define IN_PART(kept) ((kept) / 128 * 128 + (kept) % 32 * 4 + (kept) / 32 % 4)
#else
#define IN_PART(kept) (kept)
#endif
#define QUERY_OF(index) by_points.divide(index)
#else
#define IN_PART(kept) (kept)
#define QUERY_OF(index) work.by_points.divide(index)
#endif

// Two 16-bit numbers a word, which do not carry: there are fewer samples in a chunk.
struct __align__(16) Eight {
    u32 pairs[4];
};

// What a block asks for.
struct Memory {
    Real x[CHUNK], y[CHUNK], weight[CHUNK]; // of samples
    u16 order[CHUNK];                       // which of them comes when
    u16 counts[TABLES][TABLE];              // of samples in each bin, then of those in the tables before
    u16 begins[TABLE];                      // of bins
};

// Of what lanes before this one have, this one's included.
static __device__ __forceinline__ u32 sum_up_to(u32 sum, u32 lane) {
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const u32 other = __shfl_up_sync(ALL, sum, apart);
        if (lane >= apart) sum += other;
    }
    return sum;
}

// Those that have the same bit: as the compiler would not write it, the bit is tested once.
static __device__ __forceinline__ u32 vote(u32 number, u32 bit) {
    u32 voted;
    asm volatile("{ .reg .pred set; .reg .b32 masked; and.b32 masked, %1, %2; setp.ne.u32 set, masked, 0; "
                 "vote.sync.ballot.b32 %0, set, 0xffffffff; @!set not.b32 %0, %0; }"
                 : "=r"(voted)
                 : "r"(number), "r"(bit));
    return voted;
}

// For each number of so many bits, the lanes that have the same.
static __device__ __forceinline__ void equals(u32 (&numbers)[EACH], int bits, u32 (&lanes)[EACH]) {
#pragma unroll
    for (u32 i = 0; i < EACH; i++) lanes[i] = ALL;
#pragma unroll 1
    for (; bits > 0; bits -= 4) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 first = vote(numbers[i], 1), second = vote(numbers[i], 2);
            const u32 third = vote(numbers[i], 4), fourth = vote(numbers[i], 8);
            lanes[i] = lanes[i] & first & second & (third & fourth);
            numbers[i] >>= 4;
        }
    }
}

// Shared memory by its own addresses, as in memory.cuh.
static __device__ __forceinline__ u32 load_count(u32 address) {
    u16 count;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(count) : "r"(address) : "memory");
    return count;
}
static __device__ __forceinline__ void store_count(u32 address, u32 count) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<u16>(count)) : "memory");
}

extern "C" __global__ void __launch_bounds__(32 * SORT_WARPS, 2)
    msda_backward_sort(const __grid_constant__ Arguments a, const __grid_constant__ Work work
#if PROJECTED
                       , const __grid_constant__ Projection projection
#endif
    ) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ u32 sizes[SORT_WARPS], largest[SORT_WARPS];
    extern __shared__ __align__(16) char dynamic[];
    let_next_begin();
#if PROJECTED
    wait_for_previous(); // it leaves behind what the softmax of each row takes
#endif
    if (!lay_out(a, work, grids)) {
        wait_for_previous();
        return;
    }
    if (blockIdx.x == 0 && threadIdx.x < QUEUE_COUNTERS) work.counters[threadIdx.x] = 0;

    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes_before = (1u << lane) - 1;
    const u32 order_at = shared_address(memory.order), begins_at = shared_address(memory.begins);
    // Warps that count at the same time are neighbours, which have different schedulers; those of a table have neighbouring
    // parts of the chunk, so that samples of a bin stay in order.
    const u32 counts_at = shared_address(memory.counts[warp % TABLES]), turn = warp / TABLES;
    const u32 part = warp % TABLES * (SORT_WARPS / TABLES) + turn, own = part * EACH * 32 + lane;
    const u32 jobs = work.planes * work.chunks * work.level_count; // the launcher sees to it that this fits
    for (u32 number = blockIdx.x; number < jobs; number += gridDim.x) {
        const Job job(number, work);
        const Grid &grid = grids[job.level];
        const u32 plane = work.first_plane + job.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
#if PROJECTED
        Projected at(a, work, projection, grid, job, n, m, part, lane);
        Real x[EACH], y[EACH], weight[EACH];
#if FOURS
        at.index += 3 * lane;
#pragma unroll
        for (u32 i = 0; i < EACH; i += 4, at.index += 128) at.take_four(a, projection, i, x, y, weight);
#else
#pragma unroll
        for (u32 i = 0; i < EACH; i++, at.index += 32) at.take(a, projection, x[i], y[i], weight[i]);
#endif
#else
        const auto *const locations = static_cast<const Location *>(a.locations) + n * a.location_strides[0] +
                                      m * a.location_strides[2] + job.level * a.location_strides[3];
        const auto *const weights = static_cast<const Weight *>(a.weights) + n * a.weight_strides[0] +
                                    m * a.weight_strides[2] + job.level * a.weight_strides[3];
        Real x[EACH], y[EACH], weight[EACH];
        Samples at(a, work, job.chunk, part, lane);
        const auto take = [&](u32 i) {
            x[i] = y[i] = -100;
            weight[i] = 0;
            if (at.index < at.end) {
                load_location(moved(locations, at.location), a.location_strides[5], x[i], y[i]);
                weight[i] = Element<WEIGHT>::widen(*moved(weights, at.weight));
            }
        };
        if (at.point_step == 0) {
#pragma unroll
            for (u32 i = 0; i < EACH; i++, at.advance<false>()) take(i);
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++, at.advance<true>()) take(i);
        }
#endif
        u32 bin[EACH];
        float most = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
#if PROJECTED
            const Real px = x[i], py = y[i];
#else
            const Real px = in_pixels(x[i], grid.width), py = in_pixels(y[i], grid.height);
#endif
            bin[i] = bin_of(grid, px, py);
            const float size = magnitude(static_cast<float>(weight[i]));
            if (bin[i] != NO_BIN && is_finite(size)) most = fmaxf(most, size);
            memory.x[own + 32 * i] = px;
            memory.y[own + 32 * i] = py;
            memory.weight[own + 32 * i] = weight[i];
        }
        const u32 bits_of_most = __reduce_max_sync(ALL, __float_as_uint(most));
        if (lane == 0) largest[warp] = bits_of_most;

        u16 *const starts = work.starts + (static_cast<u64>(job.plane) * work.chunks + job.chunk) * work.capacity + grid.first;
        u32 done = 0; // samples of the bands before
        for (u32 first = 0; first < grid.bins; first += BAND) {
            const u32 bins = min(BAND, grid.bins - first); // and one more
            const int bits = 32 - __clz(bins);
            const u32 own_bins = 8 * EIGHTS * threadIdx.x;
            if (own_bins <= bins) {
#pragma unroll
                for (u32 i = 0; i < TABLES * EIGHTS; i++) {
                    *reinterpret_cast<Eight *>(memory.counts[i / EIGHTS] + own_bins + 8 * (i % EIGHTS)) = Eight{};
                }
            }
            u32 rank[EACH], here[EACH];
#pragma unroll
            for (u32 i = 0; i < EACH; i++) here[i] = min(bin[i] - first, bins);
            equals(here, bits, rank);
            for (u32 now = 0; now < SORT_WARPS / TABLES; now++) {
                __syncthreads();
                if (now != turn) continue;
#pragma unroll
                for (u32 i = 0; i < EACH; i++) {
                    const u32 entry = counts_at + 2 * min(bin[i] - first, bins);
                    const u32 same = rank[i], lower = same & lanes_before, before = load_count(entry);
                    rank[i] = before + __popc(lower);
                    __syncwarp();
                    if (lower == 0) store_count(entry, before + __popc(same));
                    __syncwarp();
                }
            }
            __syncthreads();

            Eight all[EIGHTS] = {};
            if (own_bins <= bins) {
#pragma unroll
                for (u32 e = 0; e < EIGHTS; e++) {
                    Eight counts[TABLES];
#pragma unroll
                    for (u32 t = 0; t < TABLES; t++) {
                        counts[t] = *reinterpret_cast<const Eight *>(memory.counts[t] + own_bins + 8 * e);
                    }
#pragma unroll
                    for (u32 t = 0; t < TABLES; t++) {
                        *reinterpret_cast<Eight *>(memory.counts[t] + own_bins + 8 * e) = all[e];
#pragma unroll
                        for (int i = 0; i < 4; i++) all[e].pairs[i] += counts[t].pairs[i];
                    }
                }
            }
            u32 sum = 0;
#pragma unroll
            for (u32 i = 0; i < 4 * EIGHTS; i++) {
                const u32 pair = all[i / 4].pairs[i % 4];
                sum += (pair & 0xffffu) + (pair >> 16);
            }
            const u32 up_to = sum_up_to(sum, lane);
            if (lane == 31) sizes[warp] = up_to;
            __syncthreads();
            const u32 of_warp = lane < SORT_WARPS ? sizes[lane] : 0, of_warps = sum_up_to(of_warp, lane);
            u32 begin = done + up_to - sum + __shfl_sync(ALL, of_warps - of_warp, warp);
#pragma unroll
            for (u32 e = 0; e < EIGHTS; e++) {
                const u32 at = own_bins + 8 * e;
                if (at > bins) break;
                Eight begins;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const u32 second = begin + (all[e].pairs[i] & 0xffffu);
                    begins.pairs[i] = begin | second << 16;
                    begin = second + (all[e].pairs[i] >> 16);
                }
                *reinterpret_cast<Eight *>(memory.begins + at) = begins;
                // There is room for all eight. What comes after the last bin begins where it ends.
                *reinterpret_cast<Eight *>(starts + first + at) = begins;
            }
            if (warp == 0 && first == 0) {
                const u32 of_all = __reduce_max_sync(ALL, lane < SORT_WARPS ? largest[lane] : 0);
                work.largest[(static_cast<u64>(job.plane) * a.levels + job.level) * work.chunks + job.chunk] = of_all;
            }
            __syncthreads();

#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                const u32 here = min(bin[i] - first, bins);
                const u32 place = load_count(begins_at + 2 * here) + load_count(counts_at + 2 * here) + rank[i];
                if (here < bins) store_count(order_at + 2 * place, own + 32 * i);
            }
            done = memory.begins[bins];
            if (grid.bins - first > BAND) __syncthreads(); // nobody still uses the tables
        }
        __syncthreads();
#if PROJECTED
        const Divisor by_points = projection.by_points[job.level];
#endif
        Record *const out = sorted_of(work, job.plane, job.level) + job.chunk * work.chunk;
        const u32 each = part_of(work);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            // Unconditionally, so that they need not wait for each other.
            const u32 at = i * THREADS + threadIdx.x, from = at < done ? memory.order[at] : 0;
            const u32 index = job.chunk * work.chunk + from / (32 * EACH) * each + IN_PART(from % (32 * EACH));
            const Record record = {memory.x[from], memory.y[from], memory.weight[from], QUERY_OF(index)};
            if (at < done) out[at] = record;
        }
        __syncthreads(); // nobody still reads them
    }
#if !PROJECTED
    wait_for_previous(); // for the sake of what comes after
#endif
}
