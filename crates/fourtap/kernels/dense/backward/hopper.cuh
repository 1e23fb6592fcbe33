// Gradients on Hopper: what a block is given, who brings it tiles, and who adds up its share of grad_query.
//
// A block owns BLOCK_M keys of a head and walks all queries that see them, in tiles of BLOCK_N, of each head that shares the keys:
// of each tile it computes logits and their gradients once, from which it adds to grad_key and grad_value, which stay in registers,
// and to grad_query, which lies in scratch, in f32, and to which other blocks add too: always in the same order, of which a counter
// for each tile keeps track. A block waits only for blocks that have started before it, so that it always ends.
//
// SUM_QUERY: whether grad_query is wanted; STORE_FIRST: whether the first to add to a tile of it finds no zeros there; DIRECT: see
// shares.cuh.
//
// GROUPS groups of four warps compute. Of another group a warp brings tiles, by TMA, and one for each group adds sums to memory.

constexpr u32 GROUPS = 2, GROUP_THREADS = 128, STAGES = 2, SPAN = 64;
constexpr u32 KEY_BYTES_OF_BLOCK = BLOCK_M * 2 * HEAD, QUERY_TILE_BYTES = BLOCK_N * 2 * HEAD;
// A group's share of a tile of grad_query: half of the channels. See shares.cuh.
constexpr u32 SHARE = HEAD / GROUPS, SHARE_BYTES = BLOCK_N * SHARE * 4, SHARE_STAGES = 2;
// Shared memory: keys and values; stages of queries, and of grad_out; gradients of logits; shares of grad_query; what is known of queries.
constexpr u32 VALUES_OF_BLOCK = KEY_BYTES_OF_BLOCK, QUERIES_AT = 2 * KEY_BYTES_OF_BLOCK, GRADS_AT = QUERIES_AT + STAGES * QUERY_TILE_BYTES;
constexpr u32 LOGIT_GRADS_AT = GRADS_AT + STAGES * QUERY_TILE_BYTES, SHARES_AT = LOGIT_GRADS_AT + STAGES * LOGIT_GRAD_BYTES;
constexpr u32 STATISTICS_AT = SHARES_AT + (SUM_QUERY && !DIRECT ? SHARE_STAGES * GROUPS * SHARE_BYTES : 0), STATISTICS_BYTES = BLOCK_N * 8;
constexpr u32 BARRIERS_AT = STATISTICS_AT + STAGES * STATISTICS_BYTES;
static_assert(BLOCK_N == 64 && HEAD == HEAD_V, "as TMA exchanges pieces");
static_assert(STATISTICS_BYTES == 32 * sizeof(Vector), "each lane of a warp brings as much");

struct HopperArguments {
    GradientArguments of; // rows are keys
    float *grad_query;    // [planes, tiles, GROUPS] of shares as they lie in registers
    u32 *counters;        // the number of the next block; then, of [planes, tiles, GROUPS], how many blocks have added to each
    u32 tiles, key_tiles; // of queries and keys of a head
    u32 together;         // heads of keys whose blocks come in turns
};
struct Maps {
    TensorMap key, value, query, grad;
};

// A block's keys and tiles.
struct Part {
    u32 b, head, index; // of the tile of keys
    int first_key, first_tile, count;

    // The number-th to start. Heads that are together are computed at the same time, tile by tile of keys, so that few blocks want to
    // add to the same tile. With bounds the last keys come first: of causal ones their first queries are nobody else's any more.
    __device__ __forceinline__ Part(const HopperArguments &h, u32 number) {
        const Arguments &a = h.of.of;
        const u32 planes = gridDim.x / h.key_tiles, each = h.together * h.key_tiles, set = number / each, rest = number - set * each;
        const u32 size = min(h.together, planes - set * h.together), plane = set * h.together + rest % size;
        index = MASK ? h.key_tiles - 1 - rest / size : rest / size;
        b = plane / h.of.row_heads;
        head = plane - b * h.of.row_heads;
        first_key = index * BLOCK_M;
        const Work work(a, 0, first_key, BLOCK_M, 0);
        first_tile = work.first_tile;
        count = work.count;
    }
    // How many blocks add to a tile of queries before this one.
    __device__ __forceinline__ u32 rank(const HopperArguments &h, int tile) const {
        if (!MASK) return index;
        // Bounds are those of keys: the last query of the tile sees keys before `past`.
        const Arguments &a = h.of.of;
        const int last = min((tile + 1) * static_cast<int>(BLOCK_N), a.keys) - 1, past = last + 1 - a.first;
        return min(static_cast<int>(h.key_tiles) - 1, (past - 1) / static_cast<int>(BLOCK_M)) - index;
    }
    __device__ __forceinline__ u32 query_head(const Arguments &a, u32 n) const { return head * a.group + n; }
};

struct Barriers {
    u32 at;
    __device__ __forceinline__ u32 keys() const { return at; }
    __device__ __forceinline__ u32 queries_there(u32 stage) const { return at + 8 * (1 + stage); }
    __device__ __forceinline__ u32 queries_free(u32 stage) const { return at + 8 * (3 + stage); }
    __device__ __forceinline__ u32 grads_there(u32 stage) const { return at + 8 * (5 + stage); }
    __device__ __forceinline__ u32 grads_free(u32 stage) const { return at + 8 * (7 + stage); }
    __device__ __forceinline__ u32 share_there(u32 group, u32 stage) const { return at + 8 * (9 + 2 * stage + group); }
    __device__ __forceinline__ u32 share_free(u32 group, u32 stage) const { return at + 8 * (13 + 2 * stage + group); }
    // Where the block's number is.
    __device__ __forceinline__ u32 number() const { return at + 8 * 17; }
    // By one thread.
    __device__ __forceinline__ void init() const {
        init_barrier(keys(), 1);
        for (u32 i = 0; i < 2; i++) {
            init_barrier(queries_there(i), 32);
            init_barrier(grads_there(i), 1);
            init_barrier(queries_free(i), GROUP_THREADS * GROUPS);
            init_barrier(grads_free(i), 4 * GROUPS);
            for (u32 stage = 0; stage < 2; stage++) {
                init_barrier(share_there(i, stage), 4);
                init_barrier(share_free(i, stage), 1);
            }
        }
        publish_barriers();
    }
};
template <u32 COUNT> struct Stage {
    u32 index = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        parity ^= COUNT == 1 || index == 1;
        index = COUNT == 1 ? 0 : index ^ 1;
    }
};

// Every tile may have hidden queries: which have none would have to be known to the blocks that wait for this one, too.
static __device__ __forceinline__ Walk some_hidden(int j) {
#if ATTN == BITS
    return {nullptr, 0, j, 0, 1};
#else
    return {};
#endif
}

// A warp: all tiles of a block.
static __device__ __forceinline__ void bring_tiles(const HopperArguments &h, const Maps &maps, const Part &part, u32 shared, Barriers barriers, u32 lane) {
    const Arguments &a = h.of.of;
    const auto step = [&](u32 bit, u32 index) { return a.same >> bit & 1 ? 0 : index; };
    if (lane == 0) {
        arrive_expecting(barriers.keys(), 2 * KEY_BYTES_OF_BLOCK);
        for (u32 c = 0; c < HEAD; c += SPAN) {
            copy_box(shared + c * 2 * BLOCK_M, maps.key, barriers.keys(), c, part.first_key, step(1, part.head), step(0, part.b));
            copy_box(shared + VALUES_OF_BLOCK + c * 2 * BLOCK_M, maps.value, barriers.keys(), c, part.first_key, step(7, part.head), step(6, part.b));
        }
    }
    Stage<STAGES> stage;
#pragma unroll 1
    for (u32 n = 0; n < a.group; n++) {
        const u32 head = part.query_head(a, n);
        const char *const statistics = reinterpret_cast<const char *>(statistics_of(h.of, part.b, head)) + sizeof(Vector) * lane;
#pragma unroll 1
        for (int j = 0; j < part.count; j++) {
            const int query = (part.first_tile + j) * static_cast<int>(BLOCK_N);
            const u32 there = barriers.queries_there(stage.index), grads_there = barriers.grads_there(stage.index);
            // By hand, a lane's 16 bytes, on their way while there is no room yet: racecheck does not follow bulk copies of such.
            const Vector of_lane = *reinterpret_cast<const Vector *>(statistics + query * sizeof(float2));
            wait_for_phase(barriers.queries_free(stage.index), stage.parity ^ 1);
            store_shared(shared + STATISTICS_AT + stage.index * STATISTICS_BYTES + sizeof(Vector) * lane, of_lane);
            if (lane == 0) {
                arrive_expecting(there, QUERY_TILE_BYTES);
                for (u32 c = 0; c < HEAD; c += SPAN)
                    copy_box(shared + QUERIES_AT + stage.index * QUERY_TILE_BYTES + c * 2 * BLOCK_N, maps.query, there, c, query, step(3, head), step(2, part.b));
                wait_for_phase(barriers.grads_free(stage.index), stage.parity ^ 1);
                arrive_expecting(grads_there, QUERY_TILE_BYTES);
                for (u32 c = 0; c < HEAD; c += SPAN)
                    copy_box(shared + GRADS_AT + stage.index * QUERY_TILE_BYTES + c * 2 * BLOCK_N, maps.grad, grads_there, c, query, step(5, head), step(4, part.b));
            } else {
                arrive(there);
            }
            stage.advance();
        }
    }
}

// A warp has read a tile of grad_out, by products that all its lanes have waited for.
static __device__ __forceinline__ void release_grads(u32 barrier, u32 lane) {
    if (lane == 0) arrive(barrier);
}
// And one of queries, with what is known of them, which each lane has read by itself: racecheck follows lanes that arrive each, but not
// one of them that arrives for all, even where they have met before.
static __device__ __forceinline__ void release_queries(u32 barrier) { arrive(barrier); }

// Products of which both sides are read transposed: rows of either are what is summed over.
template <int TYPE, int COLUMNS> struct TransposedProduct;
#define TRANSPOSED(TYPE, NAME, N, A, B, C)                                                                                             \
    template <> struct TransposedProduct<TYPE, N> {                                                                                    \
        static __device__ __forceinline__ void of_shared(float (&d)[N / 8][4], u64 a, u64 b, int add) {                                \
            asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " C ", 0;\n\t"                                                      \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST_##N "}, " A ", " B                  \
                         ", add, 1, 1, 1, 1;\n\t}"                                                                                     \
                         : SUMS_##N(d)                                                                                                 \
                         : "l"(a), "l"(b), "r"(add));                                                                                  \
        }                                                                                                                              \
    };
#define TRANSPOSED_BOTH(N, A, B, C) TRANSPOSED(F16, "f16", N, A, B, C) TRANSPOSED(BF16, "bf16", N, A, B, C)
TRANSPOSED_BOTH(32, "%16", "%17", "%18")
TRANSPOSED_BOTH(64, "%32", "%33", "%34")
TRANSPOSED_BOTH(128, "%64", "%65", "%66")

// Numbers of the type, as fragments of a product's left side.
template <u32 TILES> static __device__ __forceinline__ void pack(u32 (&to)[TILES / 2][4], const float (&from)[TILES][4]) {
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        to[k / 2][k % 2 * 2] = Value::round(from[k][0], from[k][1]);
        to[k / 2][k % 2 * 2 + 1] = Value::round(from[k][2], from[k][3]);
    }
}
// Such fragments to shared memory, a row of 128 bytes for each key, pieces exchanged as TMA does it.
template <u32 COUNT> static __device__ __forceinline__ void store_fragments(const u32 (&fragments)[COUNT][4], u32 to, u32 row, u32 first_piece, u32 lane) {
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        const u32 piece = first_piece + k * 2 + lane / 16, at = to + row * 128 + (piece ^ row % 8) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(fragments[k][0]), "r"(fragments[k][1]), "r"(fragments[k][2]),
                     "r"(fragments[k][3])
                     : "memory");
    }
}

// Keys after the last one, which TMA brings as zeros, are seen by no query. A logit of 0 would be a weight that is infinite where all
// keys of a query have the lowest bias there is; grad_query, which is a sum over all of a block's keys, would be NaN, and be computed
// once more. `key`: the warp's first.
template <u32 TILES> static __device__ __forceinline__ void hide_keys_after_last(const Arguments &a, float (&logits)[TILES][4], int key, u32 lane) {
    if (key + 16 <= a.queries) return;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (key + static_cast<int>(lane / 4 + i / 2 * 8) < a.queries) continue;
#pragma unroll
        for (u32 k = 0; k < TILES; k++) logits[k][i] = minus_infinity();
    }
}
// Logits become weights, by what is known of the lane's queries at `at`.
template <u32 TILES> static __device__ __forceinline__ void weigh(float (&logits)[TILES][4], float scale, u32 at) {
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        const Vector two = load_shared(at + k * 64);
        const float lse[2] = {__uint_as_float(two.x), __uint_as_float(two.z)};
#pragma unroll
        for (u32 i = 0; i < 4; i++) logits[k][i] = power_of_two(__fmaf_rn(logits[k][i], scale, -lse[i % 2]));
    }
}
// Gradients of weights become those of logits.
template <u32 TILES> static __device__ __forceinline__ void differentiate(float (&grads)[TILES][4], const float (&weights)[TILES][4], u32 at) {
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        const Vector two = load_shared(at + k * 64);
        const float delta[2] = {__uint_as_float(two.y), __uint_as_float(two.w)};
#pragma unroll
        for (u32 i = 0; i < 4; i++) grads[k][i] = weights[k][i] * (grads[k][i] - delta[i % 2]);
    }
}

// A warp's 16 rows of a gradient to memory, from channel `first` on. Returns which of the lane's two rows are no numbers.
template <u32 TILES>
static __device__ __forceinline__ u32 store_sums(const float (&sums)[TILES][4], void *to, const i64 (&strides)[4], const Part &part, int row, int rows, u32 first,
                                                 u32 channels, float factor, u32 lane) {
    u32 unsound = 0;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const int i = row + static_cast<int>(8 * half);
        Value::Storage *const of_row = static_cast<Value::Storage *>(to) + part.b * strides[0] + part.head * strides[1] + i * strides[2];
#pragma unroll
        for (u32 c = 0; c < TILES; c++) {
            const float left = sums[c][2 * half] * factor, right = sums[c][2 * half + 1] * factor;
            if (!is_finite(left) || !is_finite(right)) unsound |= 1u << half;
            const u32 channel = first + 8 * c + 2 * (lane % 4);
            if (to == nullptr || i >= rows) continue;
            const u32 pair = Value::round(left, right);
            if (channel + 1 < channels) {
                *reinterpret_cast<u32 *>(of_row + channel) = pair;
            } else if (channel < channels) {
                of_row[channel] = static_cast<u16>(pair);
            }
        }
    }
    return unsound;
}

// The rows of a warp that are no numbers, once more.
static __device__ __forceinline__ void mend(const GradientArguments &g, const Part &part, int warp_row, u32 unsound, u32 lane) {
    if (!__any_sync(ALL, unsound != 0)) return;
    Owner owner(g, 0);
    owner.b = part.b;
    owner.head = part.head;
    __syncwarp(); // these rows were stored by other lanes
#pragma unroll 1
    for (u32 row = 0; row < 16; row++) {
        const bool mine = lane / 4 == row % 8 && (unsound >> row / 8 & 1);
        const int i = warp_row + static_cast<int>(row);
        if (__any_sync(ALL, mine) && i < g.of.queries) compute_carefully(g, owner, i, lane);
    }
}
