// Backward, grad_value from sorted samples, a lane a channel: any channels, strides and types. See bins.cuh and runs.cuh.
//
// Every pixel of a run meets every sample of its lists, most with weight zero. Should grad_out be infinite or NaN there,
// the sum is NaN: such pixels, and those beside them, are computed anew, `careful`ly, exactly as defined.
//
// The samples of a walk that has few are looked up and read once, and lie in shared memory while its rows are summed.
//
// VALUE: element type; WIDE: see bins.cuh.

constexpr u32 LISTED = VALUE == F64 ? 16 : 32; // samples of a walk that there is room for

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
    const Item &item = turns[warp].item;
    Queue queue(work, items, turns[warp]);
    while (queue.take(a, work, grids)) {
        const Grid &grid = grids[item.level];
        const u32 plane = work.first_plane + item.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
        const int channel = item.channel + lane;
        const bool alive = channel < a.channels;
        const auto *const column = static_cast<const Value::Storage *>(g.grad_out) + n * g.grad_out_strides[0] +
                                   (m * a.channels + (alive ? channel : 0)) * g.grad_out_strides[2];
        const bool together = queue.together();
        const Walk walk(grid, item);
        // A lane a piece, if there are not too many, ordered by cell rows.
        const u32 pieces_in_all = (walk.rows + 1) * work.chunks;
        const bool few = pieces_in_all <= 32;
        const u32 down_of_lane = work.by_chunks.divide(lane), chunk_of_lane = lane - down_of_lane * work.chunks;
        const List list_of_lane(work, grid, item, walk.run, walk.y + down_of_lane);
        const uint2 piece_of_lane = few && lane < pieces_in_all ? list_of_lane.piece(work, chunk_of_lane) : make_uint2(0, 0);
        u32 size = 0;
        if (item.row == Item::ALL_ROWS) {
            size = few ? __reduce_add_sync(ALL, piece_of_lane.y) : grid.longest != ANY_LENGTH ? measure(work, grid, item, walk) : 0;
            if (queue.put_off(work, grid, size)) continue;
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
        const auto tap_of = [&](u32 k) { return Real(Value::widen(*moved(column, steps<Value::Storage>(queries[warp][k], by_query)))); };
        const auto store_row = [&](const Sums &totals, int y) {
            if (!alive) return;
            auto *const out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] + m * g.value_strides[2] +
                              channel * g.value_strides[3] + (grid.start + static_cast<i64>(y) * grid.width + x0) * g.value_strides[1];
            const int there = min(RUN, grid.width - x0);
            auto *to = out;
            Real sound = 0; // or NaN
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                sound = fused(totals.of[i], Real(0), sound);
                if (i < there) *to = Value::round(totals.of[i]);
                to += g.value_strides[1];
            }
            if (sound == 0) return;
#pragma unroll 1
            for (int i = 0; i < there; i++) {
                out[i * g.value_strides[1]] = Value::round(careful(work, grid, item, column, by_query, x0 + i, y));
            }
        };
        if (!together && few && size <= LISTED) {
            const Pieces pieces(work, list_of_lane, chunk_of_lane, piece_of_lane, shared_address(places[warp]), lane);
            const Record sample = pieces.take(0, lane);
            stage(sample, whole(sample.y));
            __syncwarp();
#pragma unroll 8
            for (u32 k = 0; k < size; k++) listed[warp][k][lane] = tap_of(k);
            u32 k = 0; // its own lane's taps are all that a lane reads
            for (int down = 0; down <= walk.rows; down++) {
                const u32 end = __reduce_add_sync(ALL, down_of_lane <= static_cast<u32>(down) ? piece_of_lane.y : 0);
                for (; k < end; k++) add(k, listed[warp][k][lane]);
                if (down > 0) store_row(upper, walk.y + down - 1);
                upper = lower;
                lower = {};
            }
            __syncwarp(); // nobody still reads what will be staged next
            continue;
        }
        const u32 step = together ? 32 * RUN_WARPS : 32;
        for (int cell_row = walk.y;; cell_row++) {
            const List list(work, grid, item, walk.run, cell_row);
            for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
                const Pieces pieces(work, list, chunk, list.piece(work, chunk), shared_address(places[warp]), lane);
                u32 first = together ? 32 * warp : 0;
                Record next = pieces.take(first, lane);
                for (; first < pieces.size; first += step) {
                    __syncwarp();
                    stage(next, cell_row - 1);
                    __syncwarp();
                    next = pieces.take(first + step, lane);
                    constexpr int AHEAD = 4;
                    const u32 count = min(32u, pieces.size - first);
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
            if (!together || warp == y % RUN_WARPS) store_row(totals, y);
            if (y + 1 == walk.y + walk.rows) break;
        }
    }
}
