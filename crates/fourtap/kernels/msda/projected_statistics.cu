// Backward from projections, where gradients of samples are not wanted: the softmax statistics of each row of logits,
// which sorting needs. (Otherwise the kernel that computes those gradients stores them.) A thread takes a row.
//
// WEIGHT: element type of logits. VALUE: F64 where that is the type of value, else F32.

extern "C" __global__ void __launch_bounds__(256)
    msda_projected_statistics(const __grid_constant__ Arguments a, const __grid_constant__ Projection p) {
    typedef Element<VALUE>::Real Real;
    const i64 rows = a.images * a.queries * a.heads, threads = static_cast<i64>(gridDim.x) * blockDim.x;
    for (i64 row = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; row < rows; row += threads) {
        // As logits lie, so that a warp reads neighbouring rows.
        const i64 m = row % a.heads, q = row / a.heads % a.queries, n = row / a.heads / a.queries;
        kept_statistics<Real>(a, p, n, q, m) =
            statistics_of<Real>(logits_of(a, n, q, m), a.weight_strides[3], p.first[a.levels]);
    }
}
