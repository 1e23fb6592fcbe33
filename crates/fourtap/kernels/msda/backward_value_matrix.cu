// Backward, grad_value from sorted samples on tensor cores: 16-bit types, channels a multiple of 32. See bins.cuh and
// runs.cuh.
//
// A warp sums two rows of a run, 16 samples at a time: [2 x 8 pixels x 16 samples] of weights times [16 samples x 32
// channels] of grad_out. Weights are f32: each is the sum of two 16-bit numbers, multiplied one after the other.
//
// Every pixel of a run meets every sample of its lists, most with weight zero. Should grad_out be infinite or NaN there,
// the sum is NaN: such pixels are computed anew, `careful`ly, exactly as defined.
//
// VALUE: element type, F16 or BF16; WIDE: see bins.cuh. In grad_out and grad_value channels lie without gaps, aligned to
// 16 bytes.

// Of 32 samples: places, and weights in the upper and the lower row.
struct Staged {
    float x[32], upper[32], lower[32];
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
// Of all chunks. All lanes of a warp call it.
static __device__ __forceinline__ u32 largest_of(const Work &work, const Arguments &a, const Item &item, u32 lane) {
    const u32 *const of_chunks = work.largest + (static_cast<u64>(item.plane) * a.levels + item.level) * work.chunks;
    u32 largest = 0;
    for (u32 chunk = lane; chunk < work.chunks; chunk += 32) largest = max(largest, of_chunks[chunk]);
    return __reduce_max_sync(ALL, largest);
}
// Of a power of two, exactly.
static __device__ __forceinline__ float inverse(float scale) { return __int_as_float((254 << 23) - __float_as_int(scale)); }

static __device__ __forceinline__ float2 load_two(u32 address) {
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
    return two;
}

extern "C" __global__ void __launch_bounds__(32 * RUN_WARPS, 7)
    msda_backward_value_matrix(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                               const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ Item item;
    __shared__ __align__(16) Staged staged[RUN_WARPS][SLOTS];
    __shared__ __align__(128) char rows[RUN_WARPS][SLOTS][SLOT_BYTES];
    __shared__ u32 places[RUN_WARPS][32], sizes[RUN_WARPS];
    if (!lay_out(a, work, grids)) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, in_group = lane % 4;
    // Rows lie so that eight of them, 16 bytes each, are in different banks. Where a lane writes, and where it reads.
    const u32 rows_at = shared_address(rows[warp]), staged_at = shared_address(staged[warp]);
    const u32 written = rows_at + group * 64 + (in_group ^ group / 2) * 16;
    const u32 read = rows_at + lane % 16 * 64 + (lane / 16 ^ lane % 8 / 2) * 16;
    const i64 by_query = g.grad_out_strides[1];
    Queue queue(work);
    while (queue.take(a, work, grids, item)) {
        const Grid &grid = grids[item.level];
        const float scale = scale_of(largest_of(work, a, item, lane));
        if (grid.longest > 0) measure(work, grid, item, sizes);
        const u32 plane = work.first_plane + item.plane, n = plane / a.heads, m = plane - n * a.heads;
        const char *to_rows = reinterpret_cast<const char *>(static_cast<const Value::Storage *>(g.grad_out) +
                                                             n * g.grad_out_strides[0] + m * a.channels + item.channel) +
                              16 * in_group;
        asm("" : "+l"(to_rows)); // not to be put together again and again

        // Each warp its own walk; those of many samples all warps together.
        for (u32 w = 0; w < item.walks; w++) {
            const bool together = grid.longest == 0 || sizes[w] > grid.longest;
            if (!together && w != warp) continue;
            const Walk walk(grid, item.first_walk + w);
            const u32 step = together ? 32 * RUN_WARPS : 32;
            const float column = static_cast<float>(walk.run * RUN + group);
            float sums[4][4] = {}; // of two channels in the upper row and two in the lower one, in each of four matrices
            uint2 coming_piece = List(work, grid, item, walk.run, walk.y).piece(work, lane);
            for (int cell_row = walk.y;; cell_row++) {
                const List list(work, grid, item, walk.run, cell_row);
                const float upper_row = static_cast<float>(cell_row - 1);
                uint2 piece = coming_piece;
                if (cell_row < walk.y + walk.rows) {
                    coming_piece = List(work, grid, item, walk.run, cell_row + 1).piece(work, lane);
                }
                for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
                    if (chunk > lane) piece = list.piece(work, chunk);
                    const Pieces pieces(work, list, chunk, piece, shared_address(places[warp]), lane);
                    // While one batch of 32 samples is multiplied, the rows of grad_out of the next are on their way, and
                    // the samples of the one after.
                    u32 first = together ? 32 * warp : 0, coming = first, slot = 0, filled = 0;
                    Record next = pieces.take(coming, lane);
                    const auto ask = [&] {
                        if (coming < pieces.size) {
                            const u32 to = staged_at + filled * sizeof(Staged) + 4 * lane;
                            const float lower = next.y - upper_row, weight = next.weight * scale;
                            store_shared_word(to, __float_as_uint(next.x));
                            store_shared_word(to + 128, __float_as_uint(weight * (1 - lower)));
                            store_shared_word(to + 256, __float_as_uint(weight * lower));
                            const int rest = pieces.size - coming - group; // rows beyond become zero
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                const u32 query = __shfl_sync(ALL, next.query, 8 * i + group);
                                copy_async<16>(written + filled * SLOT_BYTES + i * 512,
                                               to_rows + steps<Value::Storage>(query, by_query), 8 * i < rest ? 16 : 0);
                            }
                            coming += step;
                            next = pieces.take(coming, lane);
                            filled = (filled + 1) % SLOTS;
                        }
                        end_of_batch();
                    };
                    const auto multiply = [&](u32 half) {
                        u32 coarse[4], fine[4];
#pragma unroll
                        for (u32 i = 0; i < 2; i++) {
                            const u32 at = staged_at + slot * sizeof(Staged) + 64 * half + 32 * i + 8 * in_group;
                            const float2 x = load_two(at), upper = load_two(at + 128), lower = load_two(at + 256);
                            const float left = hat(x.x - column), right = hat(x.y - column);
                            split<VALUE>(upper.x * left, upper.y * right, coarse[2 * i], fine[2 * i]);
                            split<VALUE>(lower.x * left, lower.y * right, coarse[2 * i + 1], fine[2 * i + 1]);
                        }
                        const u32 from = read + slot * SLOT_BYTES + half * 1024;
#pragma unroll
                        for (u32 i = 0; i < 4; i += 2) {
                            u32 b[4];
                            load_transposed(b, from ^ i * 16);
#pragma unroll
                            for (u32 j = 0; j < 2; j++) {
                                float(&to)[4] = sums[i + j];
                                multiply_add<VALUE>(to, coarse[0], coarse[1], coarse[2], coarse[3], b[2 * j], b[2 * j + 1]);
                                multiply_add<VALUE>(to, fine[0], fine[1], fine[2], fine[3], b[2 * j], b[2 * j + 1]);
                            }
                        }
                    };
                    ask();
                    for (; first < pieces.size; first += step) {
                        ask();
                        wait_for_batch<SLOTS - 1>();
                        __syncwarp();
                        multiply(0);
                        if (first + 16 < pieces.size) multiply(1);
                        __syncwarp();
                        slot = (slot + 1) % SLOTS;
                    }
                }

                // The upper row has all its samples, and the lower one becomes the upper one.
                const int y = cell_row - 1;
                float totals[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    totals[i] = sums[i / 2][i % 2];
                    sums[i / 2][i % 2] = sums[i / 2][2 + i % 2];
                    sums[i / 2][2 + i % 2] = 0;
                }
                if (y >= walk.y) {
                    // Rows of grad_out are used up: where they lay is room.
                    if (together) {
#pragma unroll
                        for (int i = 0; i < 8; i++) reinterpret_cast<float *>(rows[warp])[32 * i + lane] = totals[i];
                        __syncthreads();
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            totals[i] = reinterpret_cast<const float *>(rows[0])[32 * i + lane];
#pragma unroll
                            for (u32 w = 1; w < RUN_WARPS; w++) {
                                totals[i] += reinterpret_cast<const float *>(rows[w])[32 * i + lane];
                            }
                        }
                        __syncthreads();
                    }
                    // A lane has two channels in each of four matrices; it stores eight neighbours.
                    if (!together || warp == y % RUN_WARPS) {
                        u32 unsound = 0;
                        u32 *const words = reinterpret_cast<u32 *>(rows[warp]);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const float left = totals[2 * i] * inverse(scale), right = totals[2 * i + 1] * inverse(scale);
                            unsound |= !is_finite(left) || !is_finite(right);
                            words[group * 20 + 4 * i + in_group] = Value::round(left, right);
                        }
                        unsound = __ballot_sync(ALL, unsound) >> 4 * group & 0xf;
                        __syncwarp();
                        const int x = walk.run * RUN + group;
                        const i64 pixel = grid.start + static_cast<i64>(y) * grid.width + x;
                        const i64 channel = item.channel + 8 * in_group;
                        auto *const out = static_cast<Value::Storage *>(g.value) + n * g.value_strides[0] +
                                          pixel * g.value_strides[1] + m * g.value_strides[2] + channel;
                        if (x < grid.width) {
                            if (!unsound) {
                                store_vector(reinterpret_cast<char *>(out),
                                             *reinterpret_cast<const Vector *>(&words[group * 20 + 4 * in_group]));
                            } else {
                                const auto *const grad_out = reinterpret_cast<const Value::Storage *>(to_rows);
#pragma unroll 1
                                for (int i = 0; i < 8; i++) {
                                    out[i] = Value::round(careful(work, grid, item, grad_out + i, by_query, x, y));
                                }
                            }
                        }
                        __syncwarp(); // nobody still reads what rows will be copied over
                    }
                    if (y + 1 == walk.y + walk.rows) break;
                }
            }
        }
    }
}
