// D1, minimal: one query a block, a thread a channel, online softmax.
//
// For every key each thread multiplies its channel of query and key, the block adds the products up, and each thread adds
// its channel of the value. Nothing but the query is ever used twice: K and V are read whole for every query, and every
// key costs a reduction over the block with a barrier in it. It is the ruler for all others, and the first result on the
// GPU that can be believed. What binds is waiting: barriers and shuffles, one after another.

constexpr int WARPS = HEAD / 32;

extern "C" __global__ void __launch_bounds__(HEAD) ladder_d01(const __grid_constant__ Problem p) {
    // By turns, so that a thread that is ahead does not overwrite what another has yet to read.
    __shared__ float parts[2][WARPS];
    const u32 plane = blockIdx.x / p.queries, channel = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int query = blockIdx.x % p.queries, keys = keys_seen(p, query);
    const u16 *key = plane_of(p.key, plane, p.keys) + channel, *value = plane_of(p.value, plane, p.keys) + channel;
    u16 *out = p.out + static_cast<u64>(blockIdx.x) * HEAD + channel;
    const float of_query = p.scale * widen(p.query[static_cast<u64>(blockIdx.x) * HEAD + channel]);

    float maximum = minus_infinity(), sum = 0.0f, total = 0.0f;
    for (int j = 0; j < keys; j++) {
        const float part = sum_of_warp(of_query * widen(key[static_cast<u64>(j) * HEAD]));
        if (lane == 0) parts[j % 2][warp] = part;
        __syncthreads();
        float logit = 0.0f;
        for (int w = 0; w < WARPS; w++) logit += parts[j % 2][w];
        const float higher = fmaxf(maximum, logit);
        const float factor = power_of_two(maximum - higher), weight = power_of_two(logit - higher);
        sum = sum * factor + weight;
        total = total * factor + weight * widen(value[static_cast<u64>(j) * HEAD]);
        maximum = higher;
    }
    *out = rounded(total / sum);
}
