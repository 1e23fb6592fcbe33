// Backward, grad_value from sorted samples, a lane a channel: any channels, strides and types. See bins.cuh and runs.cuh.
//
// Every pixel of a run meets every sample of its lists, most with weight zero. Should grad_out be infinite or NaN there,
// the sum is NaN: such pixels are computed anew, `careful`ly, exactly as defined.
//
// VALUE: element type; WIDE: see bins.cuh.

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
    __shared__ Real parts[RUN_WARPS][RUN][32];
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
        if (item.row == Item::ALL_ROWS) {
            const u32 size = grid.longest != ANY_LENGTH ? measure(work, grid, item, walk) : 0;
            if (queue.put_off(work, grid, size)) continue;
        }
        const int x0 = walk.run * RUN;
        const u32 step = together ? 32 * RUN_WARPS : 32;
        Sums upper = {}, lower = {};
        for (int cell_row = walk.y;; cell_row++) {
            const List list(work, grid, item, walk.run, cell_row);
            for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
                const Pieces pieces(work, list, chunk, list.piece(work, chunk), shared_address(places[warp]), lane);
                u32 first = together ? 32 * warp : 0;
                Record next = pieces.take(first, lane);
                for (; first < pieces.size; first += step) {
                    __syncwarp();
#pragma unroll
                    for (int x = 0; x < RUN; x++) columns[warp][lane][x] = hat(next.x - (x0 + x));
                    const Real down = next.y - (cell_row - 1);
                    rows[warp][lane][0] = next.weight * (1 - down);
                    rows[warp][lane][1] = next.weight * down;
                    queries[warp][lane] = next.query;
                    __syncwarp();
                    next = pieces.take(first + step, lane);
                    constexpr int AHEAD = 4;
                    const u32 count = min(32u, pieces.size - first);
                    for (u32 k = 0; k < count; k += AHEAD) {
                        Real taps[AHEAD];
                        // Beyond the last one come samples of weight zero, of the first query.
#pragma unroll
                        for (int j = 0; j < AHEAD; j++) {
                            taps[j] = Value::widen(*moved(column, steps<Value::Storage>(queries[warp][k + j], by_query)));
                        }
#pragma unroll
                        for (int j = 0; j < AHEAD; j++) {
                            upper.add(columns[warp][k + j], rows[warp][k + j][0] * taps[j]);
                            lower.add(columns[warp][k + j], rows[warp][k + j][1] * taps[j]);
                        }
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
                for (int x = 0; x < RUN; x++) parts[warp][x][lane] = totals.of[x];
                __syncthreads();
#pragma unroll
                for (int x = 0; x < RUN; x++) {
                    totals.of[x] = parts[0][x][lane];
                    for (u32 w = 1; w < RUN_WARPS; w++) totals.of[x] += parts[w][x][lane];
                }
                __syncthreads();
            }
            if (alive && (!together || warp == y % RUN_WARPS)) {
                auto *const out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] +
                                  m * g.value_strides[2] + channel * g.value_strides[3];
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    const int x = x0 + i;
                    if (x >= grid.width) break;
                    Real total = totals.of[i];
                    if (!is_finite(total)) total = careful(work, grid, item, column, by_query, x, y);
                    const i64 pixel = grid.start + static_cast<i64>(y) * grid.width + x;
                    out[pixel * g.value_strides[1]] = Value::round(total);
                }
            }
            if (y + 1 == walk.y + walk.rows) break;
        }
    }
}
