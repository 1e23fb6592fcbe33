// A2, simple: still a thread for itself, but a word of two channels each, so that a warp's load is of whole words.
//
// A block takes THREADS consecutive words of the result; CHANNELS / 2 neighbouring lanes share a row. A thread walks
// all samples of its row, works out each one's place for itself and reads four bytes of four neighbours: against A1
// half the threads, half the arithmetic on places and half the loads, each twice as wide. Should take a little over
// half the time of A1. What binds is still instruction issue: sixteen lanes repeat the same arithmetic.
//
// THREADS: of a block.

__device__ __forceinline__ u32 load_word(const char *address) {
    u32 word;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(address));
    return word;
}

extern "C" __global__ void __launch_bounds__(THREADS) ladder_a02(const __grid_constant__ Problem p) {
    constexpr int LANES = CHANNELS / 2; // of a row
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    if (at / LANES >= row_count(p)) return;
    const u32 row = static_cast<u32>(at / LANES), word = at % LANES;
    const char *value = value_of_row(p, row) + 4 * word;
    const u64 stride = pixel_stride(p);
    const float2 *locations = p.locations + static_cast<u64>(row) * SAMPLES;
    const float *weights = p.weights + static_cast<u64>(row) * SAMPLES;
    float low = 0.0f, high = 0.0f;
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
#pragma unroll 4
        for (int point = 0; point < POINTS; point++) {
            const Cell cell = cell_of(*locations++, *weights++, level.width, level.height);
            const u32 first = level.start + cell.y * level.width + cell.x, below = cell.down * level.width;
            u32 taps[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u64 pixel = first + (i & 1 ? cell.right : 0) + (i >> 1 ? below : 0);
                taps[i] = load_word(value + pixel * stride);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float left, right;
                widen(taps[i], left, right);
                low = __fmaf_rn(cell.weights[i], left, low);
                high = __fmaf_rn(cell.weights[i], right, high);
            }
        }
    }
    *reinterpret_cast<u32 *>(p.out + 4 * at) = rounded(low, high);
}
