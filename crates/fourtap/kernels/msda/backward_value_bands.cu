// Backward, grad_value of problems with few samples: each block searches all samples of its pixels' levels for those that touch
// them, and sums those in order. No sorting, no scratch memory, no atomic additions; any levels, wherever they lie.
//
// A *band* is a block's pixels of one image and head, in the order of memory; each warp of it has SEGMENT of them. The block
// looks at all samples of a level, a round at a time, and notes those that touch the band. Each warp picks from the notes what
// touches its own pixels, BATCH at a time: a lane has a sample, whose row of grad_out comes to shared memory. Then, pixel by
// pixel, lanes say whose samples touch it, and those are added up: by the first half of the warp those of even lanes, by the
// second half those of odd ones, two channels a lane.
// Limited by latency: of finding samples, and of rows on their way.
//
// VALUE, LOCATION, WEIGHT: element types, of which VALUE has sums in f32; PAIRED: whether x and y of a location lie side by side,
// aligned to their pair; WARPS: of a block.

typedef Element<VALUE> Value;
typedef float Real;

constexpr u32 ALL = 0xffffffffu;
constexpr u32 BAND = WARPS * SEGMENT;
constexpr u32 EACH = 3, PART = 32 * EACH, ROUND = WARPS * PART; // samples a lane, warp and block looks at in a round
constexpr u32 SLICE = 32;                                       // channels of a block
constexpr u32 ROW_BYTES = SLICE * sizeof(Value::Storage), BATCH = 1024 / ROW_BYTES;
constexpr u32 PIECES = ROW_BYTES / 16; // of a row
constexpr int REACH = NEAREST ? 1 : 2; // pixels a sample touches, in each direction

// Mirrored in src/cuda/msda/arguments.rs.
struct Bands {
    u32 bands, slices; // of an image and head
    Divisor by_points;
};

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
static __device__ __forceinline__ int cell_of(float x, float y, int width) {
    return __float2int_rd(y) * width + __float2int_rd(x);
}

struct Memory {
    Note notes[WARPS][PART];
    u32 counts[WARPS];
    u16 picked[WARPS][64];
    __align__(16) char rows[WARPS][BATCH][ROW_BYTES];
};

// Where and how much a sample is of a level, or that it takes no part: then its query is none.
constexpr u32 NO_QUERY = 0xffffffffu;
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

    __device__ __forceinline__ Note find(u32 sample) const {
        if (sample >= samples) return {0.0f, 0.0f, 0.0f, NO_QUERY};
#if PROJECTED
        const u32 q = projection.by_points[l].divide(sample), p = sample - q * points;
        const auto placed = place_point<float>(a, projection, n, q, m, l, p, level.width, level.height);
        return {placed.x, placed.y, 0.0f, takes_part(placed.x, placed.y) ? q : NO_QUERY};
#else
        typedef Element<LOCATION>::Storage Location;
        const u32 q = bands.by_points.divide(sample), p = sample - q * points;
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
        const float x = fused(Element<LOCATION>::widen(pair.x), static_cast<float>(level.width), -0.5f);
        const float y = fused(Element<LOCATION>::widen(pair.y), static_cast<float>(level.height), -0.5f);
        return {x, y, 0.0f, takes_part(x, y) ? q : NO_QUERY};
#endif
    }
    // Of a sample that was found.
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

  private:
    // In floating point: what is NaN or too large for an integer is told so.
    __device__ __forceinline__ bool takes_part(float x, float y) const {
        return x > -1.0f && y > -1.0f && x < static_cast<float>(level.width) && y < static_cast<float>(level.height);
    }
};

// A warp's pixels.
struct Segment {
    float sums[SEGMENT][2];

    // Adds the first `count` of the warp's picked notes, at most BATCH. `from`: the rows of grad_out, as many bytes apart as
    // `stride` says; `pieces`: of a row that are there.
    __device__ __forceinline__ void add(const Memory &memory, u32 rows_at, const Range &own, const Level &level, u32 warp, u32 lane,
                                        u32 count, const char *from, i64 stride, u32 pieces) {
        const Note *const notes = &memory.notes[0][0];
        const Note note = lane < count ? notes[memory.picked[warp][lane]] : Note{-8.0f, -8.0f, 0.0f, 0};
        __syncwarp(); // rows of the batch before have been read
#pragma unroll
        for (u32 i = 0; i < BATCH * PIECES / 32; i++) {
            const u32 at = i * 32 + lane, row = at / PIECES, piece = at % PIECES;
            const u32 query = __shfl_sync(ALL, note.query, row);
            if (row >= count) continue;
            Vector v = {};
            if (piece < pieces) v = load_vector(from + query * stride + piece * 16);
            store_shared(rows_at + at * 16, v);
        }
        __syncwarp();
        const float left = floorf(note.x), top = floorf(note.y), across = note.x - left, down = note.y - top;
        const int column = static_cast<int>(left), row = static_cast<int>(top);
        const u32 half = lane / 16, size = level.width * level.height;
        int y = own.first / level.width, x = own.first - y * level.width;
        if (x < 0) { // before the level begins
            x += level.width;
            y--;
        }
#pragma unroll
        for (u32 i = 0; i < SEGMENT; i++) {
            const u32 right = x - column, below = y - row;
            const bool touches = right < REACH && below < REACH && static_cast<u32>(own.first) + i < size;
            const float share = note.weight * ((right ? across : 1.0f - across) * (below ? down : 1.0f - down));
            const u32 touching = __ballot_sync(ALL, touches);
            if (touching) {
                u32 mine = half ? touching & 0xaaaaaaaau : touching & 0x55555555u;
                const u32 most = max(__popc(touching & 0x55555555u), __popc(touching & 0xaaaaaaaau));
#pragma unroll 1
                for (u32 k = 0; k < most; k++) {
                    const u32 lane_of = __ffs(mine) - 1;
                    const float by = __shfl_sync(ALL, share, lane_of);
                    if (mine) {
                        float low, high;
                        load_pair(rows_at + lane_of * ROW_BYTES + lane % 16 * (2 * sizeof(Value::Storage)), low, high);
                        sums[i][0] = __fmaf_rn(by, low, sums[i][0]);
                        sums[i][1] = __fmaf_rn(by, high, sums[i][1]);
                    }
                    mine &= mine - 1;
                }
            }
            if (++x == level.width) {
                x = 0;
                y++;
            }
        }
    }

  private:
    static __device__ __forceinline__ void load_pair(u32 address, float &low, float &high) {
#if VALUE == F32
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(low), "=f"(high) : "r"(address));
#else
        Value::widen(load_shared_word(address), low, high);
#endif
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    msda_backward_value_bands(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                              const __grid_constant__ Bands bands
#if PROJECTED
                              , const __grid_constant__ Projection projection
#endif
    ) {
    __shared__ Memory memory;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The last pixels first: small levels have the most samples.
    const u32 others = gridDim.x / bands.bands, band = bands.bands - 1 - blockIdx.x / others, other = blockIdx.x % others;
    const u32 plane = other / bands.slices, slice = other - plane * bands.slices;
    const i64 n = plane / a.heads, m = plane - n * a.heads;
    const i64 first = static_cast<i64>(band) * BAND, own_first = first + warp * SEGMENT;
    const u32 rows_at = shared_address(memory.rows[warp]);
    const char *const grads = static_cast<const char *>(g.grad_out) +
                              (n * g.grad_out_strides[0] + m * a.channels + slice * SLICE) * sizeof(Value::Storage);
    const i64 grad_stride = g.grad_out_strides[1] * sizeof(Value::Storage);
    const u32 channels = min(SLICE, a.channels - slice * SLICE), pieces = channels * sizeof(Value::Storage) / 16;
    Segment segment = {};

#pragma unroll 1
    for (int l = 0; l < a.levels; l++) {
        const Level level = level_of(a, l);
        const i64 size = static_cast<i64>(level.width) * level.height;
        if (level.width <= 0 || level.height <= 0 || first + BAND <= level.start || first >= level.start + size) continue;
        const Range of_band = {static_cast<int>(first - level.start), static_cast<int>(BAND)};
        const Range own = {static_cast<int>(own_first - level.start), static_cast<int>(SEGMENT)};
#if PROJECTED
        const u32 points = projection.first[l + 1] - projection.first[l];
        const Finder finder = {a, projection, bands, n, m, l, level, points, static_cast<u32>(a.queries) * points};
#else
        const u32 points = a.points;
        const Finder finder = {a, bands, n, m, l, level, points, static_cast<u32>(a.queries) * points};
#endif
#pragma unroll 1
        for (u32 round = 0; round < finder.samples; round += ROUND) {
            const u32 part = round + warp * PART + lane;
            Note found[EACH];
#pragma unroll
            for (u32 i = 0; i < EACH; i++) found[i] = finder.find(part + 32 * i);
            __syncthreads(); // notes of the round before have been read
            u32 count = 0;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                Note &note = found[i];
                const bool wanted =
                    note.query != NO_QUERY && of_band.may_touch(cell_of(note.x, note.y, level.width), level.width);
                const u32 all = __ballot_sync(ALL, wanted);
                if (wanted) {
                    note.weight = finder.weight(part + 32 * i, note.query);
                    memory.notes[warp][count + __popc(all & ((1u << lane) - 1))] = note;
                }
                count += __popc(all);
            }
            if (lane == 0) memory.counts[warp] = count;
            __syncthreads();
            u32 picked = 0;
#pragma unroll 1
            for (u32 w = 0; w < WARPS; w++) {
                const u32 noted = memory.counts[w];
#pragma unroll 1
                for (u32 at = lane; at - lane < noted; at += 32) {
                    const Note &note = memory.notes[w][at];
                    const bool wanted = at < noted && own.may_touch(cell_of(note.x, note.y, level.width), level.width);
                    const u32 all = __ballot_sync(ALL, wanted);
                    if (wanted) memory.picked[warp][picked + __popc(all & ((1u << lane) - 1))] = w * PART + at;
                    picked += __popc(all);
                    __syncwarp();
                    while (picked >= BATCH) {
                        segment.add(memory, rows_at, own, level, warp, lane, BATCH, grads, grad_stride, pieces);
                        picked -= BATCH;
                        const u32 moved = lane < picked ? memory.picked[warp][BATCH + lane] : 0;
                        __syncwarp();
                        if (lane < picked) memory.picked[warp][lane] = moved;
                        __syncwarp();
                    }
                }
            }
            if (picked > 0) segment.add(memory, rows_at, own, level, warp, lane, picked, grads, grad_stride, pieces);
        }
    }

    // Halves of the warp have parts of all sums; each stores every other pixel.
    const u32 half = lane / 16, channel = lane % 16 * 2;
    auto *out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] + (own_first + half) * g.value_strides[1] +
                m * g.value_strides[2] + (slice * SLICE + channel) * g.value_strides[3];
#pragma unroll
    for (u32 i = 0; i < SEGMENT; i += 2) {
        float totals[2];
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            const float others_part = __shfl_xor_sync(ALL, half ? segment.sums[i][c] : segment.sums[i + 1][c], 16);
            totals[c] = (half ? segment.sums[i + 1][c] : segment.sums[i][c]) + others_part;
        }
        if (channel < channels && own_first + i + half < a.pixels) {
            out[0] = Value::round(totals[0]);
            out[g.value_strides[3]] = Value::round(totals[1]);
        }
        out += 2 * g.value_strides[1];
    }
}
