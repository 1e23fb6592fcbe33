// A15, tensor cores for the sums: neighbours times weights, the neighbours just as they were loaded.
//
// Widening and multiplying f16 neighbours is two thirds of the instructions of a gather. Here a lane hands its 16 bytes of a
// neighbour to the tensor cores: row = 16-byte unit of channels, k = (sample, even or odd channel of a word). The 8 columns of
// the other matrix are (even, odd channel) x (coarse, fine part of the f32 weight) x (row of the problem), so that eight small
// products take a neighbour of 8 samples of 32 channels, exactly, summed in f32. Half the instructions: should gain a fifth on
// the shipped kernel where points lie near their query. But the lanes of a quad must hold four samples, not four units of one:
// if L1 delivers a quarter of a warp at a time, as it does for whole pixels, each wavefront finds half as much to deliver.
//
// One block a multiprocessor takes neighbouring rows. A warp takes SETS rows at a time (two of 32 channels: two heads of a
// query, or two queries; else one), four samples of each a step. Geometry is worked out a chunk ahead and handed over in
// shared memory; neighbours are a step ahead, over the ends of chunks and rows.
//
// THREADS; QUERIES, HEADS; TURN (units, one a warp, of all blocks until the next turn), SHARE (of them, a block's).

constexpr int SETS = CHANNELS == 32 ? 2 : 1;
constexpr int PIECES = CHANNELS / 64 > 1 ? CHANNELS / 64 : 1; // 16-byte units of a pixel a lane reads
constexpr int WORKERS = 32 / SETS;                            // lanes that work out the samples of a row
constexpr int PER_LANE = SAMPLES % (2 * WORKERS) == 0 && POINTS % 2 == 0 ? 2 : 1;
constexpr int CHUNK = WORKERS * PER_LANE;
constexpr int CHUNKS = (SAMPLES + CHUNK - 1) / CHUNK;
constexpr int NEEDED = CHUNKS == 1 ? (SAMPLES + 3) / 4 : CHUNK / 4;
constexpr int STEPS = NEEDED + NEEDED % 2; // even: the two sets of registers take turns over the ends of chunks
constexpr bool PAIRED = SETS == 2 && HEADS % 2 == 0; // two heads of a query, or two queries
constexpr bool ALTERNATE = SETS == 2 && !PAIRED;     // the even pixel of a pair first, or the odd one: half of each
constexpr u32 STRIDE = HEADS * PIXEL_BYTES;
constexpr u32 UNITS_A_PLANE = PAIRED ? QUERIES : (QUERIES + SETS - 1) / SETS;
constexpr u32 PLANES_AN_IMAGE = PAIRED ? HEADS / 2 : HEADS;
constexpr int WARPS = THREADS / 32;
constexpr float SCALE = 256.0f; // keeps small weights in the range of f16
constexpr u32 NONE = 0xffffffffu;

struct Item {
    u32 row;   // NONE if there is none
    u32 first; // where its image and head begin, in bytes
    int chunk;
};

// The units of a warp, chunk by chunk.
struct Walk {
    u32 units, turn, ahead;
    int chunk;
    __device__ __forceinline__ Walk(const Problem &p, u32 warp) : units(p.images * PLANES_AN_IMAGE * UNITS_A_PLANE) {
        turn = 0, ahead = warp, chunk = 0;
        settle();
    }
    __device__ __forceinline__ void settle() {
        const u32 first = blockIdx.x * SHARE, room = first < TURN ? min(SHARE, TURN - first) : 0u;
        while (ahead >= room && turn < units) ahead -= room, turn += TURN;
    }
    __device__ __forceinline__ Item next(const Problem &p, u32 set) {
        const u32 unit = turn + blockIdx.x * SHARE + ahead;
        Item item = {NONE, 0, chunk};
        if (turn < units && unit < units) {
            const u32 plane = unit / UNITS_A_PLANE, at = unit % UNITS_A_PLANE, image = plane / PLANES_AN_IMAGE;
            const u32 query = PAIRED ? at : at * SETS + set;
            const u32 head = PAIRED ? plane % PLANES_AN_IMAGE * 2 + set : plane % PLANES_AN_IMAGE;
            if (query < QUERIES) {
                item.row = (image * QUERIES + query) * HEADS + head;
                item.first = (image * p.pixels * HEADS + head) * PIXEL_BYTES;
            }
        }
        if (++chunk == CHUNKS) {
            chunk = 0, ahead += WARPS;
            settle();
        }
        return item;
    }
};

// d[16x8] += a[16x8] * b[8x8]; of `a` a lane has two words of what it loaded, just as they came.
__device__ __forceinline__ void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

// Two numbers as the sum of two f16 numbers each.
__device__ __forceinline__ void split(float low, float high, u32 &coarse, u32 &fine) {
    coarse = rounded(low, high);
    float coarse_low, coarse_high;
    widen(coarse, coarse_low, coarse_high);
    fine = rounded(low - coarse_low, high - coarse_high);
}

// The smaller, NaN if either is: the usual minimum would turn a NaN coordinate into a legal one.
__device__ __forceinline__ float least_or_nan(float a, float b) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
}

struct Axis {
    float inside; // what zero padding leaves: 1 inside, falling to 0 a pixel beyond the border
    float second; // weight of the second neighbour
    u32 first;    // the first neighbour: cells on a border are moved inside
};

__device__ __forceinline__ Axis axis(float location, float size) {
    constexpr float SHIFT = 8388608.0f; // added towards zero, it leaves the whole part in the low bits
    const float at = __fmaf_rn(location, size, -0.5f);
    Axis a;
    a.inside = fmaxf(least_or_nan(least_or_nan(at + 1.0f, size - at), 1.0f), 0.0f);
    const float clamped = fmaxf(fminf(at, size - 1.0f), 0.0f);
    const float first = fminf(__fadd_rz(clamped, SHIFT), fmaxf(size - 2.0f, 0.0f) + SHIFT);
    a.second = clamped - (first - SHIFT);
    a.first = __float_as_uint(first) - 0x4b000000u;
    return a;
}

// Coordinates nobody reads again.
__device__ __forceinline__ void load_coordinates(const float2 *location, const float *weight, float2 (&l)[PER_LANE],
                                                 float (&w)[PER_LANE]) {
    constexpr int LAST = PER_LANE - 1;
    if (PER_LANE == 1) {
        asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];" : "=f"(l[0].x), "=f"(l[0].y) : "l"(location));
        asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(w[0]) : "l"(weight));
    } else {
        asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(l[0].x), "=f"(l[0].y), "=f"(l[LAST].x), "=f"(l[LAST].y)
                     : "l"(location));
        asm volatile("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];" : "=f"(w[0]), "=f"(w[LAST]) : "l"(weight));
    }
}

struct Records {
    Words weights[SETS][CHUNK]; // coarse 01, coarse 23, fine 01, fine 23
    u32 places[SETS][CHUNK];    // bytes to the first neighbour; lowest bit: the second lies before it
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a15_sums(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char memory[];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Records *const records = reinterpret_cast<Records *>(memory) + warp * 2;
    // As a worker: samples of a row. As a member of a fragment: a row of the matrix g, and k or columns t.
    const u32 worker = lane % WORKERS, work_set = lane / WORKERS;
    const u32 g = lane / 4, t = lane % 4, set = SETS == 2 ? g / 4 : 0;
    const u32 fine = g / 2 % 2, odd = g % 2;
    const u32 unit = g % VECTORS; // of the channels
    // Takes the low or the high half of a pair and leaves it in the half of this lane's column.
    const u32 take_low = odd ? 0x1044u : 0x4410u, take_high = odd ? 0x3244u : 0x4432u;

    Walk walk(p, warp);
    float2 locations[PER_LANE];
    float weights[PER_LANE];
    Item waiting, following, current; // coordinates asked for; geometry known; being summed. Of the worker's row.
    const auto ask = [&] {
        waiting = walk.next(p, work_set);
        const u32 sample = waiting.chunk * CHUNK + worker * PER_LANE;
#pragma unroll
        for (int v = 0; v < PER_LANE; v++) locations[v] = {0.0f, 0.0f}, weights[v] = 0.0f;
        if (waiting.row != NONE && sample < SAMPLES) {
            const u64 at = static_cast<u64>(waiting.row) * SAMPLES + sample;
            load_coordinates(p.locations + at, p.weights + at, locations, weights);
        }
    };
    const auto level_at = [&](u32 sample) { return p.levels[min(sample, SAMPLES - 1u) / POINTS]; };
    const Level fixed = level_at(worker * PER_LANE);
    // Where the samples asked for lie, for all lanes.
    const auto prepare = [&](Records &r) {
        const Level level = CHUNKS == 1 ? fixed : level_at(waiting.chunk * CHUNK + worker * PER_LANE);
        const u32 last_pair = p.pixels - 2 - level.below;
#pragma unroll
        for (int v = 0; v < PER_LANE; v++) {
            const u32 slot = worker * PER_LANE + v;
            const Axis x = axis(locations[v].x, static_cast<float>(level.width));
            const Axis y = axis(locations[v].y, static_cast<float>(level.height));
            const float weight = weights[v] * SCALE * x.inside * y.inside;
            const float lower = weight * y.second, upper = weight - lower;
            // In a level one pixel wide there may be no pixel to the right: then the pair is the one that ends with this.
            const u32 pixel = level.start + y.first * level.width + x.first, pair = min(pixel, last_pair);
            float second = x.second + static_cast<float>(pixel - pair), one = 1.0f - second;
            u32 place = pair * STRIDE;
            if (ALTERNATE && ((pair ^ slot) & 1)) {
                place += STRIDE + 1;
                const float swapped = one;
                one = second, second = swapped;
            }
            Words w;
            split(one * upper, second * upper, w.x, w.z);
            split(one * lower, second * lower, w.y, w.w);
            r.weights[work_set][slot] = w;
            r.places[work_set][slot] = place;
        }
        following = waiting;
    };

    Words taps[2][PIECES][4];
    uint2 by[2];
    // `number` counts the row's samples, for their level.
    const auto load_step = [&](int which, const Records &r, u32 first, u32 slot, u32 number) {
        by[which] = reinterpret_cast<const uint2 *>(&r.weights[set][slot])[fine];
        const u32 place = r.places[set][slot];
        const u32 level = min(POINTS % 4 == 0 ? number : number + t, SAMPLES - 1u) / POINTS;
        const u32 below = p.levels[level].below * STRIDE;
        const u32 above = first + (ALTERNATE ? place & ~1u : place), beneath = above + below;
        const u32 right = ALTERNATE && (place & 1) ? 0u - STRIDE : STRIDE;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            taps[which][piece][0] = load(p.value + above + piece * 128);
            taps[which][piece][1] = ALTERNATE ? load(p.value + (above + right)) : load(p.value + above + STRIDE + piece * 128);
            taps[which][piece][2] = load(p.value + beneath + piece * 128);
            taps[which][piece][3] =
                ALTERNATE ? load(p.value + (beneath + right)) : load(p.value + beneath + STRIDE + piece * 128);
        }
    };
    // What the worker of this lane's row knows of it.
    const auto of_set = [&](u32 number) { return SETS == 2 ? __shfl_sync(ALL, number, set * WORKERS) : number; };

    ask();
    prepare(records[0]);
    ask();
    current = following;
    u32 row = of_set(current.row), first = of_set(current.first) + unit * 16;
    __syncwarp();
    load_step(0, records[0], first, t, 0);
    float sums[PIECES][2][4] = {};

#pragma unroll 1
    for (int buffer = 0; __any_sync(ALL, current.row != NONE); buffer ^= 1) {
        u32 next_row = NONE, next_first = 0;
        const u32 number = CHUNKS == 1 ? 0 : current.chunk * CHUNK;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS) {
                load_step((step + 1) % 2, records[buffer], first, (step + 1) * 4 + t, number + (step + 1) * 4);
            } else {
                load_step(0, records[buffer ^ 1], next_first, t, CHUNKS == 1 ? 0 : following.chunk * CHUNK);
            }
            const Words(&v)[PIECES][4] = taps[step % 2];
            const uint2 w = by[step % 2];
            const u32 b[4] = {__byte_perm(w.x, 0, take_low), __byte_perm(w.x, 0, take_high),
                              __byte_perm(w.y, 0, take_low), __byte_perm(w.y, 0, take_high)};
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    multiply_add(sums[piece][0], v[piece][i].x, v[piece][i].y, b[i]);
                    multiply_add(sums[piece][1], v[piece][i].z, v[piece][i].w, b[i]);
                }
            }
            if (step == 0) {
                __syncwarp();
                prepare(records[buffer ^ 1]);
                ask();
                next_row = of_set(following.row), next_first = of_set(following.first) + unit * 16;
                __syncwarp();
            }
        }
        if (CHUNKS == 1 || current.chunk == CHUNKS - 1) {
            // The coarse and the fine part meet: each of two lanes keeps half of the channels.
            const bool upper = t & 1;
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
                float kept[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float given = upper ? sums[piece][0][i] : sums[piece][1][i];
                    kept[i] = (upper ? sums[piece][1][i] : sums[piece][0][i]) + __shfl_xor_sync(ALL, given, 1);
                    kept[i] *= 1.0f / SCALE;
                    sums[piece][0][i] = sums[piece][1][i] = 0.0f;
                }
                if (row != NONE && t / 2 == set) {
                    char *out = p.out + static_cast<u64>(row) * PIXEL_BYTES + piece * 128 + unit * 16 + upper * 8;
                    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(out), "r"(rounded(kept[0], kept[1])),
                                 "r"(rounded(kept[2], kept[3]))
                                 : "memory");
                }
            }
        }
        current = following;
        row = next_row, first = next_first;
    }
}
