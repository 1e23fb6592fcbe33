// A19, dropping: samples that weigh less than THRESHOLD thousandths of the heaviest of a row's piece are not read.
//
// A group of CHANNELS / 8 lanes takes a row, a lane 16 bytes of a pixel. Up to PIECE samples at a time: the lanes work
// out what each weighs, attention weight and what zero padding leaves of it, and line up those that stay in shared
// memory; then each group reads as many as it has. Of 32 softmax weights of normal logits a fifth falls under 50
// thousandths, at an error of 6e-2. But a warp takes as long as its slowest group: should save a fifth of the loads and
// a twentieth of the instructions.
//
// With more than 32 samples a row the threshold is lowered in proportion, since many small weights add up.
//
// THREADS of a block, RESIDENT of a multiprocessor; GROUP: lanes of a row; PER_LANE: samples a lane works out; HEADS:
// M; NARROW: all levels are one pixel wide.

constexpr int PIECE = GROUP * PER_LANE;
constexpr u32 PIXEL_UNITS = HEADS * VECTORS; // of 16 bytes, from a pixel to the next
constexpr float LEAST = THRESHOLD * 0.001f * (SAMPLES > 32 ? 32.0f / SAMPLES : 1.0f);

// x and y: the upper and the lower pair's place, in units; z and w: their weights, in f16. Weights are at most 1 by
// now.
__device__ __forceinline__ Words record_of(const Axis &x, const Axis &y, float weight, int4 level, u32 pixels) {
    const float lower = weight * y.second, upper = weight - lower;
    const u32 pixel = level.z + y.first * level.x + x.first;
    u32 first = pixel;
    float second = x.second;
    if (!NARROW) {
        // Right of a level one pixel wide there may be no pixel at all: take the pair that ends with this one.
        first = min(pixel, pixels - 2 - level.w);
        second += static_cast<float>(pixel - first);
    }
    const float right[2] = {upper * second, lower * second};
    return {first * PIXEL_UNITS, (first + level.w) * PIXEL_UNITS, rounded(upper - right[0], right[0]),
            rounded(lower - right[1], right[1])};
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    ladder_a19_drop(const __grid_constant__ Problem p) {
    __shared__ __align__(1024) Words records[WARPS][32 * PER_LANE];
    __shared__ int4 levels[LEVELS];
    if (threadIdx.x < LEVELS) levels[threadIdx.x] = level_of(p, threadIdx.x);
    __syncthreads();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / GROUP, in_group = lane % GROUP;
    const u32 first_record = shared_address(records[warp]);
    const u32 row = (blockIdx.x * WARPS + warp) * GROUPS + group, rows = row_count(p);
    const char *pixels = value_of_row(p, min(row, rows - 1)) + in_group * 16;
    asm("" : "+l"(pixels)); // one register pair, not a sum to be repeated at each load
    const u64 first_sample = static_cast<u64>(row) * SAMPLES;
    // In each slot the groups' order is turned another way: lanes that write neighbouring slots meet no bank twice.
    const auto record_in = [&](u32 slot) {
        return first_record + (slot * GROUPS + ((group ^ slot) & (GROUPS - 1))) * 16;
    };
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int piece = 0; piece < SAMPLES; piece += PIECE) {
        float2 locations[PER_LANE];
        float weights[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int sample = piece + i * GROUP + in_group;
            const bool there = row < rows && sample < SAMPLES;
            locations[i] = there ? __ldcs(p.locations + first_sample + sample) : float2{0.0f, 0.0f};
            weights[i] = there ? __ldcs(p.weights + first_sample + sample) : 0.0f;
        }
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int4 level = levels[min((piece + i * GROUP + in_group) / POINTS, LEVELS - 1)];
            weights[i] *= axis_of(locations[i].x, level.x).inside * axis_of(locations[i].y, level.y).inside;
            largest = fmaxf(largest, fabsf(weights[i]));
        }
#pragma unroll
        for (int other = 1; other < GROUP; other *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
        // Below this, results are zero in f16, and its inverse would be infinite.
        const float inverse = largest > 1e-30f ? 1.0f / largest : 0.0f;
        u32 count = 0;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int4 level = levels[min((piece + i * GROUP + in_group) / POINTS, LEVELS - 1)];
            const float weight = weights[i] * inverse;
            const bool stays = weight != 0.0f && fabsf(weight) >= LEAST;
            const u32 all = __ballot_sync(ALL, stays) >> group * GROUP & (ALL >> (32 - GROUP));
            if (stays) {
                const Axis x = axis_of(locations[i].x, level.x), y = axis_of(locations[i].y, level.y);
                const u32 before = __popc(all & ((1u << in_group) - 1));
                store_shared(record_in(count + before), record_of(x, y, weight, level, p.pixels));
            }
            count += __popc(all);
        }
        __syncwarp();
        Words taps[2][4];
        float by[2][4], part[VECTOR] = {};
        const auto ask = [&](u32 step, int to) {
            if (step >= count) return;
            const Words record = load_shared(record_in(step));
            const char *upper = pixels + static_cast<u64>(record.x) * 16;
            const char *lower = pixels + static_cast<u64>(record.y) * 16;
            taps[to][0] = load(upper);
            taps[to][1] = load(upper + (NARROW ? 0 : PIXEL_UNITS * 16));
            taps[to][2] = load(lower);
            taps[to][3] = load(lower + (NARROW ? 0 : PIXEL_UNITS * 16));
            widen(record.z, by[to][0], by[to][1]);
            widen(record.w, by[to][2], by[to][3]);
        };
        ask(0, 0);
#pragma unroll 1
        for (u32 step = 0; step < count; step += 2) {
            ask(step + 1, 1);
#pragma unroll
            for (int tap = 0; tap < 4; tap++) add(part, taps[0][tap], by[0][tap]);
            if (step + 1 >= count) break;
            ask(step + 2, 0);
#pragma unroll
            for (int tap = 0; tap < 4; tap++) add(part, taps[1][tap], by[1][tap]);
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sums[i] = __fmaf_rn(largest, part[i], sums[i]);
    }
    if (row < rows) store_sums(p.out + (static_cast<u64>(row) * VECTORS + in_group) * 16, sums);
}
