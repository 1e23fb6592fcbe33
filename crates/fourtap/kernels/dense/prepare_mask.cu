// A tensor that hides keys or is added to logits, brought into the form that the other kernels read (mask.cuh).
//
// It may have any strides, of 0 where it is the same for all: then there is one of that axis here, too, but of keys. One
// pass over it, limited by memory where it is large; most are small.
//
// ATTN, BIAS_TYPE, BLOCK_M, BLOCK_N as there.

struct MaskArguments {
    const void *from;
    char *to;
    unsigned char *states;    // BITS: of each tile, see mask.cuh
    i64 strides[4];           // of sequence, head, query, key, in elements
    u32 heads, rows, keys;    // that there are; 1 where all are alike, but of keys
    u32 row_units, key_units; // tiles of BITS; of BIAS blocks of 16, and strips of them
    u64 units;                // all of them
    u32 row_bytes;            // of BITS
    u32 key_blocks;           // of BIAS
};

#if ATTN == BITS
constexpr u32 THREADS = 256, ROW = BLOCK_N / 16, EACH = (BLOCK_M * ROW + THREADS - 1) / THREADS;

// One bit for each of 16 bytes.
static __device__ __forceinline__ u32 pack(const u32 (&words)[4]) {
    u32 bits = 0;
#pragma unroll
    for (u32 w = 0; w < 4; w++) {
        // Any bit of a byte sets its lowest; these side by side.
        u32 x = words[w];
        x |= x >> 4;
        x |= x >> 2;
        x |= x >> 1;
        bits |= ((x & 0x01010101u) * 0x10204080u >> 28) << 4 * w;
    }
    return bits;
}

// A block makes the bits of a tile, a thread 16 keys of a row at a time.
extern "C" __global__ void __launch_bounds__(THREADS) dense_prepare_mask(const __grid_constant__ MaskArguments m) {
    if (blockIdx.x >= m.units) return;
    const u32 row_index = blockIdx.x / m.key_units, key_tile = blockIdx.x - row_index * m.key_units;
    const u32 plane = row_index / m.row_units, first = (row_index - plane * m.row_units) * BLOCK_M;
    const u32 b = plane / m.heads, h = plane - b * m.heads;
    const char *const from = static_cast<const char *>(m.from) + b * m.strides[0] + h * m.strides[1];
    // Whole tiles of rows, unless one is for all.
    const u32 rows = m.rows == 1 ? 1 : m.row_units * BLOCK_M;
    char *const to = m.to + static_cast<u64>(plane) * rows * m.row_bytes;
    const u64 unaligned = reinterpret_cast<u64>(m.from) | m.strides[0] | m.strides[1] | m.strides[2];
    const u32 at_once = m.strides[3] != 1 ? 1 : unaligned % 16 == 0 ? 16 : unaligned % 4 == 0 ? 4 : 1;

    u32 bytes[EACH][4];
#pragma unroll
    for (u32 n = 0; n < EACH; n++) {
        const u32 unit = threadIdx.x + n * THREADS, row = first + unit / ROW, key = key_tile * BLOCK_N + unit % ROW * 16;
        const char *const at = from + row * m.strides[2] + key * m.strides[3];
#pragma unroll
        for (u32 w = 0; w < 4; w++) bytes[n][w] = 0;
        if (unit >= BLOCK_M * ROW || row >= m.rows || key >= m.keys) continue;
        if (at_once == 16 && key + 16 <= m.keys) {
            Once<16>::load(bytes[n], at);
        } else if (at_once == 4 && key + 16 <= m.keys) {
#pragma unroll
            for (u32 w = 0; w < 4; w++) Once<4>::load(&bytes[n][w], at + 4 * w);
        } else {
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                if (key + i < m.keys && at[i * m.strides[3]]) bytes[n][i / 4] |= 1u << 8 * (i % 4);
            }
        }
    }
    bool any = false, all = true;
#pragma unroll
    for (u32 n = 0; n < EACH; n++) {
        const u32 unit = threadIdx.x + n * THREADS, row = first + unit / ROW, key = key_tile * BLOCK_N + unit % ROW * 16;
        if (unit >= BLOCK_M * ROW || row >= rows) continue;
        const u32 count = row < m.rows && key < m.keys ? min(16u, m.keys - key) : 0, bits = pack(bytes[n]);
        *reinterpret_cast<u16 *>(to + row * static_cast<u64>(m.row_bytes) + key / 8) = bits;
        any |= bits != 0;
        all &= bits == (1u << count) - 1;
    }
    any = __syncthreads_or(any);
    all = __syncthreads_and(all);
    if (threadIdx.x == 0) m.states[blockIdx.x] = all ? ALL_SEEN : any ? SOME_SEEN : NONE_SEEN;
}
#else
// A warp makes blocks of 16 queries by 16 keys, STRIP of them next to each other: of each two 8 x 8 tiles a lane has (g, 2 t) and
// (g + 8, 2 t), and the next key.
constexpr u32 STRIP = 4;
typedef Element<BIAS_TYPE> Number;
typedef Number::Storage Storage;

// Two keys of a row.
struct __align__(2 * sizeof(Storage)) Pair {
    Storage first, second;
};
static __device__ __forceinline__ float prepare(float bias) {
    if (is_most(bias)) bias = copysignf(MOST_BIAS, bias);
    return __fmul_rn(bias, LOG2_E);
}

extern "C" __global__ void __launch_bounds__(256) dense_prepare_mask(const __grid_constant__ MaskArguments m) {
    const u64 index = static_cast<u64>(blockIdx.x) * 8 + threadIdx.x / 32;
    if (index >= m.units) return;
    const u32 lane = threadIdx.x % 32;
    const u64 row_index = index / m.key_units;
    const u32 first_block = static_cast<u32>(index - row_index * m.key_units) * STRIP, blocks = min(STRIP, m.key_blocks - first_block);
    const u64 plane = row_index / m.row_units;
    const u32 b = plane / m.heads, h = plane - static_cast<u64>(b) * m.heads;
    const u32 row = 16 * static_cast<u32>(row_index - plane * m.row_units) + lane / 4, key = 16 * first_block + 2 * (lane % 4);
    // Those after the last are never seen; rows that are alike are all the first.
    const bool is_there[2] = {m.rows == 1 || row < m.rows, m.rows == 1 || row + 8 < m.rows};
    const u32 rows[2] = {m.rows == 1 ? 0 : row, m.rows == 1 ? 0 : row + 8};
    const Storage *const from = static_cast<const Storage *>(m.from) + b * m.strides[0] + h * m.strides[1];
    const u64 unaligned = reinterpret_cast<u64>(from) / sizeof(Storage) | m.strides[2];
    const bool in_pairs = m.strides[3] == 1 && unaligned % 2 == 0 && key + 16 * STRIP - 6 <= m.keys;

    Storage biases[STRIP][2][2][2] = {}; // of block, tile, row, key
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        if (!is_there[half]) continue;
        const Storage *const of_row = from + rows[half] * m.strides[2] + key * m.strides[3];
#pragma unroll
        for (u32 tile = 0; tile < 2 * STRIP; tile++) {
            Storage(&two)[2] = biases[tile / 2][tile % 2][half];
            if (in_pairs) {
                const Pair pair = *reinterpret_cast<const Pair *>(of_row + 8 * tile);
                two[0] = pair.first;
                two[1] = pair.second;
            } else {
                if (key + 8 * tile < m.keys) two[0] = of_row[8 * tile * m.strides[3]];
                if (key + 8 * tile + 1 < m.keys) two[1] = of_row[(8 * tile + 1) * m.strides[3]];
            }
        }
    }
    float4 *const to = reinterpret_cast<float4 *>(m.to) + (row_index * m.key_blocks + first_block) * 64 + lane * 2;
#pragma unroll
    for (u32 tile = 0; tile < 2 * STRIP; tile++) {
        const Storage(&four)[2][2] = biases[tile / 2][tile % 2];
        float ready[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) ready[i] = prepare(static_cast<float>(Number::widen(four[i / 2][i % 2])));
        if (tile / 2 < blocks) to[tile / 2 * 64 + tile % 2] = make_float4(ready[0], ready[1], ready[2], ready[3]);
    }
}
#endif
