// Backward, grad_value from sorted samples, a lane a channel: any channels, strides and types. See bins.cuh and runs.cuh.
//
// Every pixel of a run meets every sample of its list, most with weight zero. Should grad_out be infinite or NaN there,
// the sum is NaN: such pixels are computed anew, `careful`ly, exactly as defined.
//
// VALUE: element type; WIDE: see bins.cuh.

static __device__ __forceinline__ void add(Real (&sums)[RUN], const Real *weights, Real tap) {
#pragma unroll
    for (int x = 0; x < RUN; x++) sums[x] = fused(weights[x], tap, sums[x]);
}

extern "C" __global__ void __launch_bounds__(32 * RUN_WARPS, 6)
    msda_backward_value_channel(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                                const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ __align__(16) Real weights[RUN_WARPS][32][RUN];
    __shared__ u32 queries[RUN_WARPS][32];
    __shared__ Real parts[RUN_WARPS][RUN][32];
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 by_query = g.grad_out_strides[1];
    Queue queue(work);
    Item item;
    while (item_of(queue.take(), a, work, grids, item)) {
        const Grid &grid = grids[item.level];
        const u32 plane = work.first_plane + item.plane, n = plane / a.heads, m = plane - n * a.heads;
        const int channel = item.channel + lane;
        const bool alive = channel < a.channels;
        const auto *const column = static_cast<const Value::Storage *>(g.grad_out) + n * g.grad_out_strides[0] +
                                   (m * a.channels + (alive ? channel : 0)) * g.grad_out_strides[2];
        Lists next_lists(work, grid, item, item.y, lane);
        for (int row = 0; row < item.rows; row++) {
            const int y = item.y + row;
            const Lists lists = next_lists;
            if (row + 1 < item.rows) next_lists = Lists(work, grid, item, y + 1, lane);
            // Each warp its own run, or all of them together through all.
            const bool any_shared = lists.any_shared(lane);
            const u32 last = any_shared ? item.runs : min(warp + 1, item.runs);
            for (u32 r = any_shared ? 0 : warp; r < last; r++) {
                const List list = lists[r];
                const u32 size = list.size();
                const bool together = size > SHARED;
                if (!together && r != warp) continue;
                const int x0 = (item.first_run + r) * RUN;
                Real sums[RUN] = {};
                const u32 step = together ? 32 * RUN_WARPS : 32;
                u32 first = together ? 32 * warp : 0;
                Record next = list[first + lane];
                for (; first < size; first += step) {
                    __syncwarp();
                    const Real by_y = next.weight * hat(next.y - y);
#pragma unroll
                    for (int x = 0; x < RUN; x++) weights[warp][lane][x] = by_y * hat(next.x - (x0 + x));
                    queries[warp][lane] = next.query;
                    __syncwarp();
                    next = list[first + step + lane];
                    constexpr int AHEAD = 4;
                    const u32 count = min(32u, size - first);
                    for (u32 k = 0; k < count; k += AHEAD) {
                        Real taps[AHEAD];
                        // Beyond the last one come samples of weight zero, of the first query.
#pragma unroll
                        for (int j = 0; j < AHEAD; j++) {
                            taps[j] = Value::widen(*moved(column, steps<Value::Storage>(queries[warp][k + j], by_query)));
                        }
#pragma unroll
                        for (int j = 0; j < AHEAD; j++) add(sums, weights[warp][k + j], taps[j]);
                    }
                }
                if (together) {
#pragma unroll
                    for (int x = 0; x < RUN; x++) parts[warp][x][lane] = sums[x];
                    __syncthreads();
#pragma unroll
                    for (int x = 0; x < RUN; x++) {
                        sums[x] = parts[0][x][lane];
                        for (int w = 1; w < RUN_WARPS; w++) sums[x] += parts[w][x][lane];
                    }
                    __syncthreads();
                }
                if (r != warp || !alive) continue;
                auto *const out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] + m * g.value_strides[2] +
                                  channel * g.value_strides[3];
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    const int x = x0 + i;
                    if (x >= grid.width) break;
                    Real total = sums[i];
                    if (!is_finite(total)) total = careful(list, column, by_query, x, y);
                    const i64 pixel = grid.start + static_cast<i64>(y) * grid.width + x;
                    out[pixel * g.value_strides[1]] = Value::round(total);
                }
            }
        }
    }
}
