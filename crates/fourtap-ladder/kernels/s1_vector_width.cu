// Suite 1, vector width: LANE_BYTES (4 or 8) a lane instead of 16.
//
// A3 but for the width: two or four channels a lane, so four or two times as many lanes a row. A warp's load moves 128
// or 256 bytes instead of 512, no fewer L1 wavefronts for a pixel, and arithmetic on places is repeated by four or two
// times as many lanes. That arithmetic is a third of A3's instructions at 16 bytes: should take 1.4 times as long with
// 8 bytes and 2 times with 4.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

constexpr int WORDS = LANE_BYTES / 4;
constexpr int LANES = PIXEL_BYTES / LANE_BYTES; // of a row

struct Tap {
    u32 words[WORDS];
};

__device__ __forceinline__ Tap load_tap(const char *address) {
    Tap tap;
    if constexpr (WORDS == 1) {
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(tap.words[0]) : "l"(address));
    } else {
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(tap.words[0]), "=r"(tap.words[1]) : "l"(address));
    }
    return tap;
}

__device__ __forceinline__ void add_tap(float (&sums)[2 * WORDS], const Tap &tap, float weight) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        float low, high;
        widen(tap.words[i], low, high);
        sums[2 * i] = __fmaf_rn(weight, low, sums[2 * i]);
        sums[2 * i + 1] = __fmaf_rn(weight, high, sums[2 * i + 1]);
    }
}

KERNEL ladder_s1_vector(const __grid_constant__ Problem p) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at / LANES >= row_count(p)) return;
    const u32 row = static_cast<u32>(at / LANES);
    const char *value = value_of_row(p, row) + at % LANES * LANE_BYTES;
    const u32 stride = p.heads * PIXEL_BYTES;
    u64 sample = static_cast<u64>(row) * SAMPLES;
    float sums[2 * WORDS] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const Corners corners = corners_of(value, stride, level);
#pragma unroll BATCHES
        for (int point = 0; point < POINTS; point += BATCH, sample += BATCH) {
            const Samples<BATCH> samples(p.locations + sample, p.weights + sample);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const Record record = samples.record(i, level);
                const u64 offset = static_cast<u64>(record.pixel) * stride;
                Tap taps[4];
#pragma unroll
                for (int k = 0; k < 4; k++) taps[k] = load_tap(corners.of[k] + offset);
                const float upper = record.upper * record.second, lower = record.lower * record.second;
                add_tap(sums, taps[0], record.upper - upper);
                add_tap(sums, taps[1], upper);
                add_tap(sums, taps[2], record.lower - lower);
                add_tap(sums, taps[3], lower);
            }
        }
    }
    u32 *out = reinterpret_cast<u32 *>(p.out + at * LANE_BYTES);
    if constexpr (WORDS == 1) {
        *out = rounded(sums[0], sums[1]);
    } else {
        *reinterpret_cast<uint2 *>(out) = make_uint2(rounded(sums[0], sums[1]), rounded(sums[2], sums[3]));
    }
}
