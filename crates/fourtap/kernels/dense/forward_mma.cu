// Dense attention, forward, on tensor cores (sm_80 and up): f16 and bf16, sums in f32.
//
// A block computes BLOCK_M queries of one head, over all keys or, SPLIT, a part of them. K and V pass through shared
// memory in tiles of BLOCK_N keys, one of each: while the keys are multiplied the values arrive, and the other way round.
// With two blocks or more on a multiprocessor, that hides more than further tiles in flight would, which would leave room
// for fewer. The warps lie WARPS / KEY_WARPS rows by KEY_WARPS columns on a tile.
// Large problems are limited by the tensor cores (D 128), the exponentials (D 64) and reading shared memory (D 256), small
// ones by latency.
//
// VALUE: F16, BF16. HEAD, HEAD_V: channels of K and V rounded up to a multiple of 32; PADDED: some are not there.
// BLOCK_M, BLOCK_N, KEY_WARPS; BLOCKS: of one multiprocessor. MASK: there are bounds but `keys`.
// ALIGN: bytes to which all rows are aligned, 16 or 4; 2: rows of any kind, their channels at any stride.

static __device__ __forceinline__ void load_queries(u32 (&fragment)[4], u32 queries_at, u32 row_tile, int step) {
    load_matrices(fragment, KeyTile::further(queries_at, 2 * step) + row_tile * 16 * KeyTile::ROW);
}

static __device__ __forceinline__ void multiply_keys(Logits &logits, const Queries &kept, u32 queries_at, u32 keys_at) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) logits[r][k][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            if (step >= KEPT) load_queries(a[r], queries_at, r, step);
#pragma unroll
            for (u32 i = 0; i < 4 && step < KEPT; i++) a[r][i] = kept[r][step][i];
        }
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k += 2) {
            u32 b[4];
            load_matrices(b, KeyTile::further(keys_at, 2 * step) + k * 8 * KeyTile::ROW);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                multiply_add<VALUE>(logits[r][k], a[r][0], a[r][1], a[r][2], a[r][3], b[0], b[1]);
                multiply_add<VALUE>(logits[r][k + 1], a[r][0], a[r][1], a[r][2], a[r][3], b[2], b[3]);
            }
        }
    }
}

static __device__ __forceinline__ void add_values(Rows &rows, const Weights &weights, u32 values_at) {
#pragma unroll
    for (u32 k = 0; k < KEY_TILES / 2; k++) {
#pragma unroll
        for (u32 c = 0; c < OUT_TILES; c += 2) {
            u32 b[4];
            load_transposed(b, ValueTile::further(values_at, c) + k * 16 * ValueTile::ROW);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                const u32(&a)[4] = weights[r][k];
                multiply_add<VALUE>(rows.out[r][c], a[0], a[1], a[2], a[3], b[0], b[1]);
                multiply_add<VALUE>(rows.out[r][c + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_forward_mma(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) char memory[];
    // A warp's number by way of its first lane, for the compiler to know it is one and keep what follows from it once a warp.
    const u32 lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const u32 row_warp = warp % ROW_WARPS, key_warp = warp / ROW_WARPS;

    // Under a mask the last queries come first: of a causal one they are the longest. Otherwise a plane's blocks are next to
    // each other, so that its keys are in L2.
    const u32 tiles = (a.queries + BLOCK_M - 1) / BLOCK_M;
    const u32 tile = MASK ? tiles - 1 - blockIdx.x / a.planes : blockIdx.x % tiles;
    const u32 plane = MASK ? blockIdx.x % a.planes : blockIdx.x / tiles;
    const u32 b = plane / a.query_heads, h = plane - b * a.query_heads, key_head = h / a.group;
    const int first_row = tile * BLOCK_M, last_row = min(first_row + BLOCK_M, a.queries) - 1;

    // The tiles of keys that some query of the block sees.
    const int begin = MASK ? max(0, first_row + a.first) : 0, end = MASK ? min(a.keys, last_row + a.past) : a.keys;
    int first_tile = begin / BLOCK_N, count = end > begin ? (end + BLOCK_N - 1) / BLOCK_N - first_tile : 0;
    if (SPLIT) {
        const int each = (count + a.splits - 1) / a.splits, before = min(count, static_cast<int>(blockIdx.y) * each);
        first_tile += before;
        count = min(each, count - before);
    }

    const i64 query_at = b * a.query_strides[0] + h * a.query_strides[1];
    const i64 key_at = b * a.key_strides[0] + key_head * a.key_strides[1];
    const i64 value_at = b * a.value_strides[0] + key_head * a.value_strides[1];
    const Copier<HEAD, BLOCK_M> queries(a.query, query_at, a.query_strides, a.channels);
    const Copier<HEAD, BLOCK_N> keys(a.key, key_at, a.key_strides, a.channels);
    const Copier<HEAD_V, BLOCK_N> values(a.value, value_at, a.value_strides, a.value_channels);
    const u32 shared = shared_address(memory);

    // Where a lane reads its rows of fragments.
    const u32 queries_at = shared + KeyTile::place(row_warp * ROWS + lane % 16, lane / 16);
    const u32 keys_at = shared + KEYS_AT + KeyTile::place(key_warp * KEYS + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 values_at = shared + VALUES_AT + ValueTile::place(key_warp * KEYS + lane % 16, lane / 16);

    Rows rows;
    const int warp_row = first_row + row_warp * ROWS, last_warp_row = min(warp_row + static_cast<int>(ROWS), a.queries) - 1;
    const int visible_from = MASK ? warp_row + a.first : 0, visible_to = MASK ? min(a.keys, last_warp_row + a.past) : a.keys;
    const int seen_by_all_from = MASK ? last_warp_row + a.first : 0, seen_by_all_to = MASK ? min(a.keys, warp_row + a.past) : a.keys;
    const auto key_of = [&](int j) { return (first_tile + j) * BLOCK_N + static_cast<int>(key_warp * KEYS); };
    // Whether some query of the warp sees some key of its part of a tile.
    const auto is_seen = [&](int j) {
        const int key = key_of(j);
        return warp_row < a.queries && key < visible_to && key + static_cast<int>(KEYS) > visible_from;
    };
    Logits logits;
    Weights weights;
    const auto make_weights = [&](int j) {
        const int key = key_of(j);
        if (key < seen_by_all_from || key + static_cast<int>(KEYS) > seen_by_all_to) {
            hide(a, logits, warp_row + lane / 4, key + 2 * (lane % 4));
        }
        weigh(rows, logits, weights, a.scale);
    };

    if (count > 0) {
        queries.copy(shared, first_row, a.queries);
        keys.copy(shared + KEYS_AT, first_tile * BLOCK_N, a.keys);
        if (a.sign != 0 || a.kept == 0) {
            wait_for_copies();
            queries.change_bits(shared, a.kept, a.sign);
        }
        Queries kept;
        if (KEPT > 0) {
            wait_for_copies();
            __syncthreads(); // queries are there
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int step = 0; step < KEPT; step++) load_queries(kept[r][step], queries_at, r, step);
        }
#pragma unroll 1
        for (int j = 0; j < count; j++) {
            wait_for_copies();
            __syncthreads(); // keys are there, and the values of the last tile no longer needed
            values.copy(shared + VALUES_AT, (first_tile + j) * BLOCK_N, a.keys);
            const bool seen = is_seen(j);
            if (seen) multiply_keys(logits, kept, queries_at, keys_at);
            wait_for_copies();
            __syncthreads(); // values are there, and the keys no longer needed
            if (j + 1 < count) keys.copy(shared + KEYS_AT, (first_tile + j + 1) * BLOCK_N, a.keys);
            if (seen) {
                make_weights(j);
                add_values(rows, weights, values_at);
            }
        }
    }

#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        rows.sum[r][0] = total(rows.sum[r][0]);
        rows.sum[r][1] = total(rows.sum[r][1]);
    }
    if (KEY_WARPS > 1 && !gather_columns(rows, memory + KEYS_AT, row_warp, key_warp, lane)) return;

    const Target target{a, b * a.out_strides[0] + h * a.out_strides[1],
                        (SPLIT ? static_cast<i64>(blockIdx.y) * a.planes : 0) + plane};
    if (SPLIT) {
        store_partial(rows, target, count > 0, warp_row, lane);
    } else {
        store_rows(rows, target, shared + row_warp * ROWS * ValueTile::ROW, warp_row, lane);
        store_lse(rows, a, b * a.lse_strides[0] + h * a.lse_strides[1], warp_row, lane);
    }
    const Source source{static_cast<const u16 *>(a.query) + query_at, static_cast<const u16 *>(a.key) + key_at,
                        static_cast<const u16 *>(a.value) + value_at, first_tile * BLOCK_N, (first_tile + count) * BLOCK_N};
    mend(rows, target, source, warp_row, lane);
}
