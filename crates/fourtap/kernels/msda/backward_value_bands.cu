// Backward, grad_value of small problems without sorting, workspace or atomics.
//
// A block owns a *band*: consecutive pixels of one level and plane. It notes in shared memory which of the level's
// samples touch the band; its warps then take segments of the band in turns. A warp picks the samples that touch its
// segment, BATCH at a time. Lanes compute where and how much each adds, rows of grad_out come to shared memory, and
// they are added in order: half a warp serves the left neighbours, half the right ones, two channels per lane.
// Segments that many samples touch are left for the end, when each warp adds a share and the shares are added up in
// order.
//
// Limited by instructions, half of which look for samples: every block reads all samples of its level. Levels in
// device memory that do not tile the pixels in order are left to backward_value_search.cu.
//
// VALUE, LOCATION, WEIGHT: element types (sums are f32). PAIRED: x and y of a location lie side by side, aligned.

typedef Element<VALUE> Value;
typedef float Real;

constexpr u32 ALL = 0xffffffffu;
constexpr u32 WARPS = 16;
constexpr u32 MOST = 4;     // samples a lane looks at
constexpr u32 SEGMENT = 16; // pixels at most
constexpr u32 BATCH = 16;   // samples
// Samples of SEGMENT pixels from which on warps share them: where it takes longer to wait for each other.
constexpr u32 CROWD = 320;
constexpr u32 SLICE = 32;   // channels of a block
constexpr u32 ROW_BYTES = SLICE * sizeof(Value::Storage), PIECES = ROW_BYTES / 16;
constexpr u32 SUM_BYTES = SLICE * sizeof(float);
constexpr int REACH = NEAREST ? 1 : 2; // pixels a sample touches, in each direction

// Mirrored in src/cuda/msda/arguments.rs.
struct Bands {
    u32 slices;    // of channels
    u32 row_bytes; // from a query's row of grad_out to the next
    u32 capacity;  // notes there is room for: as many as a level has samples
    Divisor by_points;
};

// Pixels of a warp: such that some twenty samples touch them, if they lie anywhere. Mirrored in src/cuda/msda/backward/bands.rs.
static __device__ __forceinline__ u32 pixels_of_warp(u32 size, u32 samples) {
    u32 pixels = 32;
    while (pixels > 4 && pixels * samples > 16 * size) pixels /= 2;
    return pixels;
}

// A sample that takes part: in pixels of its level.
struct __align__(16) Note {
    float x, y, weight;
    u32 query;
};

// Pixels of a level, in the order of memory.
struct Range {
    int first, count;
    // Whether the sample in the cell may touch one of them: it does so, but where the level's edge lies between.
    __device__ __forceinline__ bool may_touch(int cell, int width) const {
        const u32 most = count + REACH - 1, from = cell - first + REACH - 1;
        return from < most || (!NEAREST && from + width < most);
    }
};
static __device__ __forceinline__ int cell_of(float2 place, int width) {
    return __float2int_rd(place.y) * width + __float2int_rd(place.x);
}

// What a sample adds to its left or right neighbours: how much, and where, in bytes.
struct __align__(16) Addition {
    float upper, lower;
    u32 upper_at, lower_at;
};

// What a warp has in shared memory.
struct OfWarp {
    // Of each pixel of the segment SLICE channels; then twice as much for what belongs to no pixel.
    char sums[SEGMENT + 2][SUM_BYTES];
    char rows[BATCH][ROW_BYTES];
    Addition additions[BATCH][2];
    u16 picked[64];
};

// Where and how much samples are of a level.
struct Finder {
    const Arguments &a;
#if PROJECTED
    const Projection &projection;
#endif
    const Bands &bands;
    i64 n, m;
    int l;
    Level level;
    u32 points, samples;

    __device__ __forceinline__ u32 query(u32 sample) const {
#if PROJECTED
        return projection.by_points[l].divide(sample);
#else
        return bands.by_points.divide(sample);
#endif
    }
    // In pixels; nowhere beyond the last one.
    __device__ __forceinline__ float2 find(u32 sample) const {
        if (sample >= samples) return {-8.0f, -8.0f};
        const u32 q = query(sample), p = sample - q * points;
#if PROJECTED
        const auto placed = place_point<float>(a, projection, n, q, m, l, p, level.width, level.height);
        return {placed.x, placed.y};
#else
        typedef Element<LOCATION>::Storage Location;
        const Location *const at = static_cast<const Location *>(a.locations) + n * a.location_strides[0] +
                                   q * a.location_strides[1] + m * a.location_strides[2] + l * a.location_strides[3] +
                                   p * a.location_strides[4];
        struct __align__(PAIRED ? 2 * sizeof(Location) : sizeof(Location)) Pair {
            Location x, y;
        };
        Pair pair;
        if (PAIRED) {
            pair = *reinterpret_cast<const Pair *>(at);
        } else {
            pair = {at[0], at[a.location_strides[5]]};
        }
        return {fused(Element<LOCATION>::widen(pair.x), static_cast<float>(level.width), -0.5f),
                fused(Element<LOCATION>::widen(pair.y), static_cast<float>(level.height), -0.5f)};
#endif
    }
    __device__ __forceinline__ float weight(u32 sample, u32 q) const {
        const u32 p = sample - q * points;
#if PROJECTED
        const float logit = Element<WEIGHT>::widen(logits_of(a, n, q, m)[(projection.first[l] + p) * a.weight_strides[3]]);
        return kept_statistics<float>(a, projection, n, q, m).weight(logit);
#else
        return Element<WEIGHT>::widen(static_cast<const Element<WEIGHT>::Storage *>(
            a.weights)[n * a.weight_strides[0] + q * a.weight_strides[1] + m * a.weight_strides[2] + l * a.weight_strides[3] +
                       p * a.weight_strides[4]]);
#endif
    }
    // In floating point: what is NaN or too large for an integer is told so.
    __device__ __forceinline__ bool takes_part(float2 place) const {
        return place.x > -1.0f && place.y > -1.0f && place.x < static_cast<float>(level.width) &&
               place.y < static_cast<float>(level.height);
    }
};

// The lanes below this one.
static __device__ __forceinline__ u32 lanes_below(u32 lane) { return (1u << lane) - 1; }

// Two neighbouring channels of a row.
static __device__ __forceinline__ float2 load_pair(u32 address) {
    float2 pair;
#if VALUE == F32
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
#else
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    Value::widen(word, pair.x, pair.y);
#endif
    return pair;
}
static __device__ __forceinline__ float2 load_sums(u32 address) {
    float2 sums;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(sums.x), "=f"(sums.y) : "r"(address) : "memory");
    return sums;
}
static __device__ __forceinline__ void store_sums(u32 address, float2 sums) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(sums.x), "f"(sums.y) : "memory");
}
static __device__ __forceinline__ float2 fused(float by, float2 pair, float2 sums) {
    return {__fmaf_rn(by, pair.x, sums.x), __fmaf_rn(by, pair.y, sums.y)};
}

// A warp's way to add samples.
struct Adder {
    OfWarp &of_warp;
    u32 lane;
    const char *grads; // the first row of grad_out
    u32 row_bytes, pieces;

    // Adds the first `count` picked samples, at most BATCH, to the segment's sums.
    __device__ __forceinline__ void add(const Note *notes, u32 count, const Range &own, int width) const {
        const u32 mine = lane % BATCH, half = lane / BATCH;
        const Note note = notes[of_warp.picked[mine < count ? mine : 0]];
        // Rows, on their way while it is computed where they are added.
        Vector rows[PIECES / 2];
#pragma unroll
        for (u32 i = 0; i < PIECES / 2; i++) {
            const u32 at = i * 32 + lane, piece = at % PIECES;
            const u32 query = __shfl_sync(ALL, note.query, at / PIECES);
            rows[i] = {};
            if (piece < pieces) rows[i] = load_vector(grads + static_cast<u64>(query) * row_bytes + piece * 16);
        }
        const float left = floorf(note.x), top = floorf(note.y), across = note.x - left, down = note.y - top;
        const int x = static_cast<int>(left) + static_cast<int>(half), y = static_cast<int>(top);
        const float by = half ? across : 1.0f - across;
        const u32 upper = y * width + x - own.first, lower = upper + width, none = SEGMENT + half;
        const bool is_inside = x >= 0 && x < width && (!NEAREST || half == 0);
        const u32 upper_sum = is_inside && upper < own.count ? upper : none;
        const u32 lower_sum = is_inside && lower < own.count && !NEAREST ? lower : none;
        __syncwarp(); // what was there before has been read
        of_warp.additions[mine][half] = {note.weight * (by * (1.0f - down)), note.weight * (by * down), upper_sum * SUM_BYTES,
                                         lower_sum * SUM_BYTES};
        const u32 rows_at = shared_address(of_warp.rows);
#pragma unroll
        for (u32 i = 0; i < PIECES / 2; i++) store_shared(rows_at + (i * 32 + lane) * 16, rows[i]);
        __syncwarp();
        const u32 pairs_at = rows_at + mine * (2 * sizeof(Value::Storage));
        const u32 additions_at = shared_address(of_warp.additions[0]) + half * sizeof(Addition);
        const u32 sums_at = shared_address(of_warp.sums) + mine * 8;
        constexpr u32 AHEAD = 4;
#pragma unroll 1
        for (u32 k = 0; k < count; k += AHEAD) {
            Vector additions[AHEAD];
            float2 pairs[AHEAD];
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                additions[j] = load_shared(additions_at + (k + j) * 2 * sizeof(Addition));
                pairs[j] = load_pair(pairs_at + (k + j) * ROW_BYTES);
            }
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                if (k + j >= count) break;
                // Two rows of the level, so never the same pixel, but for what belongs to none.
                const u32 upper_at = sums_at + additions[j].z, lower_at = sums_at + additions[j].w;
                const float2 upper = load_sums(upper_at), lower = load_sums(lower_at);
                store_sums(upper_at, fused(__uint_as_float(additions[j].x), pairs[j], upper));
                store_sums(lower_at, fused(__uint_as_float(additions[j].y), pairs[j], lower));
                __syncwarp(); // the right neighbour of one sample may be the left one of the next
            }
        }
    }
};

// Passes those of the notes from `begin` to `end` that touch the pixels to `add`, up to BATCH at a time, by how many they are; `cells`: the
// notes' cells.
template <class Add>
static __device__ __forceinline__ void pick(OfWarp &of_warp, const int *cells, const Range &own, int width, u32 begin, u32 end,
                                            const Add &add) {
    const u32 lane = threadIdx.x % 32;
    u32 picked = 0;
#pragma unroll 1
    for (u32 at = begin + lane; at - lane < end; at += 32) {
        const bool is_own = at < end && own.may_touch(cells[at], width);
        const u32 all = __ballot_sync(ALL, is_own);
        if (is_own) of_warp.picked[picked + __popc(all & lanes_below(lane))] = at;
        picked += __popc(all);
        // As soon as there are enough, and in the end those that are left over.
        const bool is_last = at - lane + 32 >= end;
#pragma unroll 1
        while (picked >= BATCH || (is_last && picked > 0)) {
            __syncwarp();
            add(min(picked, BATCH));
            picked = picked > BATCH ? picked - BATCH : 0;
            const u32 moved = lane < picked ? of_warp.picked[BATCH + lane] : 0;
            __syncwarp();
            if (lane < picked) of_warp.picked[lane] = moved;
        }
    }
    __syncwarp();
}

// A block's band: of the last level first, which is small and has the most samples.
struct Band {
    int l;
    Level level;
    Range range;
    u32 segment;
};
// Returns whether there is one, and levels tile the pixels: those from the host do.
template <class Samples>
static __device__ __forceinline__ bool find_band(const Arguments &a, u32 number, const Samples &samples_of, Band &band) {
    bool is_there = false;
    i64 end = a.pixels;
    for (int l = a.levels - 1; l >= 0; l--) {
        const Level level = level_of(a, l);
        const u32 size = max(level.width, 0) * max(level.height, 0);
        if (size == 0) continue;
        const u32 of_warp = pixels_of_warp(size, samples_of(l)), pixels = WARPS * of_warp, bands = (size + pixels - 1) / pixels;
        if (a.shapes) {
            if (level.start + size != end) return false;
            end = level.start;
        }
        if (!is_there && number < bands) {
            const u32 first = number * pixels;
            band = {l, level, {static_cast<int>(first), static_cast<int>(min(pixels, size - first))}, min(of_warp, SEGMENT)};
            is_there = true;
        }
        if (!is_there) number -= bands;
    }
    return is_there && (!a.shapes || end == 0);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    msda_backward_value_bands(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                              const __grid_constant__ Bands bands
#if PROJECTED
                              , const __grid_constant__ Projection projection
#endif
    ) {
    __shared__ u32 counts[WARPS];
    __shared__ u32 crowds[2 * WARPS]; // samples that touch each SEGMENT pixels of the band, if many have been noted
    extern __shared__ __align__(16) char memory[]; // of each warp; notes; the cell of each
#if PROJECTED
    wait_for_previous(); // who leaves statistics behind
    const auto points_of = [&](int l) { return projection.first[l + 1] - projection.first[l]; };
#else
    const auto points_of = [&](int) { return static_cast<u32>(a.points); };
#endif
    const auto samples_of = [&](int l) { return static_cast<u32>(a.queries) * points_of(l); };
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 planes = static_cast<u32>(a.images) * a.heads * bands.slices, number = blockIdx.x / planes;
    const u32 other = blockIdx.x - number * planes, plane = other / bands.slices, slice = other - plane * bands.slices;
    const i64 n = plane / a.heads, m = plane - n * a.heads;
    Band band;
    if (!find_band(a, number, samples_of, band)) {
        wait_for_previous();
        return;
    }
    const Level level = band.level;
    OfWarp &of_warp = reinterpret_cast<OfWarp *>(memory)[warp];
    Note *const notes = reinterpret_cast<Note *>(memory + WARPS * sizeof(OfWarp));
    int *const cells = reinterpret_cast<int *>(notes + bands.capacity);
#if PROJECTED
    const Finder finder = {a, projection, bands, n, m, band.l, level, points_of(band.l), samples_of(band.l)};
#else
    const Finder finder = {a, bands, n, m, band.l, level, points_of(band.l), samples_of(band.l)};
#endif

    // Notes, in the order of samples: each warp's after those of the warps before.
    const u32 each = (finder.samples + 32 * WARPS - 1) / (32 * WARPS), first_sample = warp * each * 32 + lane;
    float2 places[MOST];
    u32 wanted[MOST], count = 0;
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        if (i < each) places[i] = finder.find(first_sample + 32 * i);
    }
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        if (i >= each) break;
        wanted[i] = __ballot_sync(ALL, finder.takes_part(places[i]) && band.range.may_touch(cell_of(places[i], level.width), level.width));
        count += __popc(wanted[i]);
    }
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    const u32 of_lane = lane < WARPS ? counts[lane] : 0;
    u32 before = __reduce_add_sync(ALL, lane < warp ? of_lane : 0);
    const u32 noted = __reduce_add_sync(ALL, of_lane);
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        if (i >= each) break;
        if (wanted[i] >> lane & 1) {
            const u32 sample = first_sample + 32 * i, query = finder.query(sample), at = before + __popc(wanted[i] & lanes_below(lane));
            cells[at] = cell_of(places[i], level.width);
            notes[at] = {places[i].x, places[i].y, finder.weight(sample, query), query};
        }
        before += __popc(wanted[i]);
    }
    __syncthreads();

    const u32 channels = min(SLICE, a.channels - slice * SLICE);
    constexpr u32 CHANNELS_OF_PIECE = 16 / sizeof(Value::Storage);
    const i64 to_grads = n * g.grad_out_strides[0] + m * a.channels + slice * SLICE;
    const Adder adder = {of_warp, lane, static_cast<const char *>(g.grad_out) + to_grads * sizeof(Value::Storage), bands.row_bytes,
                         channels / CHANNELS_OF_PIECE};
    // Adds those of the notes from `begin` to `end` that touch the pixels.
    const auto sum = [&](const Range &own, u32 begin, u32 end) {
        __syncwarp(); // sums have been stored
        for (u32 i = lane; i < own.count * SUM_BYTES / 16; i += 32) store_shared(shared_address(of_warp.sums) + i * 16, {});
        pick(of_warp, cells, own, level.width, begin, end, [&](u32 count) { adder.add(notes, count, own, level.width); });
    };
    const auto part_of_band = [&](int from, u32 pixels) -> Range {
        return {band.range.first + from, min(static_cast<int>(pixels), band.range.count - from)};
    };
    const bool may_crowd = noted > CROWD;
    if (may_crowd) {
        if (threadIdx.x < 2 * WARPS) crowds[threadIdx.x] = 0;
        __syncthreads();
        for (u32 at = threadIdx.x; at < noted; at += 32 * WARPS) {
            for (int row = 0; row < REACH; row++) {
                const int pixel = cells[at] + row * level.width - band.range.first, next = pixel + REACH - 1;
                if (pixel >= 0 && pixel < band.range.count) atomicAdd(crowds + pixel / SEGMENT, 1);
                const bool is_other = next % SEGMENT == 0 && next != pixel;
                if (is_other && next >= 0 && next < band.range.count) atomicAdd(crowds + next / SEGMENT, 1);
            }
        }
        __syncthreads();
    }
    const auto is_crowd = [&](int from) { return may_crowd && crowds[from / SEGMENT] > CROWD; };
#pragma unroll 1
    for (int turn = warp * band.segment; turn < band.range.count; turn += WARPS * band.segment) {
        if (is_crowd(turn)) continue;
        const Range own = part_of_band(turn, band.segment);
        sum(own, 0, noted);
        // Sixteen bytes a lane.
        const u32 piece = lane % PIECES, channel = piece * CHANNELS_OF_PIECE;
        for (int i = lane / PIECES; i < own.count; i += 32 / PIECES) {
            if (piece >= adder.pieces) continue;
            const float *const sums = reinterpret_cast<const float *>(of_warp.sums[i]) + channel;
            u32 words[4];
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
#if VALUE == F32
                words[w] = __float_as_uint(sums[w]);
#else
                words[w] = Value::round(sums[2 * w], sums[2 * w + 1]);
#endif
            }
            const i64 pixel = level.start + own.first + i;
            const i64 to = n * g.value_strides[0] + pixel * g.value_strides[1] + m * g.value_strides[2] + slice * SLICE + channel;
            store_vector(static_cast<char *>(g.value) + to * static_cast<i64>(sizeof(Value::Storage)),
                         {words[0], words[1], words[2], words[3]});
        }
    }
#pragma unroll 1
    for (int from = 0; may_crowd && from < band.range.count; from += SEGMENT) {
        if (!is_crowd(from)) continue;
        const Range shared = part_of_band(from, SEGMENT);
        const u32 share = (noted + WARPS - 1) / WARPS;
        sum(shared, warp * share, min(noted, (warp + 1) * share));
        __syncthreads();
        // A warp a pixel, a lane a channel.
        if (static_cast<int>(warp) < shared.count && lane < channels) {
            float total = 0.0f;
            for (u32 w = 0; w < WARPS; w++) total += reinterpret_cast<const float *>(reinterpret_cast<const OfWarp *>(memory)[w].sums[warp])[lane];
            const i64 to = n * g.value_strides[0] + (level.start + shared.first + static_cast<int>(warp)) * g.value_strides[1] +
                           m * g.value_strides[2] + slice * SLICE + lane;
            static_cast<Value::Storage *>(g.value)[to] = Value::round(total);
        }
        __syncthreads();
    }
#if !PROJECTED
    wait_for_previous();
#endif
}
