// grad_query, which blocks on Hopper have added up in f32 as it lies in their registers, in the type of queries: see hopper.cuh.
//
// A block has a tile of queries. Limited by memory.
//
// VALUE, HEAD, HEAD_V, MASK, ATTN: as there; OWN_KEYS 0; TURNED 1: masks are those of keys.

struct FinishArguments {
    GradientArguments of; // rows are queries
    const float *grad_query;
    const u32 *counters;
    u32 tiles;
};
constexpr u32 QUERIES = 64, GROUPS = 2, SHARE = HEAD / GROUPS, THREADS_OF_BLOCK = 256;
constexpr u32 ROW_BYTES = 2 * HEAD + 16; // in different banks

extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK) dense_gradient_finish(const __grid_constant__ FinishArguments f) {
    __shared__ __align__(16) char memory[QUERIES * ROW_BYTES];
    __shared__ u32 unsound[QUERIES / 32]; // a bit for each row
    const GradientArguments &g = f.of;
    const Arguments &a = g.of;
    const u32 shared = shared_address(memory), lane = threadIdx.x % 32;
    const u32 plane = blockIdx.x / f.tiles, tile = blockIdx.x - plane * f.tiles;
    const Owner owner(g, plane);
    const int first = tile * QUERIES, rows = min(static_cast<int>(QUERIES), a.queries - first);
    if (threadIdx.x < QUERIES / 32) unsound[threadIdx.x] = 0;
    __syncthreads();
    // What nobody has added to is not there: no query of the tile sees a key.
    const bool is_there = f.counters[1 + blockIdx.x * GROUPS] != 0;
    const char *const from = reinterpret_cast<const char *>(f.grad_query + static_cast<u64>(blockIdx.x) * QUERIES * HEAD);
#pragma unroll 4
    for (u32 at = threadIdx.x; at < QUERIES * HEAD / 4; at += THREADS_OF_BLOCK) {
        u32 four[4] = {};
        if (is_there) Once<16>::load(four, from + 16 * at);
        // Of a group, of eight channels, of a thread: two of row g, then of row g + 8.
        const u32 group = at / (QUERIES * SHARE / 4), rest = at % (QUERIES * SHARE / 4), thread = rest % 128;
        const u32 channel = group * SHARE + rest / 128 * 8 + thread % 4 * 2;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = thread / 32 * 16 + 8 * half + thread % 32 / 4;
            const float left = __uint_as_float(four[2 * half]) * g.factor, right = __uint_as_float(four[2 * half + 1]) * g.factor;
            if (!is_finite(left) || !is_finite(right)) atomicOr(&unsound[row / 32], 1u << row % 32);
            store_shared_word(shared + row * ROW_BYTES + 2 * channel, Value::round(left, right));
        }
    }
    __syncthreads();
    Value::Storage *const to = static_cast<Value::Storage *>(g.sum) + owner.b * g.sum_strides[0] + owner.head * g.sum_strides[1] + first * g.sum_strides[2];
#pragma unroll 1
    for (u32 at = threadIdx.x; at < QUERIES * HEAD / 8; at += THREADS_OF_BLOCK) {
        const int row = at / (HEAD / 8);
        const u32 channel = at % (HEAD / 8) * 8;
        if (row >= rows) break;
        const Vector v = load_shared(shared + row * ROW_BYTES + 2 * channel);
        Value::Storage *const of_row = to + row * g.sum_strides[2] + channel;
        if (channel + 8 <= a.channels) {
            store_vector(reinterpret_cast<char *>(of_row), v);
        } else {
            const u32 words[4] = {v.x, v.y, v.z, v.w};
            for (u32 e = 0; channel + e < a.channels; e++) of_row[e] = static_cast<u16>(words[e / 2] >> 16 * (e % 2));
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rows; row += THREADS_OF_BLOCK / 32) {
        if (unsound[row / 32] >> row % 32 & 1) compute_carefully(g, owner, first + row, lane);
    }
}
