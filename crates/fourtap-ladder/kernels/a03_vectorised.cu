// A3, vectorised: eight channels a thread, 16-byte loads.
//
// A group of CHANNELS / 8 lanes takes a row; every lane works out where each sample lies and reads 16 bytes of four
// neighbours. Against A1 an eighth of the arithmetic on places and an eighth of the loads, each moving eight times as
// much: should gain about five to seven times. What binds then: instruction issue, and L1 wavefronts half full.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

KERNEL ladder_a03(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    if (!place.live) return;
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
    u64 sample = static_cast<u64>(place.row) * SAMPLES;
    float sums[VECTOR] = {};
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
                add_sample(sums, load_taps(corners, record.pixel, stride), record);
            }
        }
    }
    store_sums(out_of(p, place), sums);
}
