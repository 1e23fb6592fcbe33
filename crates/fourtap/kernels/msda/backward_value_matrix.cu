// Backward, grad_value from sorted samples on tensor cores: 16-bit types, channels a multiple of 32. See bins.cuh and
// runs.cuh.
//
// A warp sums a run, 16 samples at a time: [8 pixels x 16 samples] of weights times [16 samples x 32 channels] of
// grad_out. Weights are f32; as the sum of two 16-bit numbers they take the 16 rows a tensor core has for the 8 pixels.
//
// Every pixel of a run meets every sample of its list, most with weight zero. Should grad_out be infinite or NaN there,
// the sum is NaN: such pixels are computed anew, `careful`ly, exactly as defined.
//
// VALUE: element type, F16 or BF16; WIDE: see bins.cuh. In grad_out and grad_value channels lie without gaps, aligned to
// 16 bytes.

struct Staged {
    float x, weight; // from the first pixel of the run; the weight in its row
};

// Batches of 32 samples whose rows of grad_out are in shared memory or on their way there.
constexpr u32 SLOTS = 2;
constexpr u32 SLOT_BYTES = 32 * 2 * BLOCK;

// A power of two that brings the largest weight up to the upper end of the type, and so the digits of all into its range.
static __device__ __forceinline__ float scale_of(u32 largest) {
    if (VALUE != F16 || largest == 0) return 1.0f;
    const int exponent = static_cast<int>(largest >> 23) - 127;
    // Never down: one huge weight would take the digits of all others. It overflows, and its pixels are computed carefully.
    return __int_as_float((127 + max(0, min(110, 14 - exponent))) << 23);
}
// Of a power of two, exactly.
static __device__ __forceinline__ float inverse(float scale) { return __int_as_float((254 << 23) - __float_as_int(scale)); }

extern "C" __global__ void __launch_bounds__(32 * RUN_WARPS, 8)
    msda_backward_value_matrix(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                               const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ __align__(16) Staged staged[RUN_WARPS][SLOTS][32];
    __shared__ __align__(128) char rows[RUN_WARPS][SLOTS][SLOT_BYTES];
    __shared__ __align__(16) float parts[RUN_WARPS][8][32];
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, in_group = lane % 4;
    // Rows lie so that eight of them, 16 bytes each, are in different banks. Where a lane writes, and where it reads.
    const u32 rows_at = shared_address(rows[warp]);
    const u32 written = rows_at + group * 64 + (in_group ^ group / 2) * 16;
    const u32 read = rows_at + lane % 16 * 64 + (lane / 16 ^ lane % 8 / 2) * 16;
    const i64 by_query = g.grad_out_strides[1];
    Queue queue(work);
    Item item;
    while (item_of(queue.take(), a, work, grids, item)) {
        const Grid &grid = grids[item.level];
        const u32 plane = work.first_plane + item.plane, n = plane / a.heads, m = plane - n * a.heads;
        const u32 channel = item.channel + 8 * in_group;
        const auto *const grad_out = static_cast<const Value::Storage *>(g.grad_out) + n * g.grad_out_strides[0] +
                                     m * a.channels + channel;
        const char *const to_rows = reinterpret_cast<const char *>(grad_out - channel + item.channel) + 16 * in_group;
        const float scale = scale_of(work.largest[item.plane * a.levels + item.level]);

        Lists next_lists(work, grid, item, item.y, lane);
        for (int row = 0; row < item.rows; row++) {
            const int y = item.y + row;
            const Lists lists = next_lists;
            if (row + 1 < item.rows) next_lists = Lists(work, grid, item, y + 1, lane);
            // Each warp its own run, or all of them together through all.
            const bool any_shared = lists.any_shared(lane);
            const u32 last = any_shared ? item.runs : min(warp + 1, item.runs);
            for (u32 r = any_shared ? 0 : warp; r < last; r++) {
                const u32 run = item.first_run + r;
                const List list = lists[r];
                const u32 size = list.size();
                const bool together = size > SHARED;
                if (!together && r != warp) continue;
                const float x0 = static_cast<float>(run * RUN), center = static_cast<float>(y);
                float sums[4][4] = {};

                // While one batch of 32 samples is multiplied, the rows of grad_out of the next are on their way, and the
                // samples of the one after.
                const u32 step = together ? 32 * RUN_WARPS : 32;
                u32 first = together ? 32 * warp : 0, coming = first, slot = 0, filled = 0;
                Record next = list[coming + lane];
                const auto ask = [&] {
                    if (coming < size) {
                        staged[warp][filled][lane] = {next.x - x0, next.weight * scale * hat(next.y - center)};
#pragma unroll
                        for (u32 i = 0; i < 4; i++) {
                            const u32 row = 8 * i + group, query = __shfl_sync(ALL, next.query, row);
                            copy_async<16>(written + filled * SLOT_BYTES + i * 512, to_rows + steps<Value::Storage>(query, by_query),
                                           coming + row < size ? 16 : 0);
                        }
                        coming += step;
                        next = list[coming + lane];
                        filled = (filled + 1) % SLOTS;
                    }
                    end_of_batch();
                };
                const auto multiply = [&](u32 half) {
                    const Staged *const at = staged[warp][slot] + 16 * half;
                    u32 coarse[2], fine[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float4 two = *reinterpret_cast<const float4 *>(&at[8 * i + 2 * in_group]);
                        split<VALUE>(two.y * hat(two.x - group), two.w * hat(two.z - group), coarse[i], fine[i]);
                    }
                    const u32 from = read + slot * SLOT_BYTES + half * 1024;
#pragma unroll
                    for (u32 i = 0; i < 4; i += 2) {
                        u32 b[4];
                        load_transposed(b, from ^ i * 16);
                        multiply_add<VALUE>(sums[i], coarse[0], fine[0], coarse[1], fine[1], b[0], b[1]);
                        multiply_add<VALUE>(sums[i + 1], coarse[0], fine[0], coarse[1], fine[1], b[2], b[3]);
                    }
                };
                ask();
                for (; first < size; first += step) {
                    ask();
                    wait_for_batch<SLOTS - 1>();
                    __syncwarp();
                    multiply(0);
                    if (first + 16 < size) multiply(1);
                    __syncwarp();
                    slot = (slot + 1) % SLOTS;
                }

                float totals[8];
#pragma unroll
                for (int i = 0; i < 8; i++) totals[i] = sums[i / 2][i % 2] + sums[i / 2][2 + i % 2];
                __syncwarp(); // nobody still reads what was there
                if (together) {
#pragma unroll
                    for (int i = 0; i < 8; i++) parts[warp][i][lane] = totals[i];
                    __syncthreads();
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        totals[i] = parts[0][i][lane];
#pragma unroll
                        for (int w = 1; w < RUN_WARPS; w++) totals[i] += parts[w][i][lane];
                    }
                    __syncthreads();
                }
                const int x = run * RUN + group;
                if (r != warp) continue;
                // A lane has two channels in each of four matrices; it stores eight neighbours.
                u32 unsound = 0;
                u32 *const words = reinterpret_cast<u32 *>(parts[warp]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float left = totals[2 * i] * inverse(scale), right = totals[2 * i + 1] * inverse(scale);
                    unsound |= !is_finite(left) || !is_finite(right);
                    words[group * 20 + 4 * i + in_group] = Value::round(left, right);
                }
                unsound = __ballot_sync(ALL, unsound) >> 4 * group & 0xf;
                __syncwarp();
                if (x >= grid.width) continue;
                const i64 pixel = grid.start + static_cast<i64>(y) * grid.width + x;
                auto *const out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] +
                                  pixel * g.value_strides[1] + m * g.value_strides[2] + channel;
                if (!unsound) {
                    store_vector(reinterpret_cast<char *>(out), *reinterpret_cast<const Vector *>(&words[group * 20 + 4 * in_group]));
                } else {
#pragma unroll 1
                    for (int i = 0; i < 8; i++) {
                        out[i] = Value::round(careful(list, grad_out + i, by_query, x, y));
                    }
                }
            }
        }
    }
}
