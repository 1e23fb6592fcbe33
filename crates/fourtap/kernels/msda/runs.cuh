// Summing grad_value run by run from sorted samples (bins.cuh).
//
// A warp takes a *walk*: some rows of a run, from top to bottom, for 32 channels. The samples of a row of cells
// complete the sums of the pixels above and begin those of the pixels below, so only a walk's first and last row of
// cells is read twice. Warps draw walks from a queue; long ones are put off, cut into parts and shared by blocks.

typedef Element<VALUE> Value;

// NEAREST: whether samples touch one pixel only, which is where they lie.

constexpr u32 RUN_WARPS = 4; // of a block that sums
constexpr u32 BLOCK = 32;    // channels a warp sums at a time
constexpr u32 MOST_ROWS = 8; // of a walk: the more, the fewer samples are met twice
constexpr u32 SPARSE = 64;   // samples of a walk up to which its rows can be summed from one list
constexpr u32 DENSE = 64;    // samples of a run's cell row from which on warps may share a walk
constexpr u32 LATE = 128;    // samples of a walk up to which it is not put off
constexpr u32 LONG = 4;      // parts of a walk up to which it is not cut
constexpr u32 ROW = 16;      // what a row of a run costs besides its samples, in samples
// Walks have so many rows that they cost no more than three quarters of what each of so many warps has to do. Not of what this
// device has: results shall not depend on it.
constexpr u32 WORKERS = 4096;

// How the pixels of a level are dealt out, if samples are spread evenly; `fair`: what a warp's part may cost; `lists`:
// whether all rows of a walk of few samples are summed from one list.
static __device__ void deal(Grid &grid, const Arguments &a, const Work &work, u64 fair, bool lists) {
    const u64 pixels = static_cast<u64>(grid.width) * grid.height;
    const u64 samples = static_cast<u64>(work.samples) * (RUN + 1) / pixels, cost = samples + ROW; // of a cell row
    const bool shared = samples >= DENSE && cost * (MOST_ROWS + 1) > fair;
    const u32 runs = (grid.width + RUN - 1) / RUN;
    u32 rows = MOST_ROWS;
    while (rows > 1 && cost * (rows + 1) > fair * (shared ? RUN_WARPS : 1)) rows /= 2;
    // If two rows leave room in a list, as many as leave some for more than usual.
    if (lists && samples * 3 <= SPARSE / 2) {
        while (rows > 2 && (samples * (rows + 1) > SPARSE * 2 / 3 || work.chunks * (rows + 1) > 32)) rows /= 2;
    }
    grid.runs = Parts::of(runs);
    grid.items = Parts::of((grid.height + rows - 1) / rows * runs * ((a.channels + BLOCK - 1) / BLOCK));
    grid.rows = rows;
    grid.shared = shared;
    const u64 usual = max(u64(LATE), 2 * cost * (rows + 1));
    grid.longest = static_cast<u32>(min(u64(ALL), shared ? max(usual, u64(2 * LONG * work.part)) : usual));
}

// The same of all levels that are summed now; `items`: how many warps have for themselves, and how many blocks share. All
// threads call it.
static __device__ __forceinline__ void deal_out(const Arguments &a, const Work &work, Grid (&grids)[LEVEL_CAPACITY],
                                                u32 (&items)[2], bool lists) {
    if (threadIdx.x < a.levels) {
        Grid &grid = grids[threadIdx.x];
        const bool now = threadIdx.x - work.first_level < work.level_count;
        const u64 all = static_cast<u64>(a.images) * a.heads * (static_cast<u64>(work.samples) * a.levels + ROW / RUN * a.pixels);
        grid.items = Parts::of(0);
        grid.shared = 0;
        if (grid.bins > 0 && now) deal(grid, a, work, all * 3 / (4 * WORKERS), lists);
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u32 all = 0; // the launcher sees to it that this fits
        for (int l = 0; l < a.levels; l++) all += grids[l].shared == threadIdx.x ? grids[l].items.count * work.planes : 0;
        items[threadIdx.x] = all;
    }
    __syncthreads();
}

// What a warp works on, by itself or with the others of its block: a walk, and a block of channels.
struct Item {
    u32 plane, level, channel;
    u32 walk;
};

// Item `number`, there is one, of those that blocks share or of the others. Small levels come first: their walks have the most
// samples.
static __device__ __forceinline__ Item item_of(u32 number, bool shared, const Arguments &a, const Work &work,
                                               const Grid *grids) {
    int level = a.levels - 1;
    for (;; level--) {
        const u32 all = grids[level].shared == shared ? grids[level].items.count * work.planes : 0;
        if (number < all) break;
        number -= all;
    }
    u32 walk, channel = 0;
    const u32 plane = grids[level].items.divide(number, walk);
    if (a.channels > BLOCK) {
        const u32 blocks = (a.channels + BLOCK - 1) / BLOCK, piece = walk;
        walk = piece / blocks;
        channel = (piece - walk * blocks) * BLOCK;
    }
    return {plane, static_cast<u32>(level), channel, walk};
}

// Down some rows of a run.
struct Walk {
    u32 run;
    int y, rows;

    __device__ __forceinline__ Walk(const Grid &grid, const Item &item) {
        const u32 down = grid.runs.divide(item.walk, run);
        y = down * grid.rows;
        rows = min(static_cast<int>(grid.rows), grid.height - y);
    }
};

// The samples of a cell row of a run: a piece of each chunk.
struct List {
    const Record *sorted;
    const u16 *starts; // that of the first chunk's piece
    u32 bins;          // from there to its end

    __device__ __forceinline__ List(const Work &work, const Grid &grid, const Item &item, u32 run, int cell_row) {
        sorted = sorted_of(work, item.plane, item.level);
        starts = work.starts + static_cast<u64>(item.plane) * work.chunks * work.capacity + grid.first +
                 cell_row * grid.columns + 2 * run;
        bins = min(3u, grid.columns - 2 * run);
    }
    // Of a chunk, if there is such a one: its first sample, counted from the chunk's, and how many there are.
    __device__ __forceinline__ uint2 piece(const Work &work, u32 chunk) const {
        if (chunk >= work.chunks) return make_uint2(0, 0);
        const u16 *const at = starts + static_cast<u64>(chunk) * work.capacity;
        const u32 first = at[0];
        return make_uint2(first, at[bins] - first);
    }
};

// Hardly anybody reads it again: it shall not push out what is.
static __device__ __forceinline__ Record load_once(const Record *at) {
    Record record;
    constexpr int PARTS = sizeof(Record) / sizeof(uint4);
#pragma unroll
    for (int i = 0; i < PARTS; i++) reinterpret_cast<uint4 *>(&record)[i] = __ldcs(reinterpret_cast<const uint4 *>(at) + i);
    return record;
}

// The pieces of 32 chunks, a lane each, read by a warp as one list.
struct Pieces {
    u32 size;
    u32 before; // samples before this lane's piece; if it has none, NOWHERE
    const Record *sorted;
    u32 places; // in shared memory, of each piece that has samples: where they lie, less how many are before them

    static constexpr u32 NOWHERE = 0xffffffffu;

    // `piece`: the one of this lane's chunk; `places`: room for 32, the warp's own.
    __device__ __forceinline__ Pieces(const Work &work, const List &list, u32 chunk, uint2 piece, u32 places, u32 lane)
        : sorted(list.sorted), places(places) {
        asm("" : "+l"(sorted)); // not to be put together again and again
        u32 until = piece.y;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const u32 other = __shfl_up_sync(ALL, until, apart);
            if (lane >= apart) until += other;
        }
        size = __shfl_sync(ALL, until, 31);
        before = piece.y > 0 ? until - piece.y : NOWHERE;
        const u32 number = __popc(__ballot_sync(ALL, piece.y > 0) & ((1u << lane) - 1));
        __syncwarp(); // nobody still reads those of the last list
        if (piece.y > 0) store_shared_word(places + 4 * number, chunk * work.chunk + piece.x - before);
        __syncwarp();
    }
    // A lane each, from `first` on. One that adds nothing from the `end`th on.
    __device__ __forceinline__ Record take(u32 first, u32 end, u32 lane) const {
        // The pieces that begin before the first one, and where others do.
        const u32 passed = __popc(__ballot_sync(ALL, before < first)), after = before - first;
        const u32 begins = __reduce_or_sync(ALL, after < 32 ? 1u << after : 0);
        const u32 number = passed + __popc(begins & (ALL >> (31 - lane))), index = first + lane;
        if (index >= end) return {0, 0, 0, 0};
        return load_once(sorted + (load_shared_word(places + 4 * number - 4) + index));
    }
};

// How many samples a cell row of a walk has, if lanes share the chunks.
static __device__ __forceinline__ u32 measure(const Work &work, const List &list) {
    u32 size = 0;
    for (u32 chunk = threadIdx.x % 32; chunk < work.chunks; chunk += 32) size += list.piece(work, chunk).y;
    return __reduce_add_sync(ALL, size);
}

// How many samples a walk has.
static __device__ __forceinline__ u32 measure(const Work &work, const Grid &grid, const Item &item, const Walk &walk) {
    u32 size = 0;
    for (u32 piece = threadIdx.x % 32; piece < (walk.rows + 1) * work.chunks; piece += 32) {
        const u32 down = work.by_chunks.divide(piece);
        size += List(work, grid, item, walk.run, walk.y + down).piece(work, piece - down * work.chunks).y;
    }
    return __reduce_add_sync(ALL, size);
}

// A part of a walk that was noted for later, or all of it. Mirrored in src/cuda/msda/backward/sorting.rs by its size.
struct __align__(16) Part {
    u32 item;         // the walk's number, and whether it was one that blocks share
    u32 first, count; // of the walk's parts, none if it is not cut; where its first one's sums lie
    u32 number;       // of the part among those
    u32 row, index;   // the cell row of the walk, and which part of it
    u32 unused[2];

    static constexpr u32 SHARED_AT = 31;
    // Where its sums lie: of RUN pixels of two rows and BLOCK channels, in the order of whoever sums.
    static constexpr u32 SUMS = 2 * RUN * BLOCK;
    __device__ __forceinline__ Real *sums(const Work &work) const {
        return static_cast<Real *>(work.sums) + static_cast<u64>(first + number) * SUMS;
    }
};

// Into how many parts each cell row of a walk is cut.
struct PartsOfRows {
    u32 up_to; // of those before the lane's
    u32 all;

    __device__ __forceinline__ PartsOfRows() : up_to(0), all(0) {}
    __device__ __forceinline__ PartsOfRows(const Work &work, const Grid &grid, const Item &item, const Walk &walk) : PartsOfRows() {
        for (u32 row = 0; row <= static_cast<u32>(walk.rows); row++) {
            if (threadIdx.x % 32 == row) up_to = all;
            all += (measure(work, List(work, grid, item, walk.run, walk.y + row)) + work.part - 1) / work.part;
        }
        if (threadIdx.x % 32 > static_cast<u32>(walk.rows)) up_to = all;
    }
    // Of rows before this one. All lanes of a warp call it.
    __device__ __forceinline__ u32 before(u32 row) const { return __shfl_sync(ALL, up_to, row); }
};

// Items one after another, first come, first served: they differ in length. First those that the warps of a block share, then
// those that each warp has for itself, without waiting for the others. The next one's number is asked for while this one is
// worked on.
//
// Where samples crowd, few walks have most of them. Such walks are noted for later, and the longest cut into parts of equally many
// samples: when all items have been looked at, blocks share those.
struct Queue {
    enum Phase { OWN, SHARED, PUT_OFF };
    // A warp's, in shared memory: registers are scarce.
    struct Turn {
        Item item;
        u32 phase;
        u32 number; // of the item, or of the part
        u32 looked; // at how many items, until the others are told
        Part part;
        u32 begin, end; // which samples of a cell row belong to it
        u32 is_flawed;  // whether sums of it were not finite

        __device__ __forceinline__ bool is_part() const { return part.count > 0; }
        __device__ __forceinline__ int first_row() const { return is_part() ? part.row : 0; }
    };
    enum Counter { NEXT_LATE = PUT_OFF, LOOKED, NOTED, PARTS }; // after the next item of each of two kinds

    u32 *counters;
    const u32 *items; // how many there are of each kind, see `deal_out`
    Turn &turn;
    u32 next; // number; only a warp's first lane knows it, of what blocks share only the first thread
    bool is_exact; // whether the warp sums everything exactly from here on, see `sum_exactly`

    __device__ __forceinline__ Queue(const Work &work, const u32 (&items)[2], Turn &turn)
        : counters(work.counters), items(items), turn(turn), next(0), is_exact(false) {
        if (threadIdx.x % 32 == 0) {
            turn.phase = SHARED;
            turn.looked = 0;
            turn.is_flawed = 0;
            turn.part.count = 0;
            turn.begin = 0;
            turn.end = ALL;
        }
        if (threadIdx.x == 0) next = atomicAdd(counters + SHARED, 1);
        __syncwarp();
    }
    // Whether all warps of the block have the same item.
    __device__ __forceinline__ bool together() const { return turn.phase != OWN; }
    // The warp's next item, or false if there is none left; again the same one where sums were not finite, which `is_exact` tells. All
    // threads call it; where they have an item together, warps wait for each other.
    __device__ __forceinline__ bool take(const Arguments &a, const Work &work, const Grid *grids) {
        __shared__ u32 given;
        const bool is_first = threadIdx.x % 32 == 0;
        u32 phase = turn.phase, number = 0;
        __syncwarp(); // it has been told whether sums were flawed
        const bool is_again = !is_exact && (phase == OWN ? turn.is_flawed : __syncthreads_or(turn.is_flawed));
        if (is_again) {
            is_exact = true;
            return true;
        }
        if (phase == SHARED) {
            if (threadIdx.x == 0) given = next;
            __syncthreads();
            number = given;
            if (number >= items[SHARED]) {
                phase = OWN;
                if (is_first) next = atomicAdd(counters + OWN, 1);
            }
        }
        if (phase == OWN) {
            number = __shfl_sync(ALL, next, 0);
            if (number >= items[OWN]) phase = PUT_OFF;
        }
        u32 shared = phase;
        Part part = {};
        if (phase == PUT_OFF) {
            if (turn.phase != PUT_OFF) __syncthreads(); // nobody still reads what was given last
            if (threadIdx.x == 0) given = take_late(counters, items[OWN] + items[SHARED]);
            // What they share they do in the same way.
            const bool is_any_exact = __syncthreads_or(is_exact);
            if (given == ALL) return false;
            is_exact = is_any_exact;
            const auto *const words = reinterpret_cast<const uint4 *>(work.late + given);
            const uint4 of_walk = __ldcg(words), place = __ldcg(words + 1);
            part = {of_walk.x, of_walk.y, of_walk.z, of_walk.w, place.x, place.y};
            shared = part.item >> Part::SHARED_AT;
            number = part.item - (shared << Part::SHARED_AT);
        } else if (is_first && (phase == OWN || threadIdx.x == 0)) {
            next = atomicAdd(counters + phase, 1);
        }
        const Item item = item_of(number, shared, a, work, grids);
        __syncwarp(); // nobody still reads the last one
        if (is_first) {
            turn.item = item;
            turn.phase = phase;
            turn.number = number;
            if (phase == PUT_OFF) {
                turn.part = part;
                turn.begin = part.count > 0 ? part.index * work.part : 0;
                turn.end = part.count > 0 ? turn.begin + work.part : ALL;
            }
        }
        __syncwarp();
        return true;
    }
    // Once it is known how many samples the walk has: notes it for later if they are too many, and returns whether.
    __device__ __forceinline__ bool put_off(const Work &work, const Grid &grid, const Walk &walk, u32 size) {
        const bool late = size > grid.longest;
        const u32 phase = turn.phase;
        // All warps have a shared walk: the first one notes it.
        if (late && (phase == OWN || threadIdx.x < 32)) note(work, grid, turn, walk, size);
        if (threadIdx.x % 32 == 0 && (phase == OWN || threadIdx.x == 0)) {
            u32 looked = turn.looked + 1;
            if (next >= items[phase]) { // this was the last one
                __threadfence();
                atomicAdd(counters + LOOKED, looked);
                looked = 0;
            }
            turn.looked = looked;
        }
        return late;
    }

  private:
    // The number of what is next of that which was noted, or ALL. Static, so that what a queue knows need not lie in memory.
    static __device__ __noinline__ u32 take_late(u32 *counters, u32 all) {
        // All items have been taken, and are looked at as soon as they are.
        while (*static_cast<volatile u32 *>(counters + LOOKED) < all) __nanosleep(100);
        __threadfence();
        const u32 noted = __ldcg(counters + NOTED);
        if (noted == 0) return ALL;
        const u32 number = atomicAdd(counters + NEXT_LATE, 1);
        return number < noted ? number : ALL;
    }
    // By a warp.
    static __device__ __noinline__ void note(const Work &work, const Grid &grid, const Turn &turn, const Walk &walk, u32 size) {
        const u32 lane = threadIdx.x % 32, item = turn.number | turn.phase << Part::SHARED_AT;
        const bool is_cut = size > LONG * work.part;
        const PartsOfRows parts = is_cut ? PartsOfRows(work, grid, turn.item, walk) : PartsOfRows();
        u32 at = 0, first = 0;
        if (lane == 0) {
            at = atomicAdd(work.counters + NOTED, is_cut ? parts.all : 1);
            if (is_cut) {
                first = atomicAdd(work.counters + PARTS, parts.all);
                __stcg(work.arrivals + first, 0);
            } else {
                __stcg(reinterpret_cast<uint4 *>(work.late + at), make_uint4(item, 0, 0, 0));
            }
        }
        at = __shfl_sync(ALL, at, 0);
        first = __shfl_sync(ALL, first, 0);
        for (u32 row = 0; is_cut && row <= static_cast<u32>(walk.rows); row++) {
            const u32 before = parts.before(row), of_row = parts.before(row + 1) - before;
            for (u32 i = lane; i < of_row; i += 32) {
                auto *const words = reinterpret_cast<uint4 *>(work.late + at + before + i);
                __stcg(words, make_uint4(item, first, parts.all, before + i));
                __stcg(words + 1, make_uint4(row, i, 0, 0));
            }
        }
        __threadfence();
        __syncwarp();
    }
};

// To be told when a block has the sums of a part in memory: returns whether all of its walk's are.
static __device__ __forceinline__ bool arrive(const Work &work, const Part &part) {
    __shared__ u32 arrived;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(work.arrivals + part.first, 1) + 1;
    __syncthreads();
    const bool is_last = arrived == part.count;
    if (is_last) __threadfence();
    return is_last;
}

// The sums of a row of a cut walk, which are N of each lane's numbers: of the lower pixels of the cell row above it, and of the upper
// ones of the cell row below. `place`: where the sums of a part have them.
template <int N, class Place>
static __device__ __forceinline__ void add_up(const Work &work, const Part &part, const PartsOfRows &parts, u32 row, Real (&totals)[N],
                                              const Place &place) {
#pragma unroll
    for (int i = 0; i < N; i++) totals[i] = 0;
    for (u32 half = 0; half < 2; half++) {
        const u32 before = parts.before(row + half), of_row = parts.before(row + half + 1) - before;
        const Real *from = static_cast<const Real *>(work.sums) + static_cast<u64>(part.first + before) * Part::SUMS +
                           (half ? 0 : Part::SUMS / 2);
#pragma unroll 4
        for (u32 i = 0; i < of_row; i++, from += Part::SUMS) {
#pragma unroll
            for (int j = 0; j < N; j++) totals[j] += __ldcg(from + place(j));
        }
    }
}

// 1 on a pixel, falling to 0 on the next.
static __device__ __forceinline__ float hat(float apart) { return __saturatef(1.0f - fabsf(apart)); }
static __device__ __forceinline__ double hat(double apart) { return fmax(1.0 - fabs(apart), 0.0); }

// The sums of a run's pixels in two rows, of the lane's channel.
struct RowSums {
    Real upper[RUN], lower[RUN];
};

// Adds samples `begin` to `end` of a cell row, as it is defined: only samples whose cells touch a pixel add to it, be their numbers
// what they may. `column`: the lane's channel of grad_out; `places`: see `Pieces`.
static __device__ __forceinline__ void add_exactly(const Work &work, const List &list, u32 begin, u32 end, const Value::Storage *column,
                                                   i64 by_query, int x0, u32 places, RowSums &sums) {
    const u32 lane = threadIdx.x % 32;
    u32 passed = 0; // samples of the chunks before
    for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
        const Pieces pieces(work, list, chunk, list.piece(work, chunk), places, lane);
        const u32 until = min(pieces.size, end - min(end, passed));
        for (u32 first = begin - min(begin, passed); first < until; first += 32) {
            const Record own = pieces.take(first, until, lane);
            const Real left = whole(own.x), top = whole(own.y), fx = own.x - left, fy = own.y - top;
            // A bit for the cell's place in the run, none beyond the last sample. Were it compared with the places, the compiler
            // would take it for an index, and keep the sums in memory.
            const u32 cell_of_lane = first + lane < until ? 1u << (static_cast<int>(left) - x0 + 1) : 0;
            const Real of_lane[4] = {own.weight * ((1 - fx) * (1 - fy)), own.weight * (fx * (1 - fy)), own.weight * ((1 - fx) * fy),
                                     own.weight * (fx * fy)};
            constexpr u32 AHEAD = 4;
#pragma unroll 1
            for (u32 k = 0; k < min(32u, until - first); k += AHEAD) {
                Real taps[AHEAD];
#pragma unroll
                for (u32 j = 0; j < AHEAD; j++) {
                    taps[j] = Value::widen(*moved(column, steps<Value::Storage>(__shfl_sync(ALL, own.query, k + j), by_query)));
                }
#pragma unroll
                for (u32 j = 0; j < AHEAD; j++) {
                    const u32 cell = __shfl_sync(ALL, cell_of_lane, k + j);
                    Real by[4];
#pragma unroll
                    for (int corner = 0; corner < 4; corner++) by[corner] = __shfl_sync(ALL, of_lane[corner], k + j);
#pragma unroll
                    for (int i = 0; i < RUN; i++) {
                        if (cell >> (i + 1) & 1) {
                            sums.upper[i] = fused(by[0], taps[j], sums.upper[i]);
                            if (!NEAREST) sums.lower[i] = fused(by[2], taps[j], sums.lower[i]);
                        }
                        if (!NEAREST && cell >> i & 1) {
                            sums.upper[i] = fused(by[1], taps[j], sums.upper[i]);
                            sums.lower[i] = fused(by[3], taps[j], sums.lower[i]);
                        }
                    }
                }
            }
        }
        passed += pieces.size;
    }
}

// All that is left, beginning with what the warp has been given, as it is defined. Whoever meets sums that are not finite ends here:
// samples of weight zero may have made them so. `room`: in shared memory, of each warp RUN_WARPS times 2 * RUN * 32 numbers; `place`:
// where the sums of a part have a pixel's of the lane's channel.
template <class Place>
static __device__ __forceinline__ void sum_exactly(const Arguments &a, const Gradients &g, const Work &work, const Grid *grids, Queue &queue,
                                                   u32 places, Real *room, const Place &place) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Queue::Turn &turn = queue.turn;
    queue.is_exact = true;
    bool is_known = true; // how many samples it has
    do {
        const Item &item = turn.item;
        const Grid &grid = grids[item.level];
        const Walk walk(grid, item);
        if (!is_known && turn.phase != Queue::PUT_OFF && queue.put_off(work, grid, walk, measure(work, grid, item, walk))) continue;
        is_known = false;
        const u32 plane = work.first_plane + item.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
        const int channel = item.channel + lane, x0 = walk.run * RUN;
        const bool alive = channel < a.channels;
        const auto *const column = static_cast<const Value::Storage *>(g.grad_out) + n * g.grad_out_strides[0] +
                                   (m * a.channels + (alive ? channel : 0)) * g.grad_out_strides[2];
        auto *const values = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] + m * g.value_strides[2] +
                             channel * g.value_strides[3] + (grid.start + x0) * g.value_strides[1];
        const auto store_row = [&](int y, const Real (&totals)[RUN]) {
            auto *to = values + static_cast<i64>(y) * grid.width * g.value_strides[1];
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                if (alive && i < grid.width - x0) *to = Value::round(totals[i]);
                to += g.value_strides[1];
            }
        };
        const bool together = queue.together(), is_part = turn.is_part();
        const u32 share = work.part / RUN_WARPS;
        const u32 begin = is_part ? turn.begin + warp * share : 0, end = is_part ? begin + share : ALL;
        const int first = walk.y + (is_part ? turn.first_row() : together ? warp : 0), rows = is_part ? 0 : together ? 1 : walk.rows;
        RowSums sums = {};
#pragma unroll 1
        for (int y = first, cell_row = first; y < walk.y + walk.rows || is_part;) {
            add_exactly(work, List(work, grid, item, walk.run, cell_row), begin, end, column, g.grad_out_strides[1], x0, places, sums);
            if (is_part) break;
            if (cell_row > y) store_row(cell_row - 1, sums.upper);
            const bool is_last = cell_row == y + rows;
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                sums.upper[i] = is_last ? Real(0) : sums.lower[i];
                sums.lower[i] = 0;
            }
            if (is_last) y += together ? RUN_WARPS : rows;
            cell_row = is_last ? y : cell_row + 1;
        }
        __syncwarp();
        if (!is_part) continue;
        Real *const own = room + (warp * 2 * RUN) * 32 + lane;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            own[i * 32] = sums.upper[i];
            own[(RUN + i) * 32] = sums.lower[i];
        }
        __syncthreads();
        for (u32 x = warp; x < 2 * RUN; x += RUN_WARPS) {
            Real total = room[x * 32 + lane];
            for (u32 w = 1; w < RUN_WARPS; w++) total += room[(w * 2 * RUN + x) * 32 + lane];
            __stcg(turn.part.sums(work) + x / RUN * (Part::SUMS / 2) + place(x % RUN), total);
        }
        if (!arrive(work, turn.part)) continue;
        const PartsOfRows parts(work, grid, item, walk);
        for (int row = warp; row < walk.rows; row += RUN_WARPS) {
            Real totals[RUN];
            add_up(work, turn.part, parts, row, totals, place);
            store_row(walk.y + row, totals);
        }
    } while (queue.take(a, work, grids));
}
