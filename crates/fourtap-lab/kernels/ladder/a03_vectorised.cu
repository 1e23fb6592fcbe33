// A3, vectorised: eight channels a thread, 16-byte loads.
//
// A group of CHANNELS / 8 lanes takes a row; every lane works out where each sample lies and reads 16 bytes of four
// neighbours. Against A1 an eighth of the arithmetic on places and an eighth of the loads, each moving eight times as much:
// should gain about five to seven times. What binds then: instruction issue, and L1 wavefronts half full.
//
// THREADS: of a block.

extern "C" __global__ void __launch_bounds__(THREADS) ladder_a03(const __grid_constant__ Problem p) {
    const u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    const u32 row = static_cast<u32>(at / VECTORS), vector = at % VECTORS;
    if (row >= row_count(p)) return;
    const char *value = value_of_row(p, row) + 16 * vector;
    const u64 stride = pixel_stride(p);
    float sums[VECTOR] = {};
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
#pragma unroll 4
        for (int point = 0; point < POINTS; point++) {
            const u64 sample = static_cast<u64>(row) * SAMPLES + l * POINTS + point;
            const Cell cell = cell_of(p.locations[sample], p.weights[sample], level.width, level.height);
            const char *first = value + (level.start + cell.y * level.width + cell.x) * stride;
            const u64 right = cell.right * stride, down = static_cast<u64>(cell.down * level.width) * stride;
            const Words taps[4] = {load(first), load(first + right), load(first + down), load(first + down + right)};
#pragma unroll
            for (int i = 0; i < 4; i++) add(sums, taps[i], cell.weights[i]);
        }
    }
    store_sums(p.out + at * 16, sums);
}
