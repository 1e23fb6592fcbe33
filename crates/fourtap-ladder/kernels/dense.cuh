// What every rung of dense attention is given, and what several would otherwise write again.
//
// Specialised by HEAD (channels: 32, 64 or 128), VALUE (F16 or BF16) and CAUSAL (query i sees keys 0 to i only, else all); a
// rung adds its own parameters. Tensors are row-major and finite, and there is at least one query and one key, so that
// every query sees key 0. Logits are kept in powers of two: `scale` has log2(e) in it.

constexpr u32 ALL = 0xffffffffu;
constexpr int PAIRS = HEAD / 2; // words of a row

// Mirrored in src/ladder/dense/arguments.rs. A plane is one head of one sequence; planes * queries < 2^31.
struct Problem {
    const u16 *query; // [planes, queries, HEAD]
    const u16 *key;   // [planes, keys, HEAD]
    const u16 *value; // [planes, keys, HEAD]
    u16 *out;         // [planes, queries, HEAD]
    char *scratch;    // as much as the plan asks for, 256-byte aligned
    u32 planes;
    int queries, keys;
    float scale;
};

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// Keys that a query sees: those before this one.
__device__ __forceinline__ int keys_seen(const Problem &p, int query) { return CAUSAL ? min(p.keys, query + 1) : p.keys; }

// The rows of a plane.
__device__ __forceinline__ const u16 *plane_of(const u16 *tensor, u32 plane, int rows) {
    return tensor + static_cast<u64>(plane) * rows * HEAD;
}

// The queries of a block: SIZE of one plane. Under a causal mask the last are the longest, so they come first.
template <int SIZE> struct Block {
    u32 plane;
    int first; // query
    int keys;  // that some query of the block sees
    __device__ __forceinline__ Block(const Problem &p, u32 number) {
        const u32 tiles = (p.queries + SIZE - 1) / SIZE;
        plane = number / tiles;
        first = (tiles - 1 - number % tiles) * SIZE;
        keys = keys_seen(p, min(first + SIZE, p.queries) - 1);
    }
};

// Over all lanes of a warp.
__device__ __forceinline__ float highest_of_warp(float x) {
    for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, other));
    return x;
}
__device__ __forceinline__ float sum_of_warp(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(ALL, x, other);
    return x;
}

// SIZE rows of a plane from row `first` on into shared memory, PITCH numbers apart, by all threads; those past `rows` are zero.
template <int SIZE, int PITCH, int THREADS>
__device__ __forceinline__ void fetch_rows(u16 *target, const u16 *plane, int first, int rows) {
    constexpr int PIECES = HEAD / 8;
    for (int i = threadIdx.x; i < SIZE * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        Words words = {0, 0, 0, 0};
        if (first + row < rows) {
            words = load(reinterpret_cast<const char *>(plane + static_cast<u64>(first + row) * HEAD + 8 * piece));
        }
        u16 *to = target + row * PITCH + 8 * piece;
        if (PITCH % 8 == 0) {
            *reinterpret_cast<Words *>(to) = words;
        } else {
            u32 *pairs = reinterpret_cast<u32 *>(to);
            pairs[0] = words.x, pairs[1] = words.y, pairs[2] = words.z, pairs[3] = words.w;
        }
    }
}

__device__ __forceinline__ u32 pair_at(const u16 *address) { return *reinterpret_cast<const u32 *>(address); }

// Two channels of a result.
__device__ __forceinline__ void store_pair(const Problem &p, u32 plane, int query, int pair, float low, float high) {
    u16 *row = p.out + (static_cast<u64>(plane) * p.queries + query) * HEAD;
    *reinterpret_cast<u32 *>(row + 2 * pair) = rounded(low, high);
}
