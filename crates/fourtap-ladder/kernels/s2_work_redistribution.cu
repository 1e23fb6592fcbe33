// Suite 2, work redistribution: blocks stay and walk the rows in an order that keeps those in flight near each other.
//
// As many blocks as the device holds; each takes SHARE times its width of consecutive rows, then goes on where all
// blocks together have come to. Rows are walked image by image and in it HEADS heads side by side, query by query: the
// rows in flight then read the pixels of few heads, and a multiprocessor's those of neighbouring queries. A group's
// work is A3's. Nothing to gain with one head but the start of blocks: 0 to 3 %; with eight heads more L1 hits, up to
// 10 %.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; SHARE: rows that a group of lanes takes in one go; HEADS: walked
// side by side, if they divide those there are, else one.

constexpr u32 ROWS = THREADS / VECTORS;

// The row walked as number `i`.
__device__ __forceinline__ u32 row_of(const Problem &p, u32 i) {
    const u32 together = p.heads % HEADS == 0 ? HEADS : 1, parts = p.heads / together;
    const u32 walked = i / together, query = walked % p.queries, plane = walked / p.queries;
    return (plane / parts * p.queries + query) * p.heads + plane % parts * together + i % together;
}

KERNEL ladder_s2_redistribution(const __grid_constant__ Problem p) {
    const u32 rows = row_count(p), stride = p.heads * PIXEL_BYTES, vector = threadIdx.x % VECTORS;
#pragma unroll 1
    for (u64 turn = blockIdx.x;; turn += gridDim.x) {
        if (turn * SHARE * ROWS >= rows) return;
#pragma unroll 1
        for (u32 share = 0; share < SHARE; share++) {
            const u64 walked = (turn * SHARE + share) * ROWS + threadIdx.x / VECTORS;
            if (walked >= rows) return;
            const Place place = {row_of(p, static_cast<u32>(walked)), vector, true};
            const char *value = value_of_row(p, place.row) + 16 * vector;
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
    }
}
