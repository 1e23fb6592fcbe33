// The gradient of a bias, as its kernels see it.

struct BiasArguments {
    GradientArguments of; // rows are queries, columns keys
    void *grad_bias;
    float *partial; // [parts, elements], where there is more than one part
    i64 strides[4]; // of grad_bias; 0 where all of an axis are summed
    u64 elements;   // of grad_bias
    u32 sizes[4];   // the same; 1 where summed
    u32 parts;      // sums of each element, to be added up
    u32 splits;     // of sequences and heads whose gradients are summed
    u32 row_tiles, column_tiles;
};

// Of element `index`, in row-major order.
static __device__ __forceinline__ void store_bias(const BiasArguments &a, u64 index, float number) {
    i64 at = 0;
    u64 left = index;
#pragma unroll
    for (int axis = 3; axis >= 0; axis--) {
        const u64 above = left / a.sizes[axis];
        at += static_cast<i64>(left - above * a.sizes[axis]) * a.strides[axis];
        left = above;
    }
    static_cast<Element<BIAS_TYPE>::Storage *>(a.grad_bias)[at] = Element<BIAS_TYPE>::round(number);
}
