// A1, baseline: a thread per output channel, as the field's extensions are written.
//
// A block takes 256 consecutive outputs; a thread walks all samples of its row, works out each one's place for itself and
// reads two bytes of four neighbours. Nothing is shared: 32 channels repeat the same arithmetic 32 times, and a warp's load
// brings 64 bytes. It is the ruler for all others: what binds is instruction issue.
//
// THREADS: of a block.

extern "C" __global__ void __launch_bounds__(THREADS) ladder_a01(const __grid_constant__ Problem p) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u32 row = static_cast<u32>(at / CHANNELS), channel = at % CHANNELS;
    if (row >= row_count(p)) return;
    const char *value = value_of_row(p, row) + 2 * channel;
    const u64 stride = pixel_stride(p);
    float sum = 0.0f;
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        for (int point = 0; point < POINTS; point++) {
            const u64 sample = static_cast<u64>(row) * SAMPLES + l * POINTS + point;
            const Cell cell = cell_of(p.locations[sample], p.weights[sample], level.width, level.height);
            for (int i = 0; i < 4; i++) {
                const int x = cell.x + (i & 1) * cell.right, y = cell.y + (i >> 1) * cell.down;
                const u64 pixel = level.start + y * level.width + x;
                sum = __fmaf_rn(cell.weights[i], widen_one(value + pixel * stride), sum);
            }
        }
    }
    *reinterpret_cast<unsigned short *>(p.out + 2 * at) = static_cast<unsigned short>(rounded(sum, 0.0f));
}
