// Gradients of dense attention on Hopper (sm_90a), heads of more than 128 channels: see hopper.cuh.
//
// A block has 64 keys, for whose sums of all channels one group has too few registers: each has half of them. Of logits and their
// gradients each group computes those of half of a tile's queries, and both read all of them from shared memory.
// Limited by shared memory, through which everything but grad_query goes.
//
// VALUE, HEAD (256), MASK, ATTN, SUM_QUERY as in gradient_wgmma.cu; BLOCK_M, BLOCK_N: 64; WARPS 8, KEY_WARPS 2, for masks.

constexpr u32 HALF_QUERIES = BLOCK_N / GROUPS, HALF = HEAD / GROUPS;
typedef u32 Fragments[HALF_QUERIES / 16][4];
typedef float Sums[HALF / 8][4];

// out = left * right: all keys or values by half of a tile of queries or grad_out.
static __device__ __forceinline__ void multiply(Logits &out, u32 left, u32 right) {
    begin_products();
#pragma unroll
    for (u32 c = 0; c < HEAD; c += 16) {
        const u32 column = c / SPAN * SPAN * 2, within = c % SPAN * 2;
        Product<VALUE, HALF_QUERIES>::of_shared(out[0], descriptor<SPAN>(left + (column * BLOCK_M + within) / 16),
                                                descriptor<SPAN>(right + (column * BLOCK_N + within) / 16), c > 0);
    }
    end_products();
}

// sums += left * right, left in shared memory as it lies, right read transposed.
template <int TYPE> static __device__ __forceinline__ void add_product(Sums &d, u64 a, u64 b);
#define ADD_PRODUCT(TYPE, NAME)                                                                                                        \
    template <> __device__ __forceinline__ void add_product<TYPE>(Sums & d, u64 a, u64 b) {                                            \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" LIST_128 "}, %64, %65, 1, 1, 1, 0, 1;"          \
                     : SUMS_128(d)                                                                                                     \
                     : "l"(a), "l"(b));                                                                                                \
    }
ADD_PRODUCT(F16, "f16")
ADD_PRODUCT(BF16, "bf16")
static_assert(HALF == 128, "as the products have it");

static __device__ __forceinline__ void add(Sums &sums, u32 left, u32 right) {
    begin_products();
#pragma unroll
    for (u32 k = 0; k < BLOCK_N / 16; k++) add_product<VALUE>(sums, descriptor<SPAN>(left + k * 2), descriptor<SPAN>(right + k * 2 * SPAN));
    end_products();
}

static __device__ __forceinline__ void compute(const HopperArguments &h, const Part &part, u32 shared, Barriers barriers, u32 warp, u32 lane) {
    const GradientArguments &g = h.of;
    const Arguments &a = g.of;
    const u32 group = warp / 4;
    Sums grad_key, grad_value;
#pragma unroll
    for (u32 i = 0; i < HALF / 2; i++) grad_key[i / 4][i % 4] = grad_value[i / 4][i % 4] = 0.0f;
    const u32 keys_at = uniform(describe(shared)), values_at = uniform(describe(shared + VALUES_OF_BLOCK));
    // The group's half of the channels.
    const u32 half_at = uniform(describe<BLOCK_M * 128>(shared + group * (HALF / 64) * BLOCK_M * 128));
    const int warp_key = part.first_key + static_cast<int>(warp % 4 * 16);
    Stage<STAGES> stage, logit_grad_stage;
    ShareStage share_stage;
    wait_for_phase(barriers.keys(), 0);
#pragma unroll 1
    for (u32 n = 0; n < a.group; n++) {
        Work work(a, 0, part.first_key, BLOCK_M, 0);
        work.b = part.b;
        work.h = part.query_head(a, n);
        Masking masking(a, work, warp_key, lane);
#pragma unroll 1
        for (int j = 0; j < part.count; j++) {
            const int query = work.key_of(j) + static_cast<int>(group * HALF_QUERIES);
            const u32 of_queries = shared + QUERIES_AT + stage.index * QUERY_TILE_BYTES, of_grads = shared + GRADS_AT + stage.index * QUERY_TILE_BYTES;
            const u32 statistics = shared + STATISTICS_AT + stage.index * STATISTICS_BYTES + group * HALF_QUERIES * 8 + lane % 4 * 16;
            const u32 weights_at = shared + LOGIT_GRADS_AT + logit_grad_stage.index * LOGIT_GRAD_BYTES, logit_grads_at = weights_at + LOGIT_GRAD_BYTES / 2;
            const u32 row = warp % 4 * 16 + lane % 16, first_piece = group * (HALF_QUERIES / 8);
            masking.load(some_hidden(j), j, query);
            Logits weights, grads;
            wait_for_phase(barriers.queries_there(stage.index), stage.parity);
            multiply(weights, keys_at, uniform(describe(of_queries + group * HALF_QUERIES * 128)));
            wait_for_phase(barriers.grads_there(stage.index), stage.parity);
            multiply(grads, values_at, uniform(describe(of_grads + group * HALF_QUERIES * 128)));
            wait_for_products<1>();
            const float scale = masking.apply(weights, a.scale, query);
            hide_keys_after_last(a, weights[0], warp_key, lane);
            weigh(weights[0], scale, statistics);
            Fragments fragments;
            pack(fragments, weights[0]);
            store_fragments(fragments, weights_at, row, first_piece, lane);
            wait_for_products<0>();
            differentiate(grads[0], weights[0], statistics);
            pack(fragments, grads[0]);
            store_fragments(fragments, logit_grads_at, row, first_piece, lane);
            fence_async();
            wait_for_others(2, GROUPS * GROUP_THREADS); // both groups' are there
            add(grad_value, uniform(describe(weights_at)), uniform(describe<BLOCK_N * 128>(of_grads + group * (HALF / 64) * BLOCK_N * 128)));
            add(grad_key, uniform(describe(logit_grads_at)), uniform(describe<BLOCK_N * 128>(of_queries + group * (HALF / 64) * BLOCK_N * 128)));
            if (SUM_QUERY) {
                float share[SHARE / 8][4];
                const u32 left = uniform(describe<BLOCK_M * 128>(logit_grads_at));
                begin_products();
#pragma unroll
                for (u32 k = 0; k < BLOCK_M / 16; k++)
                    TransposedProduct<VALUE, SHARE>::of_shared(share, descriptor<SPAN>(left + k * 2 * SPAN), descriptor<SPAN>(half_at + k * 2 * SPAN), k > 0);
                end_products();
                wait_for_products<2>();
                release_grads(barriers.grads_free(stage.index), lane);
                wait_for_products<1>();
                release_queries(barriers.queries_free(stage.index));
                wait_for_products<0>();
                give_share(h, part, work.h, part.first_tile + j, share, group, threadIdx.x % GROUP_THREADS, shared, barriers, share_stage);
            } else {
                wait_for_products<0>();
                release_grads(barriers.grads_free(stage.index), lane);
                release_queries(barriers.queries_free(stage.index));
            }
            logit_grad_stage.advance();
            stage.advance();
        }
    }
    const int own = warp_key + static_cast<int>(lane / 4);
    u32 unsound = store_sums(grad_key, g.sum, g.sum_strides, part, own, a.queries, group * HALF, a.channels, g.factor, lane);
    unsound |= store_sums(grad_value, g.value_sum, g.value_sum_strides, part, own, a.queries, group * HALF, a.value_channels, 1.0f, lane);
    // Both groups have a part of each row, and write all of those they mend.
    wait_for_others(2, GROUPS * GROUP_THREADS);
    mend(g, part, warp_key, unsound, lane);
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS *(GROUPS + 1), 1)
    dense_gradient_wgmma_wide(const __grid_constant__ HopperArguments h, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) char memory[];
    run(h, maps, memory, [&](const Part &part, u32 shared, Barriers barriers, u32 warp, u32 lane) { compute(h, part, shared, barriers, warp, lane); });
}
