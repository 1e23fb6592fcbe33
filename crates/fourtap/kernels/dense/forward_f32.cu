// Dense attention, forward, of f32 on tensor cores (sm_80 and up), exact to about the last digit of f32.
//
// Numbers are sums of two f16 (prepare_f32.cu), so that a product is three on tensor cores: coarse times coarse, and the
// two of a coarse and a fine part; fine times fine is below the last digit. Tensor cores do not round their sums but cut
// them off, so the small products are summed first or on their own, and a tile's share of the output is added to the rest
// outside. Otherwise as forward_mma.cu: STAGES of tiles of keys and values pass through shared memory.
// Limited by the tensor cores.
//
// VALUE: F32. HEAD, HEAD_V: channels rounded up to a multiple of 32. BLOCK_M, BLOCK_N, WARPS, BLOCKS, STAGES, MASK, SPLIT,
// ATTN as in forward_mma.cu; KEY_WARPS 1, ALIGN 16, PADDED 0: the converted tensors' rows are whole.

static_assert(KEY_WARPS == 1, "all warps have the same keys");
constexpr int STEPS_V = HEAD_V / 16;
// By which weights are multiplied, so that they are large in f16 and their fine parts keep their digits; at most 2^15.
constexpr float LARGER = 128.0f;

// `part`: 0 coarse, 1 fine.
static __device__ __forceinline__ void load_queries(u32 (&fragment)[4], u32 queries_at, u32 row_tile, int step, int part) {
    load_matrices(fragment, KeyTile::further(queries_at, 2 * (step + part * STEPS)) + row_tile * 16 * KeyTile::ROW);
}
static __device__ __forceinline__ void load_keys(u32 (&fragment)[4], u32 keys_at, u32 key_tile, int step, int part) {
    load_matrices(fragment, KeyTile::further(keys_at, 2 * (step + part * STEPS)) + key_tile * 8 * KeyTile::ROW);
}
static __device__ __forceinline__ void multiply_pair(float (&left)[4], float (&right)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    multiply_add<F16>(left, a[0], a[1], a[2], a[3], b[0], b[1]);
    multiply_add<F16>(right, a[0], a[1], a[2], a[3], b[2], b[3]);
}

static __device__ __forceinline__ void multiply_keys(Logits &logits, u32 queries_at, u32 keys_at) {
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) logits[r][k][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) { // what is small
        u32 coarse[ROW_TILES][4], fine[ROW_TILES][4];
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            load_queries(coarse[r], queries_at, r, step, 0);
            load_queries(fine[r], queries_at, r, step, 1);
        }
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k += 2) {
            u32 b[4], b_fine[4];
            load_keys(b, keys_at, k, step, 0);
            load_keys(b_fine, keys_at, k, step, 1);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                multiply_pair(logits[r][k], logits[r][k + 1], coarse[r], b_fine);
                multiply_pair(logits[r][k], logits[r][k + 1], fine[r], b);
            }
        }
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) { // and the rest
        u32 coarse[ROW_TILES][4];
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) load_queries(coarse[r], queries_at, r, step, 0);
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k += 2) {
            u32 b[4];
            load_keys(b, keys_at, k, step, 0);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) multiply_pair(logits[r][k], logits[r][k + 1], coarse[r], b);
        }
    }
}

// `whole`: what the tile's values are counted in, and whether some channels have units of their own, which are at `units` from the
// lane's first channel on. A tile's share of a channel is brought to the others' as it is added.
static __device__ __forceinline__ void add_values(Rows &rows, const Weights &coarse, const Weights &fine, u32 values_at, float2 whole, const float *units) {
    const float tile_unit = whole.x / LARGER;
#pragma unroll
    for (u32 c = 0; c < OUT_TILES; c += 2) {
        float large[ROW_TILES][2][4] = {}, small[ROW_TILES][2][4] = {};
#pragma unroll
        for (u32 k = 0; k < KEY_TILES / 2; k++) {
            u32 b[4], b_fine[4];
            load_transposed(b, ValueTile::further(values_at, c) + k * 16 * ValueTile::ROW);
            load_transposed(b_fine, ValueTile::further(values_at, c + 2 * STEPS_V) + k * 16 * ValueTile::ROW);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                multiply_pair(large[r][0], large[r][1], coarse[r][k], b);
                multiply_pair(small[r][0], small[r][1], coarse[r][k], b_fine);
                multiply_pair(small[r][0], small[r][1], fine[r][k], b);
            }
        }
        float unit[2][2] = {{tile_unit, tile_unit}, {tile_unit, tile_unit}};
        if (whole.y != 0.0f) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float2 own = *reinterpret_cast<const float2 *>(units + 8 * (c + i));
                unit[i][0] = own.x / LARGER;
                unit[i][1] = own.y / LARGER;
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                float &out = rows.out[r][c + i / 4][i % 4];
                out = __fmaf_rn(large[r][i / 4][i % 4] + small[r][i / 4][i % 4], unit[i / 4][i % 2], out);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_forward_f32(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) char memory[];
    const u32 lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);

    const Work work = Work::of_block(a);
    const u32 tiles = (a.queries + BLOCK_M - 1) / BLOCK_M, key_tiles = (a.keys + BLOCK_N - 1) / BLOCK_N;
    const u32 plane = work.b * a.query_heads + work.h, key_plane = work.b * (a.query_heads / a.group) + work.key_head;

    // Whole tiles of whole rows, side by side.
    const i64 key_strides[4] = {0, 0, 2 * HEAD, 1}, value_strides[4] = {0, 0, 2 * HEAD_V, 1};
    const u64 query_tile = static_cast<u64>(plane) * tiles + work.first_row / BLOCK_M, key_tile = static_cast<u64>(key_plane) * key_tiles;
    const Copier<2 * HEAD, BLOCK_M> queries(a.query_pieces, query_tile * BLOCK_M * 2 * HEAD, key_strides, 2 * HEAD);
    const Copier<2 * HEAD, BLOCK_N> keys(a.key_pieces, key_tile * BLOCK_N * 2 * HEAD, key_strides, 2 * HEAD);
    const Copier<2 * HEAD_V, BLOCK_N> values(a.value_pieces, key_tile * BLOCK_N * 2 * HEAD_V, value_strides, 2 * HEAD_V);
    const float *const key_units = a.key_units + key_tile, *const value_units = a.value_units + key_tile * (HEAD_V + 2);
    const u32 shared = shared_address(memory);
    const u32 queries_at = shared + KeyTile::place(warp * ROWS + lane % 16, lane / 16);
    const u32 keys_at = shared + KEYS_AT + KeyTile::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 values_at = shared + VALUES_AT + ValueTile::place(lane % 16, lane / 16);

    Rows rows;
    const int warp_row = work.first_row + warp * ROWS;
    Masking masking(a, work, warp_row, lane);
    Walk walk = walk_of(a, work);
    Logits logits;
    const auto copy_keys = [&](int j, u32 stage) { keys.copy(shared + KEYS_AT + stage, work.key_of(j), work.key_of(j) + BLOCK_N); };
    const auto copy_values = [&](int j, u32 stage) { values.copy(shared + VALUES_AT + stage, work.key_of(j), work.key_of(j) + BLOCK_N); };

    int j = walk.next(0, lane);
    if (j < work.count) {
        queries.copy(shared, 0, BLOCK_M);
        copy_keys(j, 0);
        if (STAGES > 1) copy_values(j, 0);
        const float query_unit = a.query_units[query_tile];
        u32 stage = 0;
#pragma unroll 1
        while (j < work.count) {
            const int key = work.key_of(j);
            const bool seen = masking.bounds.show(key, KEYS);
            masking.load(walk, j, key);
            const float key_unit = key_units[work.first_tile + j];
            const float *const of_values = value_units + static_cast<i64>(work.first_tile + j) * (HEAD_V + 2);
            const float2 value_unit = *reinterpret_cast<const float2 *>(of_values);
            const int next = walk.next(j + 1, lane);
            const u32 this_stage = stage, next_stage = STAGES > 1 ? STAGE_BYTES - stage : 0;
            wait_for_copies();
            __syncthreads(); // keys are there, and the values of the last tile no longer needed
            if (STAGES == 1) {
                copy_values(j, 0);
            } else if (next < work.count) {
                copy_keys(next, next_stage);
                copy_values(next, next_stage);
            }
            if (seen) multiply_keys(logits, queries_at, keys_at + this_stage);
            if (STAGES == 1) {
                wait_for_copies();
                __syncthreads(); // values are there, and the keys no longer needed
                if (next < work.count) copy_keys(next, 0);
            }
            stage = next_stage;
            j = next;
            if (!seen) continue;
            // Positive and finite, so that minus infinity stays what it is; or NaN.
            const float product = a.scale * query_unit * key_unit;
            const float of_unit = product != product ? product : fminf(fmaxf(product, 1.17549435e-38f), 3.40282347e38f);
            const float scale = masking.apply(logits, of_unit, key);
            Weights coarse, fine;
            weigh(rows, logits, scale, [&](u32 r, u32 k, const float(&w)[4]) {
                split<F16>(LARGER * w[0], LARGER * w[1], coarse[r][k / 2][k % 2 * 2], fine[r][k / 2][k % 2 * 2]);
                split<F16>(LARGER * w[2], LARGER * w[3], coarse[r][k / 2][k % 2 * 2 + 1], fine[r][k / 2][k % 2 * 2 + 1]);
            });
            add_values(rows, coarse, fine, values_at + this_stage, value_unit, of_values + 2 + 2 * (lane % 4));
        }
    }

#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
        rows.sum[r][0] = total(rows.sum[r][0]);
        rows.sum[r][1] = total(rows.sum[r][1]);
    }
    const Target target(a, work);
    if (SPLIT) {
        store_partial(rows, target, work.count > 0, warp_row, lane);
    } else {
        store_rows(rows, target, warp_row, lane);
        store_lse(rows, target, warp_row, lane);
    }
    mend(rows, a, work, warp_row, lane);
}
