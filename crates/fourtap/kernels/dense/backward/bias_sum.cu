// Adds up the parts of a bias's gradient that bias.cu left in scratch, in order. Limited by memory.

extern "C" __global__ void __launch_bounds__(256) dense_gradient_bias_sum(const __grid_constant__ BiasArguments a) {
    const u64 element = static_cast<u64>(blockIdx.x) * 256 + threadIdx.x;
    if (element >= a.elements) return;
    float total = 0.0f;
#pragma unroll 8
    for (u32 part = 0; part < a.parts; part++) total += a.partial[part * a.elements + element];
    store_bias(a, element, total);
}
