// What the launcher hands to backward kernels besides `Arguments`. Mirrored in src/cuda/msda/arguments.rs.

struct Gradients {
    const void *grad_out; // [N, Q, M*D]
    // Null where nobody asked.
    void *value;     // [N, S, M, D]
    void *locations; // [N, Q, M, L, P, 2]
    void *weights;   // [N, Q, M, L, P]
    // In elements.
    i64 grad_out_strides[3], value_strides[4], location_strides[6], weight_strides[5];
};

static __device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static __device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
static __device__ __forceinline__ float whole(float number) { return floorf(number); }
static __device__ __forceinline__ double whole(double number) { return floor(number); }
static __device__ __forceinline__ float magnitude(float number) { return fabsf(number); }
static __device__ __forceinline__ double magnitude(double number) { return fabs(number); }
