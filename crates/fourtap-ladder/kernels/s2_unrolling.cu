// Suite 2, unrolling: how much of the loop over samples is written out.
//
// A3, whose loop body has four samples where points allow, with UNROLL samples instead, of one level; UNROLL of all
// samples or more writes out the levels too. One sample at a time leaves four loads in flight and reads coordinates in
// small pieces: should lose 10 %. Eight or more bring no more loads in flight, since registers bound these, and spare
// only the loop's own few instructions: should gain 1 % at most; all of them no longer fit the instruction cache.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; UNROLL: samples of a loop's body.

constexpr int READ = largest_divisor(BATCH, UNROLL < BATCH ? UNROLL : BATCH);
constexpr int WRITTEN_OUT = largest_divisor(POINTS / READ, UNROLL / READ < 1 ? 1 : UNROLL / READ);
constexpr int LEVELS_WRITTEN_OUT = UNROLL >= SAMPLES ? LEVELS : 1;

KERNEL ladder_s2_unrolling(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    if (!place.live) return;
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
    const float2 *locations = p.locations + static_cast<u64>(place.row) * SAMPLES;
    const float *weights = p.weights + static_cast<u64>(place.row) * SAMPLES;
    float sums[VECTOR] = {};
#pragma unroll LEVELS_WRITTEN_OUT
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const Corners corners = corners_of(value, stride, level);
#pragma unroll WRITTEN_OUT
        for (int point = l * POINTS; point < (l + 1) * POINTS; point += READ) {
            const Samples<READ> samples(locations + point, weights + point);
#pragma unroll
            for (int i = 0; i < READ; i++) {
                const Record record = samples.record(i, level);
                add_sample(sums, load_taps(corners, record.pixel, stride), record);
            }
        }
    }
    store_sums(out_of(p, place), sums);
}
