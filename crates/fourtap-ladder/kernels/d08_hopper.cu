// D8, Hopper: tiles by TMA, both products by groups of four warps (wgmma). In four steps, each with those before it.
//
// One thread of a block brings queries, keys and values as soon as there is room; GROUPS of four warps compute, 64 queries each.
// Tensor cores read shared memory themselves: the warps that compute have no ldmatrix, no copy and no address of a fragment left. In
// the first step a group waits for the product with keys, computes exponentials, waits for the product with values, so that tensor
// cores idle unless another group happens to multiply. OVERLAP: both products are started before the exponentials, the one with
// values being that of the tile before. TURNS: groups start products in turns, so that one multiplies while the other computes
// exponentials. PERSISTENT: a block stays and takes other queries, which arrive while it stores outputs.
// Limited by tensor cores with 128 channels; with 64 as much by exponentials, of which there are as many for half of the products.
//
// ROWS: queries per warp, 16. WARPS: those that compute. KEYS: of a tile, of which two are in shared memory. TURNS: groups that take
// turns, at most; where there are more, none do.

constexpr u32 GROUPS = WARPS / 4, GROUP_ROWS = 64, GROUP_THREADS = 128, BLOCK_M = GROUPS * GROUP_ROWS;
// 64K registers are for all threads, and the warp that brings tiles needs few.
constexpr int PRODUCER_REGISTERS = GROUPS == 3 ? 32 : 40, CONSUMER_REGISTERS = GROUPS == 3 ? 160 : 232;
static_assert(ROWS == 16 && (GROUPS == 2 || GROUPS == 3), "a group has 64 queries");

// Channels that TMA brings at once. In shared memory such columns of a tile lie one after the other.
constexpr u32 COLUMN = HEAD % 64 == 0 ? 64 : 32;
constexpr u32 QUERY_BYTES = BLOCK_M * ROW_BYTES, TILE_BYTES = KEYS * ROW_BYTES, STAGE_BYTES = 2 * TILE_BYTES; // keys, then values
constexpr u32 BARRIERS_AT = QUERY_BYTES + 2 * STAGE_BYTES;

struct Maps {
    TensorMap query, key, value;
};

// Barriers in shared memory: that a tile is there, and that no group needs it any more.
enum Tensor { QUERY, KEY = 2, VALUES = 6 };
__device__ __forceinline__ u32 there(u32 shared, Tensor tensor, u32 stage) { return shared + BARRIERS_AT + 8 * (tensor + 2 * stage); }
__device__ __forceinline__ u32 vacant(u32 shared, Tensor tensor, u32 stage) { return there(shared, tensor, stage) + 8; }

// Which of two tiles in shared memory is next, and which phase of its barriers that is.
struct Place {
    u32 stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        parity ^= stage;
        stage ^= 1;
    }
};

// The queries of a block, then, if it stays, others. Under a causal mask a block that stays has the longest of all heads first, and
// of the next ones the shortest if it had the longest.
template <typename Compute> __device__ __forceinline__ void for_each_tile(const Problem &p, const Compute &compute) {
    const u32 of_plane = (p.queries + BLOCK_M - 1) / BLOCK_M, all = of_plane * p.planes;
#pragma unroll 1
    for (u32 round = 0; PERSISTENT || round == 0; round++) {
        const u32 number = round * gridDim.x + (CAUSAL && round % 2 == 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (number >= all) return;
        compute(Block<BLOCK_M>(p, CAUSAL && PERSISTENT ? number % p.planes * of_plane + number / p.planes : number));
    }
}
__device__ __forceinline__ int tiles_of(int keys) { return (keys + KEYS - 1) / KEYS; }

// One thread brings all that the groups compute. Rows past the last come as zeros.
__device__ __forceinline__ void produce(const Problem &p, const Maps &maps, u32 shared) {
    Place place;
    u32 parity = 0; // of queries
    const auto bring = [&](Tensor tensor, const TensorMap &map, u32 rows, u32 to, u32 stage, u32 parity, int row, u32 plane) {
        const u32 barrier = there(shared, tensor, stage);
        wait_for_phase(vacant(shared, tensor, stage), parity ^ 1); // at first the phase before the first, which counts as over
        arrive_expecting(barrier, rows * ROW_BYTES);
#pragma unroll
        for (u32 c = 0; c < HEAD; c += COLUMN) copy_box(to + rows * 2 * c, map, barrier, c, row, plane, 0);
    };
    for_each_tile(p, [&](const Block<BLOCK_M> &block) {
        const int tiles = tiles_of(block.keys);
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const u32 keys_at = shared + QUERY_BYTES + place.stage * STAGE_BYTES;
            bring(KEY, maps.key, KEYS, keys_at, place.stage, place.parity, tile * KEYS, block.plane);
            // Where a block stays, there is room for other keys before the last product with queries.
            if (tile == 0) bring(QUERY, maps.query, BLOCK_M, shared, 0, parity, block.first, block.plane);
            bring(VALUES, maps.value, KEYS, keys_at + TILE_BYTES, place.stage, place.parity, tile * KEYS, block.plane);
            place.advance();
        }
        parity ^= 1;
    });
}

// Starts the product of a group's queries with keys, then `end_products`. Both are given as the lower halves of descriptors.
__device__ __forceinline__ void start_logits(Logits &logits, u32 queries, u32 keys) {
    begin_products();
#pragma unroll
    for (u32 c = 0; c < HEAD; c += 16) {
        const u32 column = c / COLUMN * COLUMN * 2, within = c % COLUMN * 2;
        const u64 left = descriptor<COLUMN>(queries + (column * BLOCK_M + within) / 16);
        Product<VALUE, KEYS>::of_shared(logits[0], left, descriptor<COLUMN>(keys + (column * KEYS + within) / 16), c > 0);
    }
    end_products();
}
// The same of weights with values, added to the outputs.
__device__ __forceinline__ void start_outputs(Rows &rows, const Weights &weights, u32 values) {
    begin_products();
#pragma unroll
    for (u32 k = 0; k < KEYS / 16; k++) {
        Product<VALUE, HEAD>::of_registers(rows.out[0], weights[0][k], descriptor<COLUMN>(values + k * 2 * COLUMN));
    }
    end_products();
}

// Barrier 1 is the first group's turn, 2 the next one's; whoever has started products gives the turn on.
constexpr bool TAKES_TURNS = GROUPS <= TURNS;
__device__ __forceinline__ void begin_turn(u32 group) {
    if (TAKES_TURNS) wait_for_others(1 + group, 2 * GROUP_THREADS);
}
__device__ __forceinline__ void end_turn(u32 group) {
    if (TAKES_TURNS) tell_others(group + 1 == GROUPS ? 1 : 2 + group, 2 * GROUP_THREADS);
}

// A warp of a group, and what its group knows from one tile of keys to the next.
struct Consumer {
    const Problem &p;
    const u32 shared, warp, lane, group;
    Place key_place, value_place;
    u32 parity = 0; // of queries

    __device__ __forceinline__ Consumer(const Problem &p, u32 shared, u32 warp, u32 lane)
        : p(p), shared(shared), warp(warp), lane(lane), group(warp / 4) {}

    // By way of the first lane, for the compiler to know that all have the same.
    __device__ __forceinline__ u32 keys() const {
        return __shfl_sync(ALL, describe(shared + QUERY_BYTES + key_place.stage * STAGE_BYTES), 0);
    }
    __device__ __forceinline__ u32 values() const {
        const u32 address = shared + QUERY_BYTES + value_place.stage * STAGE_BYTES + TILE_BYTES;
        return __shfl_sync(ALL, describe<KEYS * 2 * COLUMN>(address), 0);
    }
    __device__ __forceinline__ void wait_for(Tensor tensor, const Place &place) const {
        wait_for_phase(there(shared, tensor, place.stage), place.parity);
    }
    // After a wait for the products that read it.
    __device__ __forceinline__ void give_back(Tensor tensor, Place &place) const {
        if (lane == 0) arrive(vacant(shared, tensor, place.stage));
        place.advance();
    }
    // Weights of the tile whose product with keys is over.
    __device__ __forceinline__ Growth weigh_tile(Rows &rows, Logits &logits, int row, int key) const {
        if (key + KEYS > keys_seen(p, row)) hide(p, logits, row + lane / 4, key + 2 * (lane % 4));
        return exponentiate(rows, logits, p.scale);
    }
    __device__ __forceinline__ void compute(const Block<BLOCK_M> &block);
};

__device__ __forceinline__ void Consumer::compute(const Block<BLOCK_M> &block) {
    const int group_row = block.first + group * GROUP_ROWS, row = block.first + warp * ROWS, tiles = tiles_of(block.keys);
    // Of a group without a query none; under a causal mask those that the group's last query sees.
    const int seen = group_row < p.queries ? min(tiles, tiles_of(keys_seen(p, group_row + GROUP_ROWS - 1))) : 0;
    const u32 queries = describe(shared + group * GROUP_ROWS * 2 * COLUMN);
    Rows rows;
    Logits logits;
    Weights weights;
    wait_for_phase(there(shared, QUERY, 0), parity);
    parity ^= 1;
    if (seen > 0 && !OVERLAP) {
#pragma unroll 1
        for (int tile = 0; tile < seen; tile++) {
            const u32 these_keys = keys(), these_values = values();
            wait_for(KEY, key_place);
            start_logits(logits, queries, these_keys);
            wait_for_products<0>();
            give_back(KEY, key_place);
            const Growth growth = weigh_tile(rows, logits, row, tile * KEYS);
            if (growth.any) rescale(rows, growth);
            round_weights(weights, logits);
            wait_for(VALUES, value_place);
            start_outputs(rows, weights, these_values);
            wait_for_products<0>();
            give_back(VALUES, value_place);
        }
    }
    if (seen > 0 && OVERLAP) {
        const u32 first_keys = keys();
        wait_for(KEY, key_place);
        begin_turn(group);
        start_logits(logits, queries, first_keys);
        end_turn(group);
        wait_for_products<0>();
        give_back(KEY, key_place);
        weigh_tile(rows, logits, row, 0); // outputs are zero, whatever the factor
        round_weights(weights, logits);
#pragma unroll 1
        for (int tile = 1; tile < seen; tile++) {
            const u32 these_keys = keys(), last_values = values();
            wait_for(KEY, key_place);
            wait_for(VALUES, value_place);
            begin_turn(group);
            start_logits(logits, queries, these_keys);
            start_outputs(rows, weights, last_values);
            end_turn(group);
            wait_for_products<1>();
            give_back(KEY, key_place);
            const Growth growth = weigh_tile(rows, logits, row, tile * KEYS);
            wait_and_rescale(rows, logits, growth, p.queries < 0);
            give_back(VALUES, value_place);
            round_weights(weights, logits);
        }
    }
    if (lane == 0) arrive(vacant(shared, QUERY, 0)); // all logits are there, so queries have been read
    if (seen > 0 && OVERLAP) {
        const u32 last_values = values();
        wait_for(VALUES, value_place);
        start_outputs(rows, weights, last_values);
        wait_for_products<0>();
        give_back(VALUES, value_place);
    }
#pragma unroll 1
    for (int tile = seen; tile < tiles; tile++) { // that other groups see
        wait_for(KEY, key_place);
        wait_for(VALUES, value_place);
        begin_turn(group);
        end_turn(group);
        give_back(KEY, key_place);
        give_back(VALUES, value_place);
    }
    if (seen == 0) return;
    finish(rows);
    store_rows(p, rows, block.plane, row);
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS *(GROUPS + 1), 1)
    ladder_d08(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) char memory[];
    const u32 shared = shared_address(memory), lane = threadIdx.x % 32, warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        for (u32 at = BARRIERS_AT; at < BARRIERS_AT + 80; at += 16) {
            init_barrier(shared + at, 1);
            init_barrier(shared + at + 8, WARPS);
        }
        publish_barriers();
    }
    __syncthreads();
    if (warp < WARPS) {
        take_registers<CONSUMER_REGISTERS>();
        Consumer consumer(p, shared, warp, lane);
        if (consumer.group + 1 == GROUPS) end_turn(consumer.group); // the first turn is the first group's
        for_each_tile(p, [&](const Block<BLOCK_M> &block) { consumer.compute(block); });
        if (consumer.group == 0) begin_turn(0); // and the last one
    } else {
        give_registers<PRODUCER_REGISTERS>();
        if (warp == WARPS && lane == 0) produce(p, maps, shared);
    }
}
