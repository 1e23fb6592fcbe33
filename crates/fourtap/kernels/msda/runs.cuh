// Summing grad_value run by run, from sorted samples. See bins.cuh.
//
// A warp walks down some rows of a run. The samples of a cell row belong to two rows of pixels: to the one above, whose sums
// are complete with them, and to the one below, whose sums they begin. So only those of the first and last cell row of a
// walk are met twice.

typedef Element<VALUE> Value;

// NEAREST: whether samples touch one pixel only, which is where they lie.

constexpr u32 RUN_WARPS = 4; // of a block that sums
constexpr u32 BLOCK = 32;    // channels a warp sums at a time
constexpr u32 MOST_ROWS = 8; // of a walk: the more, the fewer samples are met twice
constexpr u32 SPARSE = 64;   // samples of a walk up to which its rows can be summed from one list
constexpr u32 DENSE = 64;    // samples of a run's cell row from which on warps may share a walk
constexpr u32 ROW = 16;      // what a row of a run costs besides its samples, in samples
// Walks are cut so that the longest cost no more than three quarters of what each of so many warps has to do. Not of what
// this device has: results shall not depend on it.
constexpr u32 WORKERS = 4096;
constexpr u32 ANY_LENGTH = 0xffffffffu;

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
    const bool can_be_cut = !shared || rows > 1;
    grid.longest = can_be_cut ? static_cast<u32>(min(u64(ANY_LENGTH - 1), 2 * cost * (rows + 1))) : ANY_LENGTH;
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
    u32 row; // the only one of the walk; ALL_ROWS if all

    static constexpr u32 ALL_ROWS = 0xffffffffu;
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
    return {plane, static_cast<u32>(level), channel, walk, Item::ALL_ROWS};
}

// Down some rows of a run.
struct Walk {
    u32 run;
    int y, rows;

    __device__ __forceinline__ Walk(const Grid &grid, const Item &item) {
        const u32 down = grid.runs.divide(item.walk, run);
        y = down * grid.rows;
        rows = min(static_cast<int>(grid.rows), grid.height - y);
        if (item.row != Item::ALL_ROWS) {
            y += item.row;
            rows = static_cast<int>(item.row) < rows ? 1 : 0;
        }
    }
};

// Items one after another, first come, first served: they differ in length. First those that the warps of a block share, then
// those that each warp has for itself, without waiting for the others. The next one's number is asked for while this one is
// worked on.
//
// Where samples crowd, few walks have most of them. Such walks are noted for later: when all items have been looked at,
// their rows are dealt out one by one, each to all warps of a block.
struct Queue {
    enum Phase { OWN, SHARED, ROWS };
    // A warp's, in shared memory: registers are scarce.
    struct Turn {
        Item item;
        u32 phase;
        u32 number; // of the item
        u32 looked; // at how many items, until the others are told
    };

    u32 *counters;    // the next item of each of two kinds; items looked at; walks noted; the next row of those
    const u32 *items; // how many there are of each kind, see `deal_out`
    Turn &turn;
    u32 next; // number; only a warp's first lane knows it, of shared items only the first thread

    __device__ __forceinline__ Queue(const Work &work, const u32 (&items)[2], Turn &turn)
        : counters(work.counters), items(items), turn(turn), next(0) {
        if (threadIdx.x % 32 == 0) {
            turn.phase = SHARED;
            turn.looked = 0;
        }
        if (threadIdx.x == 0) next = atomicAdd(counters + SHARED, 1);
        __syncwarp();
    }
    // Whether all warps of the block have the same item.
    __device__ __forceinline__ bool together() const { return turn.phase != OWN; }
    // The warp's next item, or false if there is none left. All threads call it; where they have an item together, warps wait
    // for each other.
    __device__ __forceinline__ bool take(const Arguments &a, const Work &work, const Grid *grids) {
        __shared__ u32 given;
        __shared__ Item row;
        u32 phase = turn.phase, number = 0;
        if (phase == SHARED) {
            __syncthreads();
            if (threadIdx.x == 0) given = next;
            __syncthreads();
            number = given;
            if (number >= items[SHARED]) {
                phase = OWN;
                if (threadIdx.x % 32 == 0) next = atomicAdd(counters + OWN, 1);
            }
        }
        if (phase == OWN) {
            number = __shfl_sync(ALL, next, 0);
            if (number >= items[OWN]) phase = ROWS;
        }
        Item item;
        if (phase == ROWS) {
            __syncthreads();
            if (threadIdx.x == 0) given = take_row(a, work, grids, items[OWN] + items[SHARED], row);
            __syncthreads();
            if (!given) return false;
            item = row;
        } else {
            if (threadIdx.x % 32 == 0 && (phase == OWN || threadIdx.x == 0)) next = atomicAdd(counters + phase, 1);
            item = item_of(number, phase, a, work, grids);
        }
        __syncwarp(); // nobody still reads the last one
        if (threadIdx.x % 32 == 0) {
            turn.item = item;
            turn.phase = phase;
            turn.number = number;
        }
        __syncwarp();
        return true;
    }
    // Once it is known how many samples the walk has: notes it for later if they are too many, and returns whether.
    __device__ __forceinline__ bool put_off(const Work &work, const Grid &grid, u32 size) {
        const bool late = size > grid.longest;
        const u32 phase = turn.phase;
        if (threadIdx.x % 32 == 0 && (phase == OWN || threadIdx.x == 0)) {
            if (late) __stcg(work.later + atomicAdd(counters + 3, 1), make_uint2(turn.number, phase));
            u32 looked = turn.looked + 1;
            if (next >= items[phase]) { // this was the last one
                __threadfence();
                atomicAdd(counters + 2, looked);
                looked = 0;
            }
            turn.looked = looked;
        }
        return late;
    }

  private:
    // After `all` items. Static, so that what a queue knows need not lie in memory.
    static __device__ __noinline__ bool take_row(const Arguments &a, const Work &work, const Grid *grids, u32 all, Item &item) {
        u32 *const counters = work.counters;
        // All have been taken, and are looked at as soon as they are.
        while (*static_cast<volatile u32 *>(counters + 2) < all) __nanosleep(100);
        __threadfence();
        const u32 noted = __ldcg(counters + 3);
        for (;;) {
            if (noted == 0) return false;
            const u32 row = atomicAdd(counters + 4, 1);
            if (row / MOST_ROWS >= noted) return false;
            const uint2 walk = __ldcg(work.later + row / MOST_ROWS);
            item = item_of(walk.x, walk.y, a, work, grids);
            item.row = row % MOST_ROWS;
            if (Walk(grids[item.level], item).rows > 0) return true;
        }
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
    // A lane each, from `first` on. One that adds nothing if there are not so many.
    __device__ __forceinline__ Record take(u32 first, u32 lane) const {
        // The pieces that begin before the first one, and where others do.
        const u32 passed = __popc(__ballot_sync(ALL, before < first)), after = before - first;
        const u32 begins = __reduce_or_sync(ALL, after < 32 ? 1u << after : 0);
        const u32 number = passed + __popc(begins & (ALL >> (31 - lane))), index = first + lane;
        if (index >= size) return {0, 0, 0, 0};
        return load_once(sorted + (load_shared_word(places + 4 * number - 4) + index));
    }
};

// How many samples a walk has.
static __device__ __forceinline__ u32 measure(const Work &work, const Grid &grid, const Item &item, const Walk &walk) {
    u32 size = 0;
    for (u32 piece = threadIdx.x % 32; piece < (walk.rows + 1) * work.chunks; piece += 32) {
        const u32 down = work.by_chunks.divide(piece);
        size += List(work, grid, item, walk.run, walk.y + down).piece(work, piece - down * work.chunks).y;
    }
    return __reduce_add_sync(ALL, size);
}

// 1 on a pixel, falling to 0 on the next.
static __device__ __forceinline__ float hat(float apart) { return __saturatef(1.0f - fabsf(apart)); }
static __device__ __forceinline__ double hat(double apart) { return fmax(1.0 - fabs(apart), 0.0); }

// The gradient of pixel (x, y) and one channel as it is defined: only samples whose cells touch the pixel take part, be
// their numbers what they may. `grad_out` is that of the plane's first query and this channel.
static __device__ __forceinline__ Real careful(const Work &work, const Grid &grid, const Item &item,
                                               const Value::Storage *grad_out, i64 by_query, int x, int y) {
    Real sum = 0;
    for (int cell_row = y; cell_row <= y + 1; cell_row++) {
        const List list(work, grid, item, x / RUN, cell_row);
        for (u32 chunk = 0; chunk < work.chunks; chunk++) {
            const uint2 piece = list.piece(work, chunk);
            for (u32 i = 0; i < piece.y; i++) {
                const Record sample = list.sorted[chunk * work.chunk + piece.x + i];
                const Real left = whole(sample.x), top = whole(sample.y), fx = sample.x - left, fy = sample.y - top;
                const int right = x - static_cast<int>(left), down = y - static_cast<int>(top);
                if ((right != 0 && right != 1) || (down != 0 && down != 1) || (NEAREST && (right || down))) continue;
                const Real by = (right ? fx : 1 - fx) * (down ? fy : 1 - fy);
                const auto *const grad = moved(grad_out, steps<Value::Storage>(sample.query, by_query));
                sum = fused(sample.weight * by, Real(Value::widen(*grad)), sum);
            }
        }
    }
    return sum;
}
