// Backward, grad_value from sorted samples on tensor cores: 16-bit types, channels a multiple of 32. See bins.cuh,
// runs.cuh.
//
// A warp sums two rows of a run, 16 samples at a time: [2 x 8 pixels x 16 samples] of weights times [16 samples x 32
// channels] of grad_out. An f32 weight is the sum of two 16-bit numbers, multiplied one after the other. Every pixel
// meets every sample, most with weight zero. Limited by instruction issue and the load/store pipe.
//
// Zero times an infinite or NaN grad_out makes a sum NaN: such walks are summed once more, exactly as defined.
//
// VALUE: F16 or BF16. WIDE: see bins.cuh. Channels of grad_out and grad_value lie without gaps, aligned to 16 bytes.

// Of 32 samples: places, and weights in the upper and the lower row; or, if several rows meet them, y and weights.
struct Staged {
    float x[32], upper_or_y[32], lower_or_weight[32];
};

// Batches of 32 samples whose rows of grad_out are in shared memory or on their way there.
constexpr u32 SLOTS = 2;
constexpr u32 SLOT_BYTES = 32 * 2 * BLOCK;

// A power of two that brings the largest weight up to the upper end of the type, and so the digits of all into its range.
static __device__ __forceinline__ float scale_of(u32 largest) {
    if (VALUE != F16 || largest == 0) return 1.0f;
    const int exponent = static_cast<int>(largest >> 23) - 127;
    // Never down: one huge weight would take the digits of all others. It overflows, and its walk is summed exactly.
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

// Eight pixels of 32 channels as tensor cores have them: a lane two neighbouring channels of its pixel in each of four matrices.
// They lie in shared memory less crowded than eight to a line.
constexpr u32 FINISHED = 80; // bytes of a pixel there
static __device__ __forceinline__ void store_pixels(u32 address, const u32 (&words)[4], u32 lane) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address + lane % 8 * FINISHED + lane / 8 * 16),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#else
#pragma unroll
    for (u32 i = 0; i < 4; i++) store_shared_word(address + lane / 4 * FINISHED + i * 16 + lane % 4 * 4, words[i]);
#endif
}

// How many bytes come before the item's channels in grad_out and, of a pixel, in grad_value. What they need is read when it is
// needed: registers are scarce.
static __device__ __forceinline__ i64 rows_before(const Arguments &a, const Gradients &g, const Work &work, const Item &item) {
    const u32 plane = work.first_plane + item.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
    return (n * g.grad_out_strides[0] + m * a.channels + item.channel) * static_cast<i64>(sizeof(Value::Storage));
}
static __device__ __forceinline__ i64 bytes_before(const Arguments &a, const Gradients &g, const Work &work, const Grid &grid,
                                                   const Item &item, int x, int y) {
    const u32 plane = work.first_plane + item.plane, n = work.by_heads.divide(plane), m = plane - n * a.heads;
    const i64 pixel = grid.start + static_cast<i64>(y) * grid.width + x;
    return (n * g.value_strides[0] + pixel * g.value_strides[1] + m * g.value_strides[2] + item.channel) *
           static_cast<i64>(sizeof(Value::Storage));
}

// What a warp has in shared memory: rows of grad_out on their way, or sums; what is known of their samples; a finished row of a run.
struct __align__(128) OfWarp {
    char rows[SLOTS][SLOT_BYTES];
    Staged staged[SLOTS];
    char finished[RUN * FINISHED];
};

extern "C" __global__ void __launch_bounds__(32 * RUN_WARPS, 6)
    msda_backward_value_matrix(const __grid_constant__ Arguments a, const __grid_constant__ Gradients g,
                               const __grid_constant__ Work work) {
    __shared__ Grid grids[LEVEL_CAPACITY];
    __shared__ OfWarp of_warps[RUN_WARPS];
    __shared__ u32 places[RUN_WARPS][32], items[2];
    __shared__ Queue::Turn turns[RUN_WARPS];
    const bool tiled = lay_out(a, work, grids);
    if (tiled) deal_out(a, work, grids, items, true);
    wait_for_previous(); // until all is sorted
    if (!tiled) return;

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, in_group = lane % 4;
    // Rows lie so that eight of them, 16 bytes each, are in different banks. Where a lane writes, and where it reads.
    const u32 rows_at = shared_address(of_warps[warp].rows), staged_at = rows_at + sizeof(of_warps[warp].rows);
    const u32 written = rows_at + group * 64 + (in_group ^ group / 2) * 16;
    const u32 read = rows_at + lane % 16 * 64 + (lane / 16 ^ lane % 8 / 2) * 16;
    const u32 finished_at = staged_at + sizeof(of_warps[warp].staged);
    const i64 by_query = g.grad_out_strides[1];
    const Queue::Turn &turn = turns[warp];
    const Item &item = turn.item;
    Queue queue(work, items, turns[warp]);
    while (queue.take(a, work, grids) && !queue.is_exact) {
        const Grid &grid = grids[item.level];
        const bool together = queue.together(), is_part = turn.is_part();
        const Walk walk(grid, item);
        // A lane a piece, if there are not too many, ordered by cell rows.
        const u32 pieces_in_all = (walk.rows + 1) * work.chunks;
        const bool few = pieces_in_all <= 32;
        const u32 down = work.by_chunks.divide(lane), lane_chunk = lane - down * work.chunks;
        const List cell_row_of_lane(work, grid, item, walk.run, walk.y + down);
        const uint2 piece_of_lane = few && lane < pieces_in_all ? cell_row_of_lane.piece(work, lane_chunk) : make_uint2(0, 0);
        const float scale = scale_of(largest_of(work, a, item, lane));
        u32 size = 0;
        if (turn.phase != Queue::PUT_OFF) {
            size = few ? __reduce_add_sync(ALL, piece_of_lane.y) : measure(work, grid, item, walk);
            if (queue.put_off(work, grid, walk, size)) continue;
        }
        const char *to_rows = static_cast<const char *>(g.grad_out) + 16 * in_group + rows_before(a, g, work, item);
        asm("" : "+l"(to_rows)); // not to be put together again and again
        const int x = walk.run * RUN + group;

        // Where the lane has eight channels of its pixel of row y, if the row has such a pixel.
        const auto pixel_at = [&](int y) { return static_cast<char *>(g.value) + bytes_before(a, g, work, grid, item, x, y) + 16 * in_group; };
        // Where a row of the walk goes, and its sums, which are to be multiplied by `by`.
        const auto store_row = [&](char *to, const float (&totals)[8], float by) {
            u32 words[4];
            float flaw = 0; // or NaN
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float left = totals[2 * i] * by, right = totals[2 * i + 1] * by;
                flaw = __fmaf_rn(left, 0.0f, __fmaf_rn(right, 0.0f, flaw));
                words[i] = Value::round(left, right);
            }
            if (flaw != 0) turns[warp].is_flawed = 1;
            __syncwarp(); // nobody still reads the last one
            store_pixels(finished_at, words, lane);
            __syncwarp();
            if (x < grid.width) store_vector(to, load_shared(finished_at + group * FINISHED + in_group * 16));
        };
        // Rows of grad_out of 32 samples, a lane each, to a slot; those beyond the `count`th become zero.
        const auto copy_rows = [&](u32 slot, u32 query, int count) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 from = __shfl_sync(ALL, query, 8 * i + group);
                copy_async<16>(written + slot * SLOT_BYTES + i * 512, to_rows + steps<Value::Storage>(from, by_query),
                               static_cast<int>(8 * i + group) < count ? 16 : 0);
            }
        };
        // Adds 16 samples: weights in the upper and the lower row, times what grad_out has of them. `listed`: whether these
        // weights are still to be found, for `row` and the next.
        const auto add = [&](float (&sums)[4][4], u32 slot, u32 half, float column, bool listed, float row) {
            u32 coarse[4], fine[4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 at = staged_at + slot * sizeof(Staged) + 64 * half + 32 * i + 8 * in_group;
                const float2 x = load_two(at);
                float2 upper = load_two(at + 128), lower = load_two(at + 256);
                if (listed) {
                    const float2 y = upper, weight = lower;
                    upper = {weight.x * hat(y.x - row), weight.y * hat(y.y - row)};
                    lower = {weight.x * hat(y.x - row - 1), weight.y * hat(y.y - row - 1)};
                }
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

        const float column = static_cast<float>(x);
        if (!together && few && size <= SPARSE) {
            // All samples of the walk as one list, which then every two rows meet.
            const Pieces pieces(work, cell_row_of_lane, lane_chunk, piece_of_lane, shared_address(places[warp]), lane);
#pragma unroll
            for (u32 slot = 0; slot < SLOTS; slot++) {
                if (32 * slot >= size) break;
                const Record sample = pieces.take(32 * slot, size, lane);
                const u32 to = staged_at + slot * sizeof(Staged) + 4 * lane;
                store_shared_word(to, __float_as_uint(sample.x));
                store_shared_word(to + 128, __float_as_uint(sample.y));
                store_shared_word(to + 256, __float_as_uint(sample.weight * scale));
                copy_rows(slot, sample.query, size - 32 * slot);
            }
            wait_for_copies();
            __syncwarp();
            char *to = pixel_at(walk.y);
            const i64 next_row = grid.width * g.value_strides[1] * static_cast<i64>(sizeof(Value::Storage));
            for (int row = 0; row < walk.rows; row += 2) {
                float sums[4][4] = {};
                for (u32 first = 0; first < size; first += 16) {
                    add(sums, first / 32, first / 16 % 2, column, true, static_cast<float>(walk.y + row));
                }
#pragma unroll
                for (int down = 0; down < 2; down++) {
                    float totals[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) totals[i] = sums[i / 2][2 * down + i % 2];
                    if (row + down < walk.rows) store_row(to, totals, inverse(scale));
                    to += next_row;
                }
            }
            __syncwarp(); // nobody still reads what will be staged next
        } else {
            const u32 step = together ? 32 * RUN_WARPS : 32;
            float sums[4][4] = {}; // of two channels in the upper row and two in the lower one, in each of four matrices
            const int first_row = walk.y + turn.first_row();
            uint2 coming_piece = List(work, grid, item, walk.run, first_row).piece(work, lane);
            for (int cell_row = first_row;; cell_row++) {
                const List list(work, grid, item, walk.run, cell_row);
                const float upper_row = static_cast<float>(cell_row - 1);
                uint2 piece = coming_piece;
                if (cell_row < walk.y + walk.rows && !is_part) {
                    coming_piece = List(work, grid, item, walk.run, cell_row + 1).piece(work, lane);
                }
                u32 passed = 0; // samples of the chunks before
                for (u32 chunk = lane; chunk - lane < work.chunks; chunk += 32) {
                    if (chunk > lane) piece = list.piece(work, chunk);
                    const Pieces pieces(work, list, chunk, piece, shared_address(places[warp]), lane);
                    const u32 until = min(pieces.size, turn.end - min(turn.end, passed));
                    // While one batch of 32 samples is multiplied, the rows of grad_out of the next are on their way, and
                    // the samples of the one after.
                    u32 first = turn.begin - min(turn.begin, passed) + (together ? 32 * warp : 0), coming = first, slot = 0, filled = 0;
                    passed += pieces.size;
                    Record next = pieces.take(coming, until, lane);
                    const auto ask = [&] {
                        if (coming < until) {
                            const u32 to = staged_at + filled * sizeof(Staged) + 4 * lane;
                            const float lower = next.y - upper_row, weight = next.weight * scale;
                            store_shared_word(to, __float_as_uint(next.x));
                            store_shared_word(to + 128, __float_as_uint(weight * (1 - lower)));
                            store_shared_word(to + 256, __float_as_uint(weight * lower));
                            copy_rows(filled, next.query, until - coming);
                            coming += step;
                            next = pieces.take(coming, until, lane);
                            filled = (filled + 1) % SLOTS;
                        }
                        end_of_batch();
                    };
                    ask();
                    for (; first < until; first += step) {
                        ask();
                        wait_for_batch<SLOTS - 1>();
                        __syncwarp();
                        add(sums, slot, 0, column, false, 0);
                        if (first + 16 < until) add(sums, slot, 1, column, false, 0);
                        __syncwarp();
                        slot = (slot + 1) % SLOTS;
                    }
                }
                if (is_part) break;

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
                        for (int i = 0; i < 8; i++) reinterpret_cast<float *>(of_warps[warp].rows)[32 * i + lane] = totals[i];
                        __syncthreads();
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            totals[i] = reinterpret_cast<const float *>(of_warps[0].rows)[32 * i + lane];
#pragma unroll
                            for (u32 w = 1; w < RUN_WARPS; w++) {
                                totals[i] += reinterpret_cast<const float *>(of_warps[w].rows)[32 * i + lane];
                            }
                        }
                        __syncthreads();
                    }
                    if (!together || warp == y % RUN_WARPS) store_row(pixel_at(y), totals, inverse(scale));
                    if (y + 1 == walk.y + walk.rows) break;
                }
            }
            if (is_part) {
                // Rows of grad_out are used up: where they lay is room for the sums of two rows.
                float *const own = reinterpret_cast<float *>(of_warps[warp].rows) + lane;
                float flaw = 0; // or NaN
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const float sum = sums[i % 8 / 2][i / 8 * 2 + i % 2] * inverse(scale);
                    flaw = __fmaf_rn(sum, 0.0f, flaw);
                    own[32 * i] = sum;
                }
                if (flaw != 0) turns[warp].is_flawed = 1;
            }
        }

        if (!turn.is_part()) continue;
        __syncwarp();
        if (__syncthreads_or(turn.is_flawed)) continue;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = 4 * warp + i;
            float total = reinterpret_cast<const float *>(of_warps[0].rows)[32 * at + lane];
#pragma unroll
            for (u32 w = 1; w < RUN_WARPS; w++) total += reinterpret_cast<const float *>(of_warps[w].rows)[32 * at + lane];
            __stcg(turn.part.sums(work) + at / 8 * (Part::SUMS / 2) + lane * 8 + at % 8, total);
        }
        if (arrive(work, turn.part)) {
            const PartsOfRows parts(work, grid, item, walk);
            for (int row = warp; row < walk.rows; row += RUN_WARPS) {
                float totals[8];
                add_up(work, turn.part, parts, row, totals, [&](u32 i) { return lane * 8 + i; });
                store_row(pixel_at(walk.y + row), totals, 1.0f);
            }
        }
    }
    // Lane 4 g + t has of pixel g channels 2t and 2t + 1 of each eight.
    const auto place = [&](u32 x) { return (4 * x + lane / 2 % 4) * 8 + lane / 8 * 2 + lane % 2; };
    static_assert(sizeof(of_warps) >= RUN_WARPS * 2 * RUN * 32 * sizeof(float), "there is room for sums");
    auto *const room = reinterpret_cast<float *>(of_warps);
    if (queue.is_exact) sum_exactly(a, g, work, grids, queue, shared_address(places[warp]), room, place);
}
