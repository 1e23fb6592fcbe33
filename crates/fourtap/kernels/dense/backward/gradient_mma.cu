// Gradients of dense attention on tensor cores (sm_80 and up): f16 and bf16, sums in f32.
//
// A block owns BLOCK_M rows of one head and walks the columns in tiles of BLOCK_N: twice as many products as sums need are
// computed once for keys and once more for queries, so that every sum is one block's, in one order. Nothing is added by atomics.
//
// Limited by shared memory, from which each fragment of columns is read for one or two products.
//
// VALUE, HEAD, HEAD_V, PADDED, ALIGN, MASK, ATTN: as in forward_mma.cu; KEY_WARPS: 1. OWN_KEYS: see problem.cuh.
// SUM, VALUE_SUM: which are wanted; wide heads have registers for one at a time. STAGES: tiles in shared memory.

constexpr u32 ROWS_AT = 0, ROW_VALUES_AT = ROWS_AT + BLOCK_M * KeyTile::ROW;
constexpr u32 COLUMNS_AT = ROW_VALUES_AT + BLOCK_M * ValueTile::ROW, COLUMN_VALUES_AT = COLUMNS_AT + BLOCK_N * KeyTile::ROW;
constexpr u32 STATISTICS_AT = COLUMN_VALUES_AT + BLOCK_N * ValueTile::ROW;
constexpr u32 STAGE = STATISTICS_AT - COLUMNS_AT + (OWN_KEYS ? BLOCK_N * 8 : 0);
static_assert(KEY_WARPS == 1 && ROWS % 16 == 0, "a warp has whole rows");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) dense_gradient_mma(const __grid_constant__ GradientArguments g) {
    extern __shared__ __align__(128) char memory[];
    const Arguments &a = g.of;
    const u32 lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0), shared = shared_address(memory);

    // With bounds the longest come first: of causal ones the first keys and the last queries.
    const u32 tiles = (a.queries + BLOCK_M - 1) / BLOCK_M, planes = gridDim.x / tiles;
    const u32 tile = !MASK ? blockIdx.x % tiles : OWN_KEYS ? blockIdx.x / planes : tiles - 1 - blockIdx.x / planes;
    const Owner owner(g, MASK ? blockIdx.x % planes : blockIdx.x / tiles);
    const int first_row = tile * BLOCK_M, warp_row = first_row + warp * ROWS;

    const Copier<HEAD, BLOCK_M> rows(a.query, owner.b * a.query_strides[0] + owner.head * a.query_strides[1], a.query_strides, a.channels);
    const Copier<HEAD_V, BLOCK_M> row_values(g.row_value, owner.b * g.row_value_strides[0] + owner.head * g.row_value_strides[1], g.row_value_strides,
                                             a.value_channels);
    rows.copy(shared + ROWS_AT, first_row, a.queries);
    if (SUM) row_values.copy(shared + ROW_VALUES_AT, first_row, a.queries);
    if (a.sign != 0 || a.kept == 0) {
        wait_for_copies();
        rows.change_bits(shared + ROWS_AT, a.kept, a.sign);
    }

    // Where a lane reads its rows of fragments: of rows, of columns, and of columns as numbers to add up.
    const u32 rows_at = shared + ROWS_AT + KeyTile::place(warp * ROWS + lane % 16, lane / 16);
    const u32 row_values_at = shared + ROW_VALUES_AT + ValueTile::place(warp * ROWS + lane % 16, lane / 16);
    const u32 columns_at = shared + COLUMNS_AT + KeyTile::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 column_values_at = shared + COLUMN_VALUES_AT + ValueTile::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 addends_at = shared + COLUMNS_AT + KeyTile::place(lane % 16, lane / 16);
    const u32 value_addends_at = shared + COLUMN_VALUES_AT + ValueTile::place(lane % 16, lane / 16);

    Sums<HEAD> sum;
    Sums<HEAD_V> value_sum;
#pragma unroll 1
    for (u32 n = 0; n < owner.count(a); n++) {
        Work work(a, 0, first_row, BLOCK_M, 0);
        work.b = owner.b;
        work.h = owner.query_head(a, n);
        work.key_head = owner.column_head(a, n);
        const Copier<HEAD, BLOCK_N> columns(a.key, work.b * a.key_strides[0] + work.key_head * a.key_strides[1], a.key_strides, a.channels);
        const Copier<HEAD_V, BLOCK_N> column_values(a.value, work.b * a.value_strides[0] + work.key_head * a.value_strides[1], a.value_strides,
                                                    a.value_channels);
        const float2 *const statistics = statistics_of(g, work.b, work.h);
        const auto copy = [&](int j, u32 stage) {
            const int column = work.key_of(j);
            columns.copy(shared + COLUMNS_AT + stage, column, a.keys);
            column_values.copy(shared + COLUMN_VALUES_AT + stage, column, a.keys);
            if (OWN_KEYS && threadIdx.x < BLOCK_N / 2)
                copy_async<16>(shared + STATISTICS_AT + stage + 16 * threadIdx.x, reinterpret_cast<const char *>(statistics + column + 2 * threadIdx.x), 16);
        };
        float2 of_rows[ROW_TILES][2];
#pragma unroll
        for (u32 i = 0; i < 2 * ROW_TILES && !OWN_KEYS; i++)
            of_rows[i / 2][i % 2] = statistics[min(warp_row + static_cast<int>(8 * i + lane / 4), a.queries - 1)];

        Masking masking(a, work, warp_row, lane);
        Walk walk = walk_of(a, work);
        int j = walk.next(0, lane);
        if (n > 0) __syncthreads(); // nobody reads the columns of the head before
        if (j < work.count) copy(j, 0);
        u32 stage = 0;
#pragma unroll 1
        while (j < work.count) {
            const int column = work.key_of(j);
            const bool seen = masking.bounds.show(column, BLOCK_N);
            masking.load(walk, j, column);
            const int next = walk.next(j + 1, lane);
            const u32 next_stage = STAGES > 1 ? STAGE - stage : 0;
            wait_for_copies();
            __syncthreads(); // columns are there, and those of the last tile no longer needed
            if (STAGES > 1 && next < work.count) copy(next, next_stage);
            if (seen) {
                Logits weights;
                multiply<HEAD>(weights, rows_at, columns_at + stage);
                const float scale = masking.apply(weights, a.scale, column);
                float deltas[KEY_TILES][2];
#pragma unroll
                for (u32 k = 0; k < KEY_TILES; k++) {
                    Vector of_columns = {};
                    if (OWN_KEYS) of_columns = load_shared(shared + STATISTICS_AT + stage + 8 * (8 * k + 2 * (lane % 4)));
                    const float lse[2] = {__uint_as_float(of_columns.x), __uint_as_float(of_columns.z)};
                    deltas[k][0] = __uint_as_float(of_columns.y);
                    deltas[k][1] = __uint_as_float(of_columns.w);
#pragma unroll
                    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
                        for (u32 i = 0; i < 4; i++) {
                            float &x = weights[r][k][i];
                            x = power_of_two(__fmaf_rn(x, scale, -(OWN_KEYS ? lse[i % 2] : of_rows[r][i / 2].x)));
                        }
                }
                if (VALUE_SUM) value_sum.add(weights, value_addends_at + stage);
                if (SUM) {
                    Logits grads;
                    multiply<HEAD_V>(grads, row_values_at, column_values_at + stage);
#pragma unroll
                    for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
                        for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
                            for (u32 i = 0; i < 4; i++)
                                grads[r][k][i] = weights[r][k][i] * (grads[r][k][i] - (OWN_KEYS ? deltas[k][i % 2] : of_rows[r][i / 2].y));
                    sum.add(grads, addends_at + stage);
                }
            }
            if (STAGES == 1) {
                __syncthreads(); // nobody needs the columns any more
                if (next < work.count) copy(next, 0);
            }
            stage = next_stage;
            j = next;
        }
    }
    wait_for_copies();
    __syncthreads(); // of rows, where no column was seen
    const u32 staged = warp * ROWS;
    if (SUM)
        sum.store(g.sum, owner.b * g.sum_strides[0] + owner.head * g.sum_strides[1], g.sum_strides, a.channels, g.factor,
                  shared + ROWS_AT + staged * KeyTile::ROW, warp_row, a.queries, lane);
    if (VALUE_SUM)
        value_sum.store(g.value_sum, owner.b * g.value_sum_strides[0] + owner.head * g.value_sum_strides[1], g.value_sum_strides, a.value_channels, 1.0f,
                        shared + ROW_VALUES_AT + staged * ValueTile::ROW, warp_row, a.queries, lane);

    u32 unsound = 0;
#pragma unroll
    for (u32 i = 0; i < 2 * ROW_TILES; i++) {
        const bool sound = (!SUM || sum.is_sound(i / 2, i % 2)) && (!VALUE_SUM || value_sum.is_sound(i / 2, i % 2));
        if (!sound) unsound |= 1u << i;
    }
    if (!__any_sync(ALL, unsound != 0)) return;
    __syncwarp(); // these rows were stored by other lanes
#pragma unroll 1
    for (u32 row = 0; row < ROWS; row++) {
        const bool mine = lane / 4 == row % 8 && (unsound >> row / 8 & 1);
        const int i = warp_row + static_cast<int>(row);
        if (__any_sync(ALL, mine) && i < a.queries) compute_carefully(g, owner, i, lane);
    }
}
