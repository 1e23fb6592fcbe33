// Backward, grad_value from sorted samples for any channels, strides and dtypes. See bins.cuh and runs.cuh.
//
// A warp takes walks; a lane has one channel and sums the eight pixels of the upper and the lower row. Every pixel of
// a run meets every sample of its lists, most with weight zero. Few samples are read once and stay in shared memory
// for all rows. Limited by instruction issue.
//
// Zero times an infinite or NaN grad_out makes a sum NaN: such walks are summed once more, exactly as defined.
//
// VALUE: element type. WIDE: see bins.cuh.

constexpr u32 LISTED = VALUE == F64 ? 16 : 32; // samples of a walk that there is room for

// Loads that stay in this order: those of global memory first, so that none waits for the others.
static __device__ __forceinline__ Real load_tap(const Value::Storage *at) {
    constexpr int BYTES = sizeof(Value::Storage);
    if (BYTES == 2) {
        u16 bits;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(at));
        return Value::widen(*reinterpret_cast<const Value::Storage *>(&bits));
    }
    if (BYTES == 4) {
        float number;
        asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(number) : "l"(at));
        return Value::widen(*reinterpret_cast<const Value::Storage *>(&number));
    }
    double number;
    asm volatile("ld.global.nc.f64 %0, [%1];" : "=d"(number) : "l"(at));
    return Value::widen(*reinterpret_cast<const Value::Storage *>(&number));
}
// A row of a run and one channel.
struct Sums {
    Real of[RUN];

    __device__ __forceinline__ void add(const Real *weights, Real tap) {
#pragma unroll
        for (int x = 0; x < RUN; x++) of[x] = fused(weights[x], tap, of[x]);
    }
};

extern "C" __global__ void __launch_bounds__(32 * RUN_WARPS, VALUE == F64 ? 4 : 6)
    msda_backward_value_channel(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                                const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ __align__(16) Real columns[RUN_WARPS][32][RUN], rows[RUN_WARPS][32][2]; // how much a sample counts there
    __shared__ u32 queries[RUN_WARPS][32];
    // What warps have in registers while they read together, of their samples' grad_out, and of a shared walk, of their sums.
    __shared__ Real listed[RUN_WARPS][LISTED][32];
    __shared__ u32 places[RUN_WARPS][32], items[2];
    __shared__ Queue::Turn turns[RUN_WARPS];
    const bool tiled = lay_out(a, work, grids);
    if (tiled) deal_out(a, work, grids, items, false);
    wait_for_previous(); // until all is sorted
    if (!tiled) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 by_query = g.grad_out_strides[1];
    const Queue::Turn &turn = turns[warp];
    const Item &item = turn.item;
    Queue queue(work, items, turns[warp]);
    const auto place = [&](u32 x) { return lane * RUN + x; };
    while (queue.take(a, work, grids) && !queue.is_exact) {
        const Grid &grid = grids[item.level];
        const u32 plane = work.first_plane + item.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
        const int channel = item.channel + lane;
        const bool alive = channel < a.channels;
        const auto *const column = static_cast<const Value::Storage *>(g.grad_out) + n * g.grad_out_strides[0] +
                                   (m * a.channels + (alive ? channel : 0)) * g.grad_out_strides[2];
        const bool together = queue.together(), is_part = turn.is_part();
        const Walk walk(grid, item);
        // A lane a piece, if there are not too many, ordered by cell rows.
        const u32 pieces_in_all = (walk.rows + 1) * work.chunks;
        const bool few = pieces_in_all <= 32;
        const u32 down_of_lane = work.by_chunks.divide(lane), chunk_of_lane = lane - down_of_lane * work.chunks;
        const List list_of_lane(work, grid, item, walk.run, walk.y + down_of_lane);
        const uint2 piece_of_lane = few && lane < pieces_in_all ? list_of_lane.piece(work, chunk_of_lane) : make_uint2(0, 0);
        u32 size = 0;
        if (turn.phase != Queue::PUT_OFF) {
            size = few ? __reduce_add_sync(ALL, piece_of_lane.y) : measure(work, grid, item, walk);
            if (queue.put_off(work, grid, walk, size)) continue;
        }
        const int x0 = walk.run * RUN;
        // Adds a staged sample.
        Sums upper = {}, lower = {};
        const auto add = [&](u32 k, Real tap) {
            upper.add(columns[warp][k], rows[warp][k][0] * tap);
            lower.add(columns[warp][k], rows[warp][k][1] * tap);
        };
        // What lanes know of a sample, in the cell row that begins at `top`.
        const auto stage = [&](const Record &sample, Real top) {
#pragma unroll
            for (int x = 0; x < RUN; x++) columns[warp][lane][x] = hat(sample.x - (x0 + x));
            const Real down = sample.y - top;
            rows[warp][lane][0] = sample.weight * (1 - down);
            rows[warp][lane][1] = sample.weight * down;
            queries[warp][lane] = sample.query;
        };
        const auto tap_of = [&](u32 k) { return load_tap(moved(column, steps<Value::Storage>(queries[warp][k], by_query))); };
        const auto store_row = [&](int y, const Real (&totals)[RUN]) {
            if (!alive) return;
            auto *to = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] + m * g.value_strides[2] +
                       channel * g.value_strides[3] + (grid.start + static_cast<i64>(y) * grid.width + x0) * g.value_strides[1];
            const int there = min(RUN, grid.width - x0);
            Real flaw = 0; // or NaN
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                flaw = fused(totals[i], Real(0), flaw);
                if (i < there) *to = Value::round(totals[i]);
                to += g.value_strides[1];
            }
            if (flaw != 0) turns[warp].is_flawed = 1;
        };
        if (!together && few && size <= LISTED) {
            const Pieces pieces(work, list_of_lane, chunk_of_lane, piece_of_lane, shared_address(places[warp]), lane);
            const Record sample = pieces.take(0, size, lane);
            stage(sample, whole(sample.y));
            __syncwarp();
#pragma unroll 8
            for (u32 k = 0; k < size; k++) listed[warp][k][lane] = tap_of(k);
            u32 k = 0; // its own lane's taps are all that a lane reads
            for (int down = 0; down <= walk.rows; down++) {
                const u32 end = __reduce_add_sync(ALL, down_of_lane <= static_cast<u32>(down) ? piece_of_lane.y : 0);
                for (; k < end; k++) add(k, listed[warp][k][lane]);
                if (down > 0) store_row(walk.y + down - 1, upper.of);
                upper = lower;
                lower = {};
            }
            __syncwarp(); // nobody still reads what will be staged next
        } else {
            const u32 step = together ? 32 * RUN_WARPS : 32;
            for (int cell_row = walk.y + turn.first_row();; cell_row++) {
                const List list(work, grid, item, walk.run, cell_row);
                u32 passed = 0; // samples of the chunks before
                for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
                    const Pieces pieces(work, list, chunk, list.piece(work, chunk), shared_address(places[warp]), lane);
                    const u32 until = min(pieces.size, turn.end - min(turn.end, passed));
                    u32 first = turn.begin - min(turn.begin, passed) + (together ? 32 * warp : 0);
                    passed += pieces.size;
                    Record next = pieces.take(first, until, lane);
                    for (; first < until; first += step) {
                        __syncwarp();
                        stage(next, cell_row - 1);
                        __syncwarp();
                        next = pieces.take(first + step, until, lane);
                        constexpr int AHEAD = 4;
                        const u32 count = min(32u, until - first);
                        for (u32 k = 0; k < count; k += AHEAD) {
                            Real taps[AHEAD];
                            // Beyond the last one come samples of weight zero, of the first query.
#pragma unroll
                            for (int j = 0; j < AHEAD; j++) taps[j] = tap_of(k + j);
#pragma unroll
                            for (int j = 0; j < AHEAD; j++) add(k + j, taps[j]);
                        }
                    }
                }
                if (is_part) break;

                // The upper row has all its samples, and the lower one becomes the upper one.
                const int y = cell_row - 1;
                Sums totals = upper;
                upper = lower;
                lower = {};
                if (y < walk.y) continue;
                if (together) {
#pragma unroll
                    for (int x = 0; x < RUN; x++) listed[warp][x][lane] = totals.of[x];
                    __syncthreads();
#pragma unroll
                    for (int x = 0; x < RUN; x++) {
                        totals.of[x] = listed[0][x][lane];
                        for (u32 w = 1; w < RUN_WARPS; w++) totals.of[x] += listed[w][x][lane];
                    }
                    __syncthreads();
                }
                if (!together || warp == y % RUN_WARPS) store_row(y, totals.of);
                if (y + 1 == walk.y + walk.rows) break;
            }
        }

        if (!is_part) continue;
        Real flaw = 0; // or NaN
#pragma unroll
        for (int x = 0; x < RUN; x++) {
            flaw = fused(upper.of[x], Real(0), fused(lower.of[x], Real(0), flaw));
            listed[warp][x][lane] = upper.of[x];
            listed[warp][RUN + x][lane] = lower.of[x];
        }
        if (flaw != 0) turns[warp].is_flawed = 1;
        if (__syncthreads_or(flaw != 0)) continue;
        for (u32 x = warp; x < 2 * RUN; x += RUN_WARPS) {
            Real total = listed[0][x][lane];
            for (u32 w = 1; w < RUN_WARPS; w++) total += listed[w][x][lane];
            __stcg(turn.part.sums(work) + x / RUN * (Part::SUMS / 2) + place(x % RUN), total);
        }
        if (arrive(work, turn.part)) {
            const PartsOfRows parts(work, grid, item, walk);
            for (int row = warp; row < walk.rows; row += RUN_WARPS) {
                Real totals[RUN];
                add_up(work, turn.part, parts, row, totals, place);
                store_row(walk.y + row, totals);
            }
        }
    }
    if (queue.is_exact) sum_exactly(a, g, work, grids, queue, shared_address(places[warp]), listed[0][0], place);
}
