// A13, warp specialisation: producer warps find the neighbours and have them copied, consumer warps only mix.
//
// One block a multiprocessor. A producer warp feeds CONSUMERS consumer warps, each through a ring of STAGES steps of
// 2 KB (tiles.cuh): it works out where the samples lie, waits until a stage is empty, and starts copies into it which
// tell the stage's barrier when they are done. Locations are inputs, so producers run ahead as far as the ring is long,
// over the ends of rows too. A consumer waits for a full stage, reads it, gives it back and adds.
// It moves the same bytes over the same pipe as A14, whose copies run ahead just as far, and adds two barriers a step;
// what it can gain is a shorter stream of instructions in the warps that mix. As issue is not what binds, about A14's
// time.
//
// PRODUCERS warps, CONSUMERS warps of each; STAGES: 2, 4 or 8; BYPASS: 1, copies pass L1 by; PAIRED: see tiles.cuh;
// THREADS: of all these warps.

constexpr int MIXERS = PRODUCERS * CONSUMERS;
constexpr int RING_BYTES = STAGES * STEP_BYTES;
constexpr u32 ARRIVALS = 33; // every lane's copies, and the lane that speaks for the records
static_assert(CHUNK % STAGES == 0, "a chunk is a whole number of turns of the ring, and records live for two chunks");
static_assert(THREADS == 32 * (PRODUCERS + MIXERS), "every thread has a part");

__device__ __forceinline__ void copy_piece(u32 target, const char *source) {
#if BYPASS
    copy_async(target, source);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
#endif
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As soon as what this thread has had copied so far is there.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Of one consumer: its tiles, two chunks of records, and a full and an empty barrier of each stage.
struct Ring {
    u32 tiles, records, barriers;

    __device__ __forceinline__ Ring(u32 memory, u32 consumer) {
        tiles = memory + consumer * RING_BYTES;
        records = memory + MIXERS * RING_BYTES + consumer * (2 * CHUNK_BYTES);
        barriers = memory + MIXERS * (RING_BYTES + 2 * CHUNK_BYTES) + consumer * (STAGES * 16);
    }
    __device__ __forceinline__ u32 full(int stage) const { return barriers + stage * 16; }
    __device__ __forceinline__ u32 empty(int stage) const { return barriers + stage * 16 + 8; }
};

// `first` row of the producer's first consumer; the others' follow.
__device__ __forceinline__ void produce(const Problem &p, const Lane &lane, u32 memory, u32 consumer, u32 first,
                                        u32 stride) {
    const u32 rows = row_count(p);
    Pieces pieces;
    Ahead ahead[CONSUMERS];
#pragma unroll
    for (int c = 0; c < CONSUMERS; c++) ahead[c].begin(p, lane, first + c * GROUPS);
#pragma unroll 1
    for (u32 turns = 0, side = 0; ahead[0].first < rows; turns += CHUNK / STAGES, side ^= CHUNK_BYTES) {
        const int chunk = ahead[0].chunk;
#pragma unroll
        for (int c = 0; c < CONSUMERS; c++) {
            // Over the records of two chunks ago: since then every stage was given back at least once.
            ahead[c].write(p, lane, Ring(memory, consumer + c).records + side);
            ahead[c].advance(p, lane, stride);
        }
        __syncwarp();
#pragma unroll
        for (int slot = 0; slot < CHUNK; slot++) {
            const int stage = slot % STAGES;
            const bool has_sample = is_sample(chunk, slot);
            if (has_sample) pieces.choose_level(p, lane, chunk, slot);
#pragma unroll 1
            for (int c = 0; c < CONSUMERS; c++) {
                const Ring ring(memory, consumer + c);
                wait_for_phase(ring.empty(stage), (turns + slot / STAGES & 1) ^ 1);
                if (has_sample) {
                    const char *sources[4];
                    pieces.find(lane, ring.records + side, slot, sources);
                    const u32 target = ring.tiles + stage * STEP_BYTES;
#pragma unroll
                    for (int k = 0; k < 4; k++) copy_piece(target + Pieces::target(lane, k), sources[k]);
                }
                arrive_when_copied(ring.full(stage));
                if (lane.number == 0) arrive(ring.full(stage));
            }
        }
    }
    wait_for_all_copies();
}

// As many steps as its producer takes: `producer_first` tells how long that goes on.
__device__ __forceinline__ void consume(const Problem &p, const Lane &lane, const Ring &ring, u32 producer_first,
                                        u32 first, u32 stride) {
    const u32 rows = row_count(p);
    u32 turns = 0, records = ring.records, next_records = ring.records + CHUNK_BYTES;
#pragma unroll 1
    for (; producer_first < rows; producer_first += stride, first += stride) {
        float sums[VECTOR] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++, turns += CHUNK / STAGES) {
#pragma unroll
            for (int slot = 0; slot < CHUNK; slot++) {
                const int stage = slot % STAGES;
                wait_for_phase(ring.full(stage), turns + slot / STAGES & 1);
                Tile tile;
                const bool has_sample = is_sample(chunk, slot);
                if (has_sample) tile.load(lane, ring.tiles + stage * STEP_BYTES, records, slot);
                __syncwarp();
                if (lane.number == 0) arrive(ring.empty(stage));
                if (has_sample) tile.add_to(sums);
            }
            const u32 read = records;
            records = next_records;
            next_records = read;
        }
        const u32 row = first + lane.group;
        if (row < rows) store_sums(p.out + (static_cast<u64>(row) * VECTORS + lane.vector) * 16, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a13(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char shared[]; // rings of tiles, then records, then barriers of every consumer
    const Lane lane;
    const u32 memory = shared_address(shared), warp = warp_in_block(), stride = gridDim.x * (MIXERS * GROUPS);
    if (threadIdx.x < MIXERS * STAGES) {
        const Ring ring(memory, threadIdx.x / STAGES);
        make_barrier(ring.full(threadIdx.x % STAGES), ARRIVALS);
        make_barrier(ring.empty(threadIdx.x % STAGES), 1);
    }
    __syncthreads();
    // Every producer warp stands at another scheduler, as warps are dealt out in turns.
    const bool produces = warp < PRODUCERS;
    const u32 producer = produces ? warp : (warp - PRODUCERS) / CONSUMERS;
    const u32 producer_first = (blockIdx.x * PRODUCERS + producer) * (CONSUMERS * GROUPS);
    if (produces) {
        produce(p, lane, memory, producer * CONSUMERS, producer_first, stride);
    } else {
        const u32 consumer = warp - PRODUCERS;
        consume(p, lane, Ring(memory, consumer), producer_first, (blockIdx.x * MIXERS + consumer) * GROUPS, stride);
    }
}
