// Dense attention, forward, for Hopper (sm_90a): f16 and bf16, sums in f32.
//
// A block stays on its multiprocessor and computes up to BLOCK_M queries of a head, then others. One warp brings queries, keys and
// values by TMA as soon as there is room; GROUPS of four warps compute, 64 queries each. Keys and values lie in STAGES tiles of
// BLOCK_N. Both products are those of a group: logits of two matrices in shared memory, outputs of weights that stay in registers
// and values read transposed. While the logits of one tile become weights, tensor cores add up the values of the tile before, and
// two groups take turns to start their products, so that one computes exponentials while the other multiplies.
// Limited by tensor cores (D 256) and, where heads are narrower, by them and the exponentials in turns.
//
// VALUE, HEAD, HEAD_V, PADDED, MASK, ATTN as in forward_mma.cu; ALIGN 16, SPLIT 0. WARPS: those that compute.
// OUT_APART: outputs have shared memory of their own; otherwise they lie where queries did, which are then loaded later.

constexpr u32 GROUP_ROWS = 64, GROUP_THREADS = 128, GROUPS = BLOCK_M / GROUP_ROWS;
static_assert(ROWS == 16 && KEY_WARPS == 1 && ALIGN == 16 && !SPLIT, "a warp has 16 of a group's queries");
static_assert(STAGES == 2, "the other one is next");
// 64K registers are for all threads. The warp that brings tiles needs few.
constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40, CONSUMER_REGISTERS = GROUPS == 3 ? 160 : 232;

// Columns of a matrix in shared memory: what TMA brings at once.
constexpr u32 KEY_SPAN = HEAD % 64 == 0 ? 64 : 32, VALUE_SPAN = HEAD_V % 64 == 0 ? 64 : 32;
// The shared memory of a block: each group's queries, each group's outputs, STAGES of a tile of keys and one of values, barriers.
constexpr u32 GROUP_BYTES = GROUP_ROWS * 2 * (HEAD > HEAD_V || OUT_APART ? HEAD : HEAD_V);
constexpr u32 OUT_BYTES = GROUP_ROWS * 2 * HEAD_V, OUT_AT = OUT_APART ? GROUPS * GROUP_BYTES : 0;
constexpr u32 TILES_AT = GROUPS * (GROUP_BYTES + (OUT_APART ? OUT_BYTES : 0)), VALUE_BYTES = BLOCK_N * 2 * HEAD_V;
constexpr u32 BARRIERS_AT = TILES_AT + STAGES * (KEY_BYTES + VALUE_BYTES);

struct Maps {
    TensorMap query, key, value;
};

// Barriers: of each group's queries, of each stage's keys and values, that they are there and that they are no longer needed.
struct Barriers {
    u32 at;
    __device__ __forceinline__ u32 query_there(u32 group) const { return at + 8 * group; }
    __device__ __forceinline__ u32 query_free(u32 group) const { return at + 8 * (GROUPS + group); }
    __device__ __forceinline__ u32 key_there(u32 stage) const { return at + 8 * (2 * GROUPS + stage); }
    __device__ __forceinline__ u32 key_free(u32 stage) const { return at + 8 * (2 * GROUPS + STAGES + stage); }
    __device__ __forceinline__ u32 value_there(u32 stage) const { return at + 8 * (2 * GROUPS + 2 * STAGES + stage); }
    __device__ __forceinline__ u32 value_free(u32 stage) const { return at + 8 * (2 * GROUPS + 3 * STAGES + stage); }

    __device__ __forceinline__ void init() const {
        for (u32 group = 0; group < GROUPS; group++) {
            init_barrier(query_there(group), 1);
            init_barrier(query_free(group), 4); // warps
        }
        for (u32 stage = 0; stage < STAGES; stage++) {
            init_barrier(key_there(stage), 1);
            init_barrier(value_there(stage), 1);
            init_barrier(key_free(stage), 4 * GROUPS);
            init_barrier(value_free(stage), 4 * GROUPS);
        }
        publish_barriers();
    }
};

// Where a tile of keys or values lies, and which phase of its barriers that is.
struct Place {
    u32 stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        parity ^= stage;
        stage ^= 1;
    }
};

// What a block computes, one after the other.
//
// Where all queries see as many keys and these stay in L2, each block has as many slabs of a group's queries as any other (`even`),
// next to each other. Otherwise tiles are dealt: a head's are next to each other, so that its keys are in L2; with bounds the last
// of all heads come first, of causal ones the longest, there and back, so that nobody always has the longest.
struct Schedule {
    const Arguments &a;
    u32 next; // all else is computed again when needed, which costs less than registers

    __device__ __forceinline__ Schedule(const Arguments &a) : a(a), next(is_even() ? past(blockIdx.x) : 0) {}
    __device__ __forceinline__ bool is_even() const { return !MASK && a.even; }
    // Of a head: slabs or tiles.
    __device__ __forceinline__ u32 units() const { return (a.queries + (is_even() ? GROUP_ROWS : BLOCK_M) - 1) / (is_even() ? GROUP_ROWS : BLOCK_M); }
    // Those of so many blocks.
    __device__ __forceinline__ u32 past(u32 blocks) const {
        const u32 all = units() * a.planes, each = all / gridDim.x;
        return blocks * each + min(blocks, all - each * gridDim.x);
    }
    __device__ __forceinline__ u32 unit() const {
        return is_even() ? next : next * gridDim.x + (MASK && next % 2 == 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
    __device__ __forceinline__ bool is_done() const { return unit() >= (is_even() ? past(blockIdx.x + 1) : units() * a.planes); }
    __device__ __forceinline__ Work take() {
        const u32 at = unit(), of_head = units();
        if (is_even()) {
            const u32 plane = at / of_head, slab = at - plane * of_head;
            const u32 slabs = min(min(GROUPS, past(blockIdx.x + 1) - at), of_head - slab);
            next += slabs;
            return Work(a, plane, slab * GROUP_ROWS, slabs * GROUP_ROWS, 0);
        }
        next++;
        const u32 plane = MASK ? at % a.planes : at / of_head, tile = MASK ? of_head - 1 - at / a.planes : at - plane * of_head;
        return Work(a, plane, tile * BLOCK_M, BLOCK_M, 0);
    }
};

// Brings what the groups compute. All of a warp's lanes walk, the first one copies.
static __device__ __forceinline__ void produce(const Arguments &a, const Maps &maps, const Barriers &barriers, u32 shared, u32 lane) {
    Place place;
    u32 parity[GROUPS] = {};
    const auto same = [&](u32 bit) { return a.same >> bit & 1; };
#pragma unroll 1
    for (Schedule schedule(a); !schedule.is_done();) {
        const Work work = schedule.take();
        const auto bring_queries = [&] {
#pragma unroll
            for (u32 group = 0; group < GROUPS; group++) {
                const int row = work.first_row + static_cast<int>(group * GROUP_ROWS);
                if (row >= work.past_row) break;
                const u32 there = barriers.query_there(group);
                wait_for_phase(barriers.query_free(group), parity[group] ^ 1);
                parity[group] ^= 1;
                arrive_expecting(there, GROUP_ROWS * 2 * HEAD);
#pragma unroll
                for (u32 c = 0; c < HEAD; c += KEY_SPAN) {
                    const u32 to = shared + group * GROUP_BYTES + c * 2 * GROUP_ROWS;
                    copy_box(to, maps.query, there, c, row, same(1) ? 0 : work.h, same(0) ? 0 : work.b);
                }
            }
        };
        // After the first keys, which may come before the last outputs are stored where queries go.
        bool wants_queries = lane == 0;
        Walk walk = walk_of(a, work);
#pragma unroll 1
        for (int j = walk.next(0, lane); j < work.count; j = walk.next(j + 1, lane)) {
            if (lane == 0) {
                const u32 keys_at = shared + TILES_AT + place.stage * (KEY_BYTES + VALUE_BYTES), values_at = keys_at + KEY_BYTES;
                const u32 keys = barriers.key_there(place.stage), values = barriers.value_there(place.stage);
                wait_for_phase(barriers.key_free(place.stage), place.parity ^ 1);
                arrive_expecting(keys, KEY_BYTES);
#pragma unroll
                for (u32 c = 0; c < HEAD; c += KEY_SPAN) {
                    copy_box(keys_at + c * 2 * BLOCK_N, maps.key, keys, c, work.key_of(j), same(3) ? 0 : work.key_head, same(2) ? 0 : work.b);
                }
                if (wants_queries) bring_queries();
                wants_queries = false;
                wait_for_phase(barriers.value_free(place.stage), place.parity ^ 1);
                arrive_expecting(values, VALUE_BYTES);
#pragma unroll
                for (u32 c = 0; c < HEAD_V; c += VALUE_SPAN) {
                    copy_box(values_at + c * 2 * BLOCK_N, maps.value, values, c, work.key_of(j), same(5) ? 0 : work.key_head, same(4) ? 0 : work.b);
                }
            }
            place.advance();
        }
        if (wants_queries) bring_queries();
    }
}

// Of matrices described by the lower halves of their descriptors.
static __device__ __forceinline__ void multiply_keys(Logits &logits, u32 queries, u32 keys) {
    begin_products();
#pragma unroll
    for (u32 c = 0; c < HEAD; c += 16) {
        const u32 column = c / KEY_SPAN * KEY_SPAN * 2, within = c % KEY_SPAN * 2;
        const u64 left = descriptor<KEY_SPAN>(queries + (column * GROUP_ROWS + within) / 16);
        const u64 right = descriptor<KEY_SPAN>(keys + (column * BLOCK_N + within) / 16);
        Product<VALUE, BLOCK_N>::of_shared(logits[0], left, right, c > 0);
    }
    end_products();
}
static __device__ __forceinline__ void add_values(Rows &rows, const Weights &weights, u32 values) {
    begin_products();
#pragma unroll
    for (u32 k = 0; k < BLOCK_N / 16; k++) {
        Product<VALUE, HEAD_V>::of_registers(rows.out[0], weights[0][k], descriptor<VALUE_SPAN>(values + k * 2 * VALUE_SPAN));
    }
    end_products();
}

// The groups' turns, by barriers 1 to GROUPS; barriers GROUPS + 1 on are those of a group alone. Three groups get out of each other's
// way by themselves.
constexpr bool TURNS = GROUPS == 2;
static __device__ __forceinline__ void begin_turn(u32 group) {
    if (TURNS) wait_for_others(1 + group, 2 * GROUP_THREADS);
}
static __device__ __forceinline__ void end_turn(u32 group) {
    if (TURNS) tell_others(group + 1 == GROUPS ? 1 : 2 + group, 2 * GROUP_THREADS);
}

// What a group has between one tile of keys and the next.
struct Consumer {
    const Arguments &a;
    const Barriers barriers;
    const u32 shared, warp, lane, group, queries_at, out_at;
    Place key_place, value_place;
    u32 parity = 0; // of queries

    __device__ __forceinline__ Consumer(const Arguments &a, Barriers barriers, u32 shared, u32 warp, u32 lane)
        : a(a), barriers(barriers), shared(shared), warp(warp), lane(lane), group(warp / 4), queries_at(shared + group * GROUP_BYTES),
          out_at((OUT_APART ? shared + OUT_AT + group * OUT_BYTES : queries_at) + warp % 4 * ROWS * ValueTile::ROW) {}

    // By way of the first lane, for the compiler to know that all have the same.
    __device__ __forceinline__ u32 keys() const {
        return __shfl_sync(ALL, describe(shared + TILES_AT + key_place.stage * (KEY_BYTES + VALUE_BYTES)), 0);
    }
    __device__ __forceinline__ u32 values() const {
        return __shfl_sync(ALL, describe<BLOCK_N * 2 * VALUE_SPAN>(shared + TILES_AT + value_place.stage * (KEY_BYTES + VALUE_BYTES) + KEY_BYTES), 0);
    }
    __device__ __forceinline__ void wait_for_keys() const { wait_for_phase(barriers.key_there(key_place.stage), key_place.parity); }
    __device__ __forceinline__ void wait_for_values() const { wait_for_phase(barriers.value_there(value_place.stage), value_place.parity); }
    __device__ __forceinline__ void free_keys() {
        if (lane == 0) arrive(barriers.key_free(key_place.stage));
        key_place.advance();
    }
    __device__ __forceinline__ void free_values() {
        if (lane == 0) arrive(barriers.value_free(value_place.stage));
        value_place.advance();
    }
    // A tile that none of the group's queries sees.
    __device__ __forceinline__ void pass() {
        wait_for_keys();
        wait_for_values();
        begin_turn(group);
        end_turn(group);
        free_keys();
        free_values();
    }
    // The group's queries, with other signs or as zeros.
    __device__ __forceinline__ void change_bits() const {
        // Where outputs lay they were stored before these queries came. That TMA comes between is hidden from tools that look for races.
        if (!OUT_APART) wait_for_others(1 + GROUPS + group, GROUP_THREADS);
#pragma unroll 1
        for (u32 at = threadIdx.x % GROUP_THREADS * 16; at < GROUP_ROWS * 2 * HEAD; at += GROUP_THREADS * 16) {
            const Vector v = load_shared(queries_at + at);
            store_shared(queries_at + at, {v.x & a.kept ^ a.sign, v.y & a.kept ^ a.sign, v.z & a.kept ^ a.sign, v.w & a.kept ^ a.sign});
        }
        fence_async();
        wait_for_others(1 + GROUPS + group, GROUP_THREADS);
    }
    __device__ __forceinline__ void compute(Work work);
};

static __device__ __forceinline__ void sum_up(Rows &rows, const Logits &weights) {
#pragma unroll
    for (u32 k = 0; k < KEY_TILES; k++) {
        rows.sum[0][0] += weights[0][k][0] + weights[0][k][1];
        rows.sum[0][1] += weights[0][k][2] + weights[0][k][3];
    }
}
static __device__ __forceinline__ void round_weights(Weights &rounded, const Logits &weights) {
#pragma unroll
    for (u32 k = 0; k < KEY_TILES; k++) {
        rounded[0][k / 2][k % 2 * 2] = Value::round(weights[0][k][0], weights[0][k][1]);
        rounded[0][k / 2][k % 2 * 2 + 1] = Value::round(weights[0][k][2], weights[0][k][3]);
    }
}
// Waits for all products, once the weights are there. The compiler would move the wait before all exponentials, which do not depend on
// it; not beyond a branch, though. All warps of a group must wait in the same place, so that it cannot be one that some of them take.
static __device__ __forceinline__ void wait_and_rescale(Rows &rows, Logits &weights, const Growth &growth, bool never) {
#pragma unroll
    for (u32 k = 0; k < KEY_TILES; k++) {
        asm volatile("" : "+f"(weights[0][k][0]), "+f"(weights[0][k][1]), "+f"(weights[0][k][2]), "+f"(weights[0][k][3])::"memory");
    }
    asm volatile("" : "+f"(rows.sum[0][0]), "+f"(rows.sum[0][1])::"memory");
    if (never) asm volatile("trap;");
    wait_for_products<0>();
    if (growth.any) rescale(rows, growth);
}

__device__ __forceinline__ void Consumer::compute(Work work) {
    Rows rows;
    Logits logits;
    Weights weights;
    const int group_row = work.first_row + static_cast<int>(group * GROUP_ROWS), warp_row = work.first_row + static_cast<int>(warp * ROWS);
    const bool is_idle = group_row >= work.past_row;
    const Bounds of_group(a, group_row, min(group_row + static_cast<int>(GROUP_ROWS), work.past_row));
    Masking masking(a, work, warp_row, lane);
    Walk walk = walk_of(a, work);

    int j = walk.next(0, lane);
    while (j < work.count && work.key_of(j) + static_cast<int>(BLOCK_N) <= of_group.from) {
        pass();
        j = walk.next(j + 1, lane);
    }
    const u32 queries = describe(queries_at);
    if (!is_idle) {
        wait_for_phase(barriers.query_there(group), parity);
        if (a.sign != 0 || a.kept == 0) change_bits();
    }
    if (j < work.count && work.key_of(j) < of_group.to) {
        masking.load(walk, j, work.key_of(j));
        const u32 first_keys = keys();
        wait_for_keys();
        begin_turn(group);
        multiply_keys(logits, queries, first_keys);
        end_turn(group);
        wait_for_products<0>();
        free_keys();
        const float scale = masking.apply(logits, a.scale, work.key_of(j));
        exponentiate(rows, logits, scale); // nothing is summed yet
        sum_up(rows, logits);
        round_weights(weights, logits);
        j = walk.next(j + 1, lane);
#pragma unroll 1
        while (j < work.count && work.key_of(j) < of_group.to) {
            masking.load(walk, j, work.key_of(j));
            const u32 these_keys = keys(), last_values = values();
            wait_for_keys();
            wait_for_values();
            begin_turn(group);
            multiply_keys(logits, queries, these_keys);
            add_values(rows, weights, last_values);
            end_turn(group);
            wait_for_products<1>();
            free_keys();
            masking.apply(logits, a.scale, work.key_of(j));
            const Growth growth = exponentiate(rows, logits, scale);
            sum_up(rows, logits);
            wait_and_rescale(rows, logits, growth, a.keys < 0);
            free_values();
            round_weights(weights, logits);
            j = walk.next(j + 1, lane);
        }
        if (OUT_APART && lane == 0) arrive(barriers.query_free(group));
        const u32 last_values = values();
        wait_for_values();
        add_values(rows, weights, last_values);
        wait_for_products<0>();
        free_values();
    } else if (OUT_APART && !is_idle && lane == 0) {
        arrive(barriers.query_free(group));
    }
    for (; j < work.count; j = walk.next(j + 1, lane)) pass();
    if (is_idle) return;

    rows.sum[0][0] = total(rows.sum[0][0]);
    rows.sum[0][1] = total(rows.sum[0][1]);
    const Target target(a, work);
    if (!OUT_APART) wait_for_others(1 + GROUPS + group, GROUP_THREADS); // nobody reads queries any more
    store_rows(rows, target, out_at, warp_row, lane);
    store_lse(rows, target, warp_row, lane);
    if (!OUT_APART) {
        fence_async();
        __syncwarp();
        if (lane == 0) arrive(barriers.query_free(group));
    }
    parity ^= 1;
    mend(rows, a, work, warp_row, lane);
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS *(GROUPS + 1), 1) dense_forward_wgmma(const __grid_constant__ Arguments a, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) char memory[];
    // A warp's number by way of its first lane, for the compiler to know it is one and keep what follows from it once a warp.
    const u32 lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0), shared = shared_address(memory);
    const Barriers barriers{shared + BARRIERS_AT};
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    if (warp < 4 * GROUPS) {
        take_registers<CONSUMER_REGISTERS>();
        Consumer consumer(a, barriers, shared, warp, lane);
        if (consumer.group + 1 == GROUPS) end_turn(consumer.group); // the first turn is the first group's
#pragma unroll 1
        for (Schedule schedule(a); !schedule.is_done();) consumer.compute(schedule.take());
        if (consumer.group == 0) begin_turn(0); // and the last one
    } else {
        give_registers<PRODUCER_REGISTERS>();
        if (warp == 4 * GROUPS) produce(a, maps, barriers, shared, lane);
    }
}
