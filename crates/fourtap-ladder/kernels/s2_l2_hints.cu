// Suite 2, L2 hints: what will be needed soon is asked for early, into L2.
//
// A3 with two hints: before anything else, the lanes of a row ask for all of its coordinates and weights (prefetch, 32
// bytes each); and pixels are loaded with a hint to bring the HINT bytes around them along. The first hides DRAM behind
// the first level; the second brings the right-hand neighbour with the left one, if pixels of a head lie side by side.
// L2 holds most pixels anyway: should gain 1 to 2 %.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; HINT: bytes to bring along with a pixel: 64, 128 or 256.

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

__device__ __forceinline__ Words load_hinted(const char *address) {
    Words v;
    asm volatile("ld.global.nc.L2::" TEXT(HINT) "B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

// Into L2, the lanes of a group in turns.
__device__ __forceinline__ void prefetch(const void *first, u32 bytes, u32 lane) {
    const char *address = static_cast<const char *>(first);
#pragma unroll 1
    for (u32 at = lane * 32; at < bytes; at += VECTORS * 32) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(address + at));
    }
}

KERNEL ladder_s2_l2_hints(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    if (!place.live) return;
    u64 sample = static_cast<u64>(place.row) * SAMPLES;
    prefetch(p.locations + sample, SAMPLES * 8, place.vector);
    prefetch(p.weights + sample, SAMPLES * 4, place.vector);
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
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
                const u64 offset = static_cast<u64>(record.pixel) * stride;
                const Taps taps = {load_hinted(corners.of[0] + offset), load_hinted(corners.of[1] + offset),
                                   load_hinted(corners.of[2] + offset), load_hinted(corners.of[3] + offset)};
                add_sample(sums, taps, record);
            }
        }
    }
    store_sums(out_of(p, place), sums);
}
