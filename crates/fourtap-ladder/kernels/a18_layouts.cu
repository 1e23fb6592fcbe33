// A18, custom layouts: one gather, over value as it is given or as it would be better.
//
// LAYOUT 0, AS_GIVEN: [N, S, M, D], what the others are compared with. 1, HEAD_MAJOR: copied to [N, M, S, D], so that x
// and x + 1 of one head share a 128-byte line. 2, PAIRED: in that copy each pixel is followed by its right neighbour;
// twice as many lanes fetch both as one segment, which fills whole wavefronts. 3, REORDERED: value as given, rows
// visited along a Z-shaped path through the image, so that those in flight share pixels in L1; they are sorted by where
// their first KEY_POINTS samples lie, each image and head for itself.
//
// A group of GROUP lanes takes a row, a lane 16 bytes of a pixel (PAIRED: of a pair). A sample's place is worked out by
// one lane and passed to its group in 16 bytes of shared memory. Should gain: HEAD_MAJOR a tenth with several heads;
// PAIRED a tenth, less than its copy costs; REORDERED nothing where queries come in raster order already.
//
// THREADS of a block, RESIDENT of a multiprocessor; ROUNDS: rows a group takes; BATCH: samples asked for at a time;
// GRID: bins a side; HEADS: M; NARROW: all levels are one pixel wide.

#define AS_GIVEN 0
#define HEAD_MAJOR 1
#define PAIRED 2
#define REORDERED 3

constexpr bool COPIED = LAYOUT == HEAD_MAJOR || LAYOUT == PAIRED;
constexpr u32 PIXEL_UNITS = COPIED ? GROUP : HEADS * VECTORS; // of 16 bytes, from a pixel to the next
constexpr int CHUNK = GROUP * PER_LANE;
constexpr int CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
constexpr int AT_ONCE = BATCH < CHUNK ? BATCH : CHUNK;
constexpr int TAPS = LAYOUT == PAIRED ? 2 : 4; // loads of a lane for a sample
// Neighbouring groups read the two pixels of a pair in opposite order: then two 64-byte pixels share a wavefront.
constexpr bool ALTERNATE = LAYOUT != PAIRED && PIXEL_UNITS == 4 && !NARROW;

// x: the place to read first, in units; y: weight of the second column, negative (-0 is) where that is the left one; z
// and w: weights of the upper and the lower row, attention weight included. `level`: width, height, start, pixels to
// the row below.
__device__ __forceinline__ Words record_of(float2 location, float weight, int4 level, u32 pixels, u32 row) {
    const Axis x = axis_of(location.x, level.x), y = axis_of(location.y, level.y);
    const float all = weight * (x.inside * y.inside), lower = all * y.second;
    const u32 pixel = level.z + y.first * level.x + x.first;
    u32 first = pixel;
    float second = x.second;
    if (LAYOUT != PAIRED && !NARROW) {
        // Right of a level one pixel wide there may be no pixel at all: take the pair that ends with this one.
        first = min(pixel, pixels - 2 - level.w);
        second += static_cast<float>(pixel - first);
    }
    if (ALTERNATE && ((first ^ row) & 1u)) {
        first += 1;
        second = -(1.0f - second);
    }
    return {first * PIXEL_UNITS, __float_as_uint(second), __float_as_uint(all - lower), __float_as_uint(lower)};
}

// The row that is visited as number `at`.
__device__ __forceinline__ u32 row_at(const Problem &p, u32 at) {
    if (at >= row_count(p)) return NONE;
#if LAYOUT == REORDERED
    return Sorting(p).order[at];
#else
    const u32 plane = at / p.queries;
    return COPIED ? (plane / HEADS * p.queries + at % p.queries) * HEADS + plane % HEADS : at;
#endif
}

// Its image and head, from pixel 0 on.
__device__ __forceinline__ const char *pixels_of(const Problem &p, u32 row) {
    const u32 image = row / HEADS / p.queries, head = row % HEADS;
    return COPIED ? p.scratch + static_cast<u64>(image * HEADS + head) * p.pixels * (GROUP * 16)
                  : p.value + (static_cast<u64>(image) * p.pixels * HEADS + head) * PIXEL_BYTES;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    ladder_a18(const __grid_constant__ Problem p) {
    __shared__ __align__(1024) Words records[WARPS][32 * PER_LANE];
    __shared__ int4 levels[LEVELS];
    if (threadIdx.x < LEVELS) levels[threadIdx.x] = level_of(p, threadIdx.x);
    __syncthreads();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / GROUP, in_group = lane % GROUP;
    const u32 first_record = shared_address(&records[warp][group]), sample = in_group * PER_LANE;
    u32 at = (blockIdx.x * ROUNDS * WARPS + warp) * GROUPS + group;
    u32 row = row_at(p, at);
    Pending pending;
    pending.ask(p, row, sample);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        at += WARPS * GROUPS;
        const u32 next_row = round + 1 < ROUNDS ? row_at(p, at) : NONE;
        const char *upper = pixels_of(p, row == NONE ? 0 : row) + in_group * 16;
        asm("" : "+l"(upper)); // one register pair, not a sum to be repeated at each load
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const Pending current = pending;
            const bool last = chunk + 1 == CHUNKS;
            pending.ask(p, last ? next_row : row, last ? sample : (chunk + 1) * CHUNK + sample);
            const int4 level = levels[min((chunk * CHUNK + sample) / POINTS, LEVELS - 1)];
            __syncwarp();
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                store_shared(record_at(first_record, sample + i),
                             record_of(current.locations[i], current.weights[i], level, p.pixels, row));
            }
            __syncwarp();
            const char *lower = upper + static_cast<u64>(level.w * PIXEL_UNITS) * 16;
            Words taps[2][AT_ONCE][TAPS];
            float by[2][AT_ONCE][TAPS];
            const auto ask = [&](int batch) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    const int slot = batch * AT_ONCE + i;
                    if (POINTS % CHUNK != 0 && (slot % POINTS == 0 || CHUNK % POINTS != 0)) {
                        const int below = levels[min((chunk * CHUNK + slot) / POINTS, LEVELS - 1)].w;
                        lower = upper + static_cast<u64>(below * PIXEL_UNITS) * 16;
                    }
                    const Words record = load_shared(record_at(first_record, slot));
                    Words(&t)[TAPS] = taps[batch % 2][i];
                    float(&b)[TAPS] = by[batch % 2][i];
                    const float signed_second = __uint_as_float(record.y), second = fabsf(signed_second);
                    const float rows[2] = {__uint_as_float(record.z), __uint_as_float(record.w)};
                    const u64 first = static_cast<u64>(record.x) * 16;
#if LAYOUT == PAIRED
                    const float column = in_group < VECTORS ? 1.0f - second : second;
                    t[0] = load(upper + first);
                    t[1] = load(lower + first);
                    b[0] = column * rows[0];
                    b[1] = column * rows[1];
#else
                    const bool left = ALTERNATE && static_cast<int>(record.y) < 0;
                    const u32 place = left ? record.x - PIXEL_UNITS : record.x + PIXEL_UNITS;
                    const u64 next = first + (NARROW ? 0 : PIXEL_UNITS * 16);
                    const u64 other = ALTERNATE ? static_cast<u64>(place) * 16 : next;
                    t[0] = load(upper + first);
                    t[1] = load(upper + other);
                    t[2] = load(lower + first);
                    t[3] = load(lower + other);
                    b[0] = (1.0f - second) * rows[0];
                    b[1] = second * rows[0];
                    b[2] = (1.0f - second) * rows[1];
                    b[3] = second * rows[1];
#endif
                }
            };
            // The next batch's neighbours are on their way while this one's are added.
            ask(0);
#pragma unroll
            for (int batch = 0; batch < CHUNK / AT_ONCE; batch++) {
                if (SAMPLES % CHUNK != 0 && chunk * CHUNK + batch * AT_ONCE >= SAMPLES) break;
                if ((batch + 1) * AT_ONCE < CHUNK) ask(batch + 1);
#pragma unroll
                for (int i = 0; i < AT_ONCE * TAPS; i++) {
                    add(sums, taps[batch % 2][i / TAPS][i % TAPS], by[batch % 2][i / TAPS][i % TAPS]);
                }
            }
        }
        if (LAYOUT == PAIRED) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sums[i] += __shfl_xor_sync(ALL, sums[i], VECTORS);
        }
        if (row != NONE && in_group < VECTORS) {
            store_sums(p.out + (static_cast<u64>(row) * VECTORS + in_group) * 16, sums);
        }
        row = next_row;
    }
}

#if LAYOUT == HEAD_MAJOR || LAYOUT == PAIRED
// A block: COPIES times COPY_THREADS units of one image and head; right of the last pixel stands that pixel again.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) ladder_a18_copy(const __grid_constant__ Problem p) {
    const u32 units = p.pixels * GROUP, blocks = (units + COPIES * COPY_THREADS - 1) / (COPIES * COPY_THREADS);
    const u32 plane = blockIdx.x / blocks, first = blockIdx.x % blocks * (COPIES * COPY_THREADS) + threadIdx.x;
    const char *source = p.value + (static_cast<u64>(plane / HEADS) * p.pixels * HEADS + plane % HEADS) * PIXEL_BYTES;
    char *target = p.scratch + static_cast<u64>(plane) * units * 16;
    Words words[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const u32 unit = min(first + i * COPY_THREADS, units - 1);
        const u32 pixel = min(unit / GROUP + unit % GROUP / VECTORS, p.pixels - 1);
        words[i] = load(source + static_cast<u64>(pixel) * (HEADS * PIXEL_BYTES) + unit % VECTORS * 16);
    }
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const u32 unit = first + i * COPY_THREADS;
        if (unit < units) *reinterpret_cast<Words *>(target + static_cast<u64>(unit) * 16) = words[i];
    }
}
#endif
