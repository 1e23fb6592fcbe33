// Gradients of dense attention on Hopper (sm_90a), heads of up to 128 channels: see hopper.cuh.
//
// A group has 64 keys, or SLABS times as many of narrow heads, one slab after another: logits and gradients of weights are products of
// shared memory, weights and gradients of logits go from registers into the sums of values and keys; the latter by way of shared
// memory, too, from where all keys' of a tile are multiplied with the keys, each group computing half of the channels of grad_query.
// Limited by the tensor cores, and by waiting: one group computes while the other multiplies.
//
// VALUE, HEAD (64, 128), MASK, ATTN as elsewhere; BLOCK_M: keys, 128 * SLABS; BLOCK_N: 64; WARPS: of 16 keys each, for masks;
// SUM_QUERY: whether grad_query is wanted.

typedef u32 Fragments[BLOCK_N / 16][4];

// out = left * right, 64 rows of keys or values by a tile of queries or grad_out.
static __device__ __forceinline__ void multiply(Logits &out, u32 left, u32 right) {
    begin_products();
#pragma unroll
    for (u32 c = 0; c < HEAD; c += 16) {
        const u32 column = c / SPAN * SPAN * 2, within = c % SPAN * 2;
        Product<VALUE, BLOCK_N>::of_shared(out[0], descriptor<SPAN>(left + (column * BLOCK_M + within) / 16),
                                           descriptor<SPAN>(right + (column * BLOCK_N + within) / 16), c > 0);
    }
    end_products();
}
// sums += left * right, where rows of `right` are what is summed over.
static __device__ __forceinline__ void add(float (&sums)[HEAD / 8][4], const Fragments &left, u32 right) {
    begin_products();
#pragma unroll
    for (u32 k = 0; k < BLOCK_N / 16; k++) Product<VALUE, HEAD>::of_registers(sums, left[k], descriptor<SPAN>(right + k * 2 * SPAN));
    end_products();
}

static __device__ __forceinline__ void compute(const HopperArguments &h, const Part &part, u32 shared, Barriers barriers, u32 warp, u32 lane) {
    const GradientArguments &g = h.of;
    const Arguments &a = g.of;
    const u32 group = warp / 4;
    constexpr u32 GROUP_KEYS = 64 * SLABS;
    float grad_key[SLABS][HEAD / 8][4], grad_value[SLABS][HEAD / 8][4];
#pragma unroll
    for (u32 i = 0; i < SLABS * HEAD / 2; i++)
        grad_key[i / (HEAD / 2)][i / 4 % (HEAD / 8)][i % 4] = grad_value[i / (HEAD / 2)][i / 4 % (HEAD / 8)][i % 4] = 0.0f;

    const u32 keys_at = uniform(describe(shared + group * GROUP_KEYS * 128)), values_at = uniform(describe(shared + VALUES_OF_BLOCK + group * GROUP_KEYS * 128));
    // The group's half of the channels of all keys.
    const u32 half_at = uniform(describe<BLOCK_M * 128>(shared + (SHARE % 64 == 0 ? group * SHARE / 64 * BLOCK_M * 128 : group * SHARE * 2)));
    const int warp_key = part.first_key + static_cast<int>(group * GROUP_KEYS + warp % 4 * 16);
    Stage<STAGES> stage, logit_grad_stage;
    ShareStage share_stage;
    wait_for_phase(barriers.keys(), 0);
#pragma unroll 1
    for (u32 n = 0; n < a.group; n++) {
        Work work(a, 0, part.first_key, BLOCK_M, 0);
        work.b = part.b;
        work.h = part.query_head(a, n);
#pragma unroll 1
        for (int j = 0; j < part.count; j++) {
            const int query = work.key_of(j);
            const u32 of_queries = shared + QUERIES_AT + stage.index * QUERY_TILE_BYTES, of_grads = shared + GRADS_AT + stage.index * QUERY_TILE_BYTES;
            const u32 queries_at = uniform(describe(of_queries)), grads_at = uniform(describe(of_grads));
            const u32 query_rows = uniform(describe<BLOCK_N * 128>(of_queries)), grad_rows = uniform(describe<BLOCK_N * 128>(of_grads));
            const u32 statistics = shared + STATISTICS_AT + stage.index * STATISTICS_BYTES + lane % 4 * 16;
            const u32 logit_grads = shared + LOGIT_GRADS_AT + logit_grad_stage.index * LOGIT_GRAD_BYTES;
#pragma unroll
            for (u32 slab = 0; slab < SLABS; slab++) {
                Masking masking(a, work, warp_key + static_cast<int>(64 * slab), lane);
                masking.load(some_hidden(j), j, query);
                Logits weights, grads;
                if (slab == 0) wait_for_phase(barriers.queries_there(stage.index), stage.parity);
                multiply(weights, keys_at + slab * 64 * 128 / 16, queries_at);
                if (slab == 0) wait_for_phase(barriers.grads_there(stage.index), stage.parity);
                multiply(grads, values_at + slab * 64 * 128 / 16, grads_at);
                wait_for_products<1>();
                const float scale = masking.apply(weights, a.scale, query);
                hide_keys_after_last(a, weights[0], warp_key + static_cast<int>(64 * slab), lane);
                weigh(weights[0], scale, statistics);
                Fragments fragments;
                pack(fragments, weights[0]);
                add(grad_value[slab], fragments, grad_rows);
                wait_for_products<1>();
                differentiate(grads[0], weights[0], statistics);
                pack(fragments, grads[0]);
                if (SUM_QUERY) {
                    store_fragments(fragments, logit_grads, group * GROUP_KEYS + slab * 64 + warp % 4 * 16 + lane % 16, 0, lane);
                    fence_async();
                }
                add(grad_key[slab], fragments, query_rows);
                if (slab + 1 < SLABS) wait_for_products<0>();
            }
            if (SUM_QUERY) {
                wait_for_others(2, GROUPS * GROUP_THREADS); // all keys' gradients of logits are there
                float share[SHARE / 8][4];
                const u32 left = uniform(describe<BLOCK_M * 128>(logit_grads));
                begin_products();
#pragma unroll
                for (u32 k = 0; k < BLOCK_M / 16; k++)
                    TransposedProduct<VALUE, SHARE>::of_shared(share, descriptor<SPAN>(left + k * 2 * SPAN), descriptor<SPAN>(half_at + k * 2 * SPAN), k > 0);
                end_products();
                wait_for_products<1>();
                release_queries(barriers.queries_free(stage.index));
                release_grads(barriers.grads_free(stage.index), lane);
                wait_for_products<0>();
                give_share(h, part, work.h, part.first_tile + j, share, group, threadIdx.x % GROUP_THREADS, shared, barriers, share_stage);
                logit_grad_stage.advance();
            } else {
                wait_for_products<0>();
                release_queries(barriers.queries_free(stage.index));
                release_grads(barriers.grads_free(stage.index), lane);
            }
            stage.advance();
        }
    }
#pragma unroll
    for (u32 slab = 0; slab < SLABS; slab++) {
        const int row = warp_key + static_cast<int>(64 * slab), own = row + static_cast<int>(lane / 4);
        u32 unsound = store_sums(grad_key[slab], g.sum, g.sum_strides, part, own, a.queries, 0, a.channels, g.factor, lane);
        unsound |= store_sums(grad_value[slab], g.value_sum, g.value_sum_strides, part, own, a.queries, 0, a.value_channels, 1.0f, lane);
        mend(g, part, row, unsound, lane);
    }
}

extern "C" __global__ void __launch_bounds__(GROUP_THREADS *(GROUPS + 1), 1)
    dense_gradient_wgmma(const __grid_constant__ HopperArguments h, const __grid_constant__ Maps maps) {
    extern __shared__ __align__(1024) char memory[];
    run(h, maps, memory, [&](const Part &part, u32 shared, Barriers barriers, u32 warp, u32 lane) { compute(h, part, shared, barriers, warp, lane); });
}
