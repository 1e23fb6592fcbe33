// Suite 2, mixed precision: the four neighbours are mixed in f16, two channels an instruction; samples are summed in
// f32.
//
// A3 but for the mixing: corner weights, which lie between 0 and 1, are rounded to f16 and neighbours mixed by half2
// multiply-adds; the attention weight and the sum over samples stay in f32, so that only one sample's mix is rounded.
// 32 instructions for eight channels of a sample instead of 64, of about 108: should gain 10 to 15 %, until the load
// pipe binds. It rounds: about twice the error of the exact rungs.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh.

__device__ __forceinline__ u32 multiplied(u32 a, u32 b) {
    u32 product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
__device__ __forceinline__ u32 multiplied_and_added(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

__device__ __forceinline__ u32 mix(const u32 (&by)[4], u32 a, u32 b, u32 c, u32 d) {
    const u32 upper = multiplied_and_added(by[1], b, multiplied(by[0], a));
    return multiplied_and_added(by[3], d, multiplied_and_added(by[2], c, upper));
}

KERNEL ladder_s2_mixed(const __grid_constant__ Problem p) {
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
                const Axis x = axis_of(samples.locations.of[i].x, static_cast<float>(level.width));
                const Axis y = axis_of(samples.locations.of[i].y, static_cast<float>(level.height));
                const Taps taps = load_taps(corners, pixel_of(x, y, level), stride);
                const float both = x.second * y.second, right = x.second - both, below = y.second - both;
                const float first = 1.0f - x.second - below;
                const u32 by[4] = {rounded(first, first), rounded(right, right), rounded(below, below),
                                   rounded(both, both)};
                const Words &a = taps.of[0], &b = taps.of[1], &c = taps.of[2], &d = taps.of[3];
                const Words mixed = {mix(by, a.x, b.x, c.x, d.x), mix(by, a.y, b.y, c.y, d.y),
                                     mix(by, a.z, b.z, c.z, d.z), mix(by, a.w, b.w, c.w, d.w)};
                add(sums, mixed, samples.weights.of[i] * (x.inside * y.inside));
            }
        }
    }
    store_sums(out_of(p, place), sums);
}
