// The gradient of a bias, which is that of the logits, summed over all axes along which the bias is the same.
//
// A block has a tile of queries and keys and computes its logits and their gradients for a split of the sequences and heads to be
// summed, one after the other, in registers. Where rows or columns of a tile are summed too, they are added up at the end. Parts of
// the same sum are added by bias_sum.cu, in order.
//
// VALUE, HEAD, HEAD_V, PADDED, ALIGN, MASK, ATTN (BIAS), STAGES as in gradient_mma.cu; OWN_KEYS 0; BIAS_TYPE: of the gradient.

constexpr u32 COLUMNS_AT = BLOCK_M * KeyTile::ROW, ROW_VALUES_AT = COLUMNS_AT + BLOCK_N * KeyTile::ROW;
constexpr u32 COLUMN_VALUES_AT = ROW_VALUES_AT + BLOCK_M * ValueTile::ROW, STAGE = COLUMN_VALUES_AT + BLOCK_N * ValueTile::ROW;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_gradient_bias(const __grid_constant__ BiasArguments args) {
    extern __shared__ __align__(128) char memory[];
    const GradientArguments &g = args.of;
    const Arguments &a = g.of;
    const u32 lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0), shared = shared_address(memory);

    // Blocks are tiles of columns, of rows, then splits, then heads and sequences of the gradient.
    u32 index = blockIdx.x;
    const u32 column_tile = index % args.column_tiles;
    index /= args.column_tiles;
    const u32 row_tile = index % args.row_tiles;
    index /= args.row_tiles;
    const u32 split = index % args.splits;
    index /= args.splits;
    const u32 own_head = index % args.sizes[1], own_sequence = index / args.sizes[1];
    const int first_row = row_tile * BLOCK_M, warp_row = first_row + warp * ROWS, column = column_tile * BLOCK_N;

    // The heads of this split, those of one sequence after another.
    const u32 batch = a.planes / a.query_heads, heads = args.sizes[1] == 1 ? a.query_heads : 1, sequences = args.sizes[0] == 1 ? batch : 1;
    const u32 summed = heads * sequences, each = (summed + args.splits - 1) / args.splits;
    const u32 begin = min(split * each, summed), end = min(begin + each, summed);
    const Bounds of_block(a, first_row, min(first_row + BLOCK_M, a.queries)), bounds(a, warp_row, min(warp_row + static_cast<int>(ROWS), a.queries));
    const bool any = of_block.show(column, BLOCK_N);

    const auto work_of = [&](u32 plane) {
        Work work(a, 0, first_row, BLOCK_M, 0);
        work.b = args.sizes[0] == 1 ? plane / heads : own_sequence;
        work.h = args.sizes[1] == 1 ? plane % heads : own_head;
        work.key_head = work.h / a.group;
        return work;
    };
    const auto copy = [&](u32 plane, u32 stage) {
        const Work work = work_of(plane);
        const u32 at = shared + stage;
        const Copier<HEAD, BLOCK_M> rows(a.query, work.b * a.query_strides[0] + work.h * a.query_strides[1], a.query_strides, a.channels);
        const Copier<HEAD, BLOCK_N> columns(a.key, work.b * a.key_strides[0] + work.key_head * a.key_strides[1], a.key_strides, a.channels);
        const Copier<HEAD_V, BLOCK_M> row_values(g.row_value, work.b * g.row_value_strides[0] + work.h * g.row_value_strides[1], g.row_value_strides,
                                                 a.value_channels);
        const Copier<HEAD_V, BLOCK_N> column_values(a.value, work.b * a.value_strides[0] + work.key_head * a.value_strides[1], a.value_strides,
                                                    a.value_channels);
        rows.copy(at, first_row, a.queries);
        columns.copy(at + COLUMNS_AT, column, a.keys);
        row_values.copy(at + ROW_VALUES_AT, first_row, a.queries);
        column_values.copy(at + COLUMN_VALUES_AT, column, a.keys);
        if (a.sign != 0 || a.kept == 0) {
            wait_for_copies();
            rows.change_bits(at, a.kept, a.sign);
        }
    };
    const u32 rows_at = shared + KeyTile::place(warp * ROWS + lane % 16, lane / 16);
    const u32 row_values_at = shared + ROW_VALUES_AT + ValueTile::place(warp * ROWS + lane % 16, lane / 16);
    const u32 columns_at = shared + COLUMNS_AT + KeyTile::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 column_values_at = shared + COLUMN_VALUES_AT + ValueTile::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);

    Logits sum;
#pragma unroll
    for (u32 i = 0; i < ROW_TILES * KEY_TILES * 4; i++) sum[i / (KEY_TILES * 4)][i / 4 % KEY_TILES][i % 4] = 0.0f;
    u32 stage = 0;
    if (any && begin < end) copy(begin, 0);
#pragma unroll 1
    for (u32 plane = begin; any && plane < end; plane++) {
        const u32 next_stage = STAGES > 1 ? STAGE - stage : 0;
        const Work work = work_of(plane);
        wait_for_copies();
        __syncthreads(); // this head is there, and the one before no longer needed
        if (STAGES > 1 && plane + 1 < end) copy(plane + 1, next_stage);
        if (bounds.show(column, BLOCK_N)) {
            Masking masking(a, work, warp_row, lane);
            const Walk walk = walk_of(a, work);
            masking.load(walk, column_tile, column);
            Logits logits, grads;
            multiply<HEAD>(logits, rows_at + stage, columns_at + stage);
            const float scale = masking.apply(logits, a.scale, column);
            multiply<HEAD_V>(grads, row_values_at + stage, column_values_at + stage);
            const float2 *const statistics = statistics_of(g, work.b, work.h);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const int row = warp_row + static_cast<int>(16 * r + 8 * half + lane / 4);
                    const float2 of_row = statistics[min(row, a.queries - 1)];
#pragma unroll
                    for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
                        for (u32 e = 0; e < 2; e++) {
                            const float logit = logits[r][k][2 * half + e];
                            float grad = power_of_two(__fmaf_rn(logit, scale, -of_row.x)) * (grads[r][k][2 * half + e] - of_row.y);
                            // What is not seen counts for nothing, whatever its logit is.
                            if (!is_finite(grad)) {
                                const int key = column + static_cast<int>(8 * k + 2 * (lane % 4) + e);
                                const bool there = row < a.queries && key < a.keys && of_row.x != NOTHING_SEEN && logit != minus_infinity();
                                if (!there || bias_at(a, work.mask(a), row, key) == minus_infinity()) grad = 0.0f;
                            }
                            sum[r][k][2 * half + e] += grad;
                        }
                    }
                }
            }
        }
        if (STAGES == 1) {
            __syncthreads(); // nobody needs this head any more
            if (plane + 1 < end) copy(plane + 1, 0);
        }
        stage = next_stage;
    }

    // Where a whole axis is summed a tile leaves one row or column of it, in the memory of the first stage.
    const bool one_row = args.sizes[2] == 1 && a.queries > 1, one_column = args.sizes[3] == 1 && a.keys > 1;
    const u32 width = one_column ? 1 : BLOCK_N;
    float *const sums = reinterpret_cast<float *>(memory); // [BLOCK_M][BLOCK_N]
    static_assert(BLOCK_M * BLOCK_N * 4 <= STAGES * STAGE, "sums lie where the tiles did");
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[(warp * ROWS + 16 * r + i / 2 * 8 + lane / 4) * BLOCK_N + 8 * k + 2 * (lane % 4) + i % 2] = sum[r][k][i];
    __syncthreads();
    const u32 rows_there = min(BLOCK_M, a.queries - first_row), columns_there = min(BLOCK_N, a.keys - column);
    const u32 height = one_row ? 1 : BLOCK_M;
    // Of all parts of a sum.
    const u32 part = (split * (one_row ? args.row_tiles : 1) + (one_row ? row_tile : 0)) * (one_column ? args.column_tiles : 1) + (one_column ? column_tile : 0);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < width * height; at += THREADS) {
        const u32 row = at / width, key = at % width;
        if (row >= rows_there || key >= columns_there) continue;
        float total = 0.0f;
#pragma unroll 1
        for (u32 r = row; r < (one_row ? rows_there : row + 1); r++)
#pragma unroll 1
            for (u32 k = key; k < (one_column ? columns_there : key + 1); k++) total += sums[r * BLOCK_N + k];
        const u64 bias_row = args.sizes[2] == 1 ? 0 : first_row + row, bias_column = args.sizes[3] == 1 ? 0 : column + key;
        const u64 element = ((static_cast<u64>(own_sequence) * args.sizes[1] + own_head) * args.sizes[2] + bias_row) * args.sizes[3] + bias_column;
        if (args.parts == 1) {
            store_bias(args, element, total);
        } else {
            args.partial[part * args.elements + element] = total;
        }
    }
}
