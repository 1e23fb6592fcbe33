// How shares of grad_query come to memory, where other blocks add to the same tiles: in turns.
//
// DIRECT: a group adds its share itself when its turn has come. Otherwise it leaves it in shared memory, which has room for the
// next one too, and need not wait. For wide heads that would be half of what shared memory has to move, for narrow ones the wait is
// short.

// Until all blocks before this one have added to a tile.
static __device__ __forceinline__ void wait_for_turn(const u32 *counter, u32 rank) {
    u32 added;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(added) : "l"(counter) : "memory");
    } while (added != rank);
}
static __device__ __forceinline__ void end_turn(u32 *counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }

// One thread: calls `take(place, counter, rank)` for each share of a group, in order.
template <typename Take> static __device__ __forceinline__ void each_share(const HopperArguments &h, const Part &part, u32 group, const Take &take) {
    const Arguments &a = h.of.of;
#pragma unroll 1
    for (u32 n = 0; n < a.group; n++) {
        const u64 plane = static_cast<u64>(part.b) * a.query_heads + part.query_head(a, n);
#pragma unroll 1
        for (int j = 0; j < part.count; j++) {
            const int tile = part.first_tile + j;
            const u64 place = (plane * h.tiles + tile) * GROUPS + group;
            take(place, h.counters + 1 + place, part.rank(h, tile));
        }
    }
}

#if DIRECT
// Its turns have the parity of a barrier: there is one stage.
typedef Stage<1> ShareStage;

// One thread: lets a group add its shares when it is their turn.
static __device__ __forceinline__ void see_to_shares(const HopperArguments &h, const Part &part, u32 group, u32, Barriers barriers) {
    ShareStage stage;
    each_share(h, part, group, [&](u64, u32 *counter, u32 rank) {
        wait_for_turn(counter, rank);
        arrive(barriers.share_free(group, 0));
        wait_for_phase(barriers.share_there(group, 0), stage.parity);
        stage.advance();
        asm volatile("fence.acq_rel.gpu;" ::: "memory"); // what other threads have added, too
        end_turn(counter);
    });
}

// A group's share of tile `tile` of head `head`. `thread`: of the group.
static __device__ __forceinline__ void give_share(const HopperArguments &h, const Part &part, u32 head, int tile, const float (&sums)[SHARE / 8][4], u32 group,
                                                  u32 thread, u32, Barriers barriers, ShareStage &stage) {
    const u64 plane = static_cast<u64>(part.b) * h.of.of.query_heads + head;
    float *const to = h.grad_query + ((plane * h.tiles + tile) * GROUPS + group) * (SHARE_BYTES / 4) + 4 * thread;
    const bool first = STORE_FIRST && part.rank(h, tile) == 0;
    wait_for_phase(barriers.share_free(group, 0), stage.parity);
    stage.advance();
    if (first) {
#pragma unroll
        for (u32 c = 0; c < SHARE / 8; c++)
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 4 * GROUP_THREADS), "f"(sums[c][0]), "f"(sums[c][1]), "f"(sums[c][2]),
                         "f"(sums[c][3])
                         : "memory");
    } else {
#pragma unroll
        for (u32 c = 0; c < SHARE / 8; c++)
            asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + c * 4 * GROUP_THREADS), "f"(sums[c][0]), "f"(sums[c][1]), "f"(sums[c][2]),
                         "f"(sums[c][3])
                         : "memory");
    }
    __syncwarp();
    if (thread % 32 == 0) arrive(barriers.share_there(group, 0));
}
#else
typedef Stage<SHARE_STAGES> ShareStage;

static __device__ __forceinline__ u32 share_at(u32 shared, u32 group, u32 stage) { return shared + SHARES_AT + (stage * GROUPS + group) * SHARE_BYTES; }

// One thread: adds a group's shares when it is their turn.
static __device__ __forceinline__ void see_to_shares(const HopperArguments &h, const Part &part, u32 group, u32 shared, Barriers barriers) {
    ShareStage stage;
    each_share(h, part, group, [&](u64 place, u32 *counter, u32 rank) {
        float *const to = h.grad_query + place * (SHARE_BYTES / 4);
        const u32 from = share_at(shared, group, stage.index);
        wait_for_phase(barriers.share_there(group, stage.index), stage.parity);
        wait_for_turn(counter, rank);
        asm volatile("fence.proxy.async;" ::: "memory");
        if (STORE_FIRST && rank == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "n"(SHARE_BYTES) : "memory");
        } else {
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "n"(SHARE_BYTES) : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        arrive(barriers.share_free(group, stage.index));
        stage.advance();
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        end_turn(counter);
    });
}

// A group's share of a tile. `thread`: of the group.
static __device__ __forceinline__ void give_share(const HopperArguments &, const Part &, u32, int, const float (&sums)[SHARE / 8][4], u32 group, u32 thread,
                                                  u32 shared, Barriers barriers, ShareStage &stage) {
    wait_for_phase(barriers.share_free(group, stage.index), stage.parity ^ 1);
#pragma unroll
    for (u32 c = 0; c < SHARE / 8; c++)
        store_shared(share_at(shared, group, stage.index) + (c * GROUP_THREADS + thread) * 16,
                     {__float_as_uint(sums[c][0]), __float_as_uint(sums[c][1]), __float_as_uint(sums[c][2]), __float_as_uint(sums[c][3])});
    fence_async();
    __syncwarp();
    if (thread % 32 == 0) arrive(barriers.share_there(group, stage.index));
    stage.advance();
}
#endif

static __device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(ALL, x, 0); }

// The kernel, whose groups `compute`.
template <typename Compute> static __device__ __forceinline__ void run(const HopperArguments &h, const Maps &maps, char *memory, const Compute &compute) {
    const u32 lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), shared = shared_address(memory);
    const Barriers barriers{shared + BARRIERS_AT};
    if (threadIdx.x == 0) {
        barriers.init();
        store_shared_word(barriers.number(), atomicAdd(h.counters, 1));
    }
    __syncthreads();
    const Part part(h, load_shared_word(barriers.number()));
    if (warp < 4 * GROUPS) {
        take_registers<240>();
        compute(part, shared, barriers, warp, lane);
    } else {
        give_registers<24>();
        if (warp == 4 * GROUPS) bring_tiles(h, maps, part, shared, barriers, lane);
        const u32 adder = warp - 4 * GROUPS - 1; // of the group with this number
        if (SUM_QUERY && adder < GROUPS && lane == 0) see_to_shares(h, part, adder, shared, barriers);
    }
}
