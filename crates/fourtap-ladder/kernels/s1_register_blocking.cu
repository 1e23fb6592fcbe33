// Suite 1, register blocking: a thread takes ROWS rows at a time, so that it has ROWS times the loads in flight.
//
// A group of VECTORS lanes takes ROWS rows of its block, THREADS / VECTORS apart, and goes through their samples in
// step: the neighbours of one sample of each row are asked for before any is added. What is known of a level serves all
// of them. It costs ROWS times the registers for sums and neighbours, so what it gains in loads a thread it loses in
// threads: should gain nothing with 2 rows and lose with 4.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; ROWS: of a thread.

constexpr int READ = BATCH < 2 ? BATCH : 2; // more would take registers that the rows need

KERNEL ladder_s1_register_blocking(const __grid_constant__ Problem p) {
    const u32 stride = p.heads * PIXEL_BYTES;
    Place places[ROWS];
    const char *values[ROWS];
    const float2 *locations[ROWS];
    const float *weights[ROWS];
    float sums[ROWS][VECTOR] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        places[r] = place_of(p, (static_cast<u64>(blockIdx.x) * ROWS + r) * THREADS + threadIdx.x);
        values[r] = value_of_row(p, places[r].row) + 16 * places[r].vector;
        asm("" : "+l"(values[r])); // one register pair, not a sum to be repeated at each load
        locations[r] = p.locations + static_cast<u64>(places[r].row) * SAMPLES;
        weights[r] = p.weights + static_cast<u64>(places[r].row) * SAMPLES;
    }
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const u32 right = level.width > 1 ? 1 : 0, down = level.height > 1 ? level.width : 0;
#pragma unroll 1
        for (int point = l * POINTS; point < (l + 1) * POINTS; point += READ) {
            Record records[READ][ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Samples<READ> samples(locations[r] + point, weights[r] + point);
#pragma unroll
                for (int i = 0; i < READ; i++) records[i][r] = samples.record(i, level);
            }
#pragma unroll
            for (int i = 0; i < READ; i++) {
                Taps taps[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const u32 pixel = records[i][r].pixel;
                    const u32 pixels[4] = {pixel, pixel + right, pixel + down, pixel + down + right};
#pragma unroll
                    for (int k = 0; k < 4; k++) taps[r].of[k] = load(values[r] + static_cast<u64>(pixels[k]) * stride);
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) add_sample(sums[r], taps[r], records[i][r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (places[r].live) store_sums(out_of(p, places[r]), sums[r]);
    }
}
