// Backward from projections, last: gradients of reference points. A warp sums one reference point over heads, points
// and broadcast axes, always in the same order.
//
// LOCATION, REFERENCE: element types. VALUE: F64 where that is the type of value, else F32. BOXES: see
// projection.cuh.

// What there is to be summed. Mirrored in src/cuda/msda/projected/arguments.rs.
struct ReferenceGradients {
    void *gradient;
    i64 strides[5]; // of the gradient, in elements
    i64 sizes[4];   // of its axes N, Q, L and P
};

extern "C" __global__ void __launch_bounds__(256)
    msda_projected_references(const __grid_constant__ Arguments a, const __grid_constant__ Projection p,
                             const __grid_constant__ ReferenceGradients r) {
    typedef Element<VALUE>::Real Real;
    const u32 lane = threadIdx.x % 32;
    const i64 count = r.sizes[0] * r.sizes[1] * r.sizes[2] * r.sizes[3];
    const i64 warps = static_cast<i64>(gridDim.x) * (blockDim.x / 32), samples = p.first[a.levels];
    for (i64 at = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; at < count; at += warps) {
        const i64 turn = at % r.sizes[3], l0 = at / r.sizes[3] % r.sizes[2];
        const i64 q0 = at / r.sizes[3] / r.sizes[2] % r.sizes[1], n0 = at / r.sizes[3] / r.sizes[2] / r.sizes[1];
        // From the first to the one after the last of what it stands for.
        const i64 n1 = r.sizes[0] == 1 ? a.images : n0 + 1, q1 = r.sizes[1] == 1 ? a.queries : q0 + 1;
        const int l1 = static_cast<int>(r.sizes[2] == 1 ? a.levels : l0 + 1);
        Real sums[4] = {};
        for (i64 n = n0; n < n1; n++) {
            for (i64 q = q0; q < q1; q++) {
                for (int l = static_cast<int>(l0); l < l1; l++) {
                    const Level level = level_of(a, l);
                    const u32 points = p.first[l + 1] - p.first[l];
                    // Those of this turn, of all heads.
                    const u32 each = points > turn ? (points - static_cast<u32>(turn) + p.turns - 1) / p.turns : 0;
                    for (u32 i = lane; i < each * a.heads; i += 32) {
                        const i64 m = i / each, k = p.first[l] + turn + i % each * p.turns;
                        const Real *const by = static_cast<const Real *>(p.places) +
                                               (((n * a.queries + q) * a.heads + m) * samples + k) * 2;
                        const Real by_x = by[0], by_y = by[1];
                        sums[0] += by_x * Real(level.width);
                        sums[1] += by_y * Real(level.height);
#if BOXES
                        const auto placed = place_point<Real>(a, p, n, q, m, l, static_cast<int>(k - p.first[l]), level.width,
                                                              level.height);
                        if (by_x != Real(0)) sums[2] += by_x * placed.by_extent_x;
                        if (by_y != Real(0)) sums[3] += by_y * placed.by_extent_y;
#endif
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < (BOXES ? 4 : 2); i++) {
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
        }
        if (lane == 0) {
            auto *const to = static_cast<Element<REFERENCE>::Storage *>(r.gradient) + n0 * r.strides[0] + q0 * r.strides[1] +
                             l0 * r.strides[2] + turn * r.strides[3];
#pragma unroll
            for (int i = 0; i < (BOXES ? 4 : 2); i++) to[i * r.strides[4]] = Element<REFERENCE>::round(sums[i]);
        }
    }
}
