// A15, tensor cores: small levels as dense products, out[q, :] += W[q, pixels] * V[pixels, D].
//
// A block takes tiles of QUERIES queries of one image and head. The dense levels' pixels lie in its shared memory (V),
// and so does W in f32: the thread of a query and level adds 4 * POINTS weights to its part of a row, nobody else's,
// and clears just those after the product. A warp multiplies 16 rows by some channels or some of the pixels (mma.sync,
// f32 sums); W is split there into two f16 numbers each, which together keep 22 bits (SPLIT 0: one, 11 bits). Other
// levels are gathered as described in records.cuh, while the next tile's W is built; sums begin with the products.
//
// A dense level costs a row DENSE_K words of W to read and 12 * POINTS words to change, a gathered one 4 * POINTS
// pixels. With 64-byte pixels that is no gain, since W takes memory from L1; with 128 bytes and more it should be one.
//
// THREADS and TILES of a block; QUERIES of a tile; DENSE_MASK: which levels are dense; DENSE_K: their pixels, rounded
// up to 16; PARTS_N, PARTS_K: of a product of 16 rows, one a warp. Weights must be in the range of f16.

constexpr int TILES_M = QUERIES / 16;
constexpr int PART_CHANNELS = CHANNELS / PARTS_N;
constexpr int STEPS_K = DENSE_K / 16;
static_assert(TILES_M * PARTS_N * PARTS_K == WARPS, "a part of the product for each warp");
// Words of a row of W: neighbouring rows begin in opposite halves of the banks, for 16-byte loads.
constexpr int W_PITCH = DENSE_K + (DENSE_K % 32 == 0 ? 16 : 0);
constexpr int V_PITCH = PIXEL_BYTES + 16; // bytes: an odd number of 16, for ldmatrix
constexpr int P_PITCH = CHANNELS + 8;     // floats of a row of products
constexpr int W_AT = DENSE_K * V_PITCH;
constexpr int P_AT = W_AT + QUERIES * W_PITCH * 4;
constexpr int RECORDS_AT = P_AT + PARTS_K * QUERIES * P_PITCH * 4;

// Levels, four bits each.
struct List {
    u64 levels;
    int count;
    __device__ __forceinline__ int operator[](int number) const { return levels >> 4 * number & 15; }
};
__device__ constexpr List listed(u32 mask) {
    List list = {0, 0};
    for (int level = 0; level < LEVELS; level++) {
        if (mask >> level & 1) list.levels |= static_cast<u64>(level) << 4 * list.count++;
    }
    return list;
}
constexpr List DENSE = listed(DENSE_MASK), GATHERED = listed(~DENSE_MASK);

// The row of V that holds a dense pixel: so that four neighbouring words of W are columns 2t, 2t + 1, 2t + 8 and 2t + 9
// of a fragment, which is what a lane needs.
__device__ __forceinline__ u32 row_of_pixel(u32 pixel) {
    return (pixel & ~15u) | (pixel >> 1 & 6u) | (pixel & 1u) | (pixel & 2u) << 2;
}

// d[16x8] += a[16x16] * b[16x8].
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices, rows for columns; lanes 8i to 8i + 7 say where the rows of matrix i lie.
__device__ __forceinline__ Words load_transposed(u32 address) {
    Words v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Two weights as the sum of two f16 numbers each.
__device__ __forceinline__ void split(u32 low, u32 high, u32 &coarse, u32 &fine) {
    const float weights[2] = {__uint_as_float(low), __uint_as_float(high)};
    coarse = rounded(weights[0], weights[1]);
    float near[2];
    widen(coarse, near[0], near[1]);
    fine = rounded(weights[0] - near[0], weights[1] - near[1]);
}

// Copies the dense levels of an image and head.
__device__ __forceinline__ void load_dense(const Problem &p, const char *value, u32 target) {
    const u64 stride = pixel_stride(p);
    u32 first = 0;
    for (int number = 0; number < DENSE.count; number++) {
        const Level level = p.levels[DENSE[number]];
        const u32 pixels = level.width * level.height;
        for (u32 i = threadIdx.x; i < pixels * VECTORS; i += THREADS) {
            const u32 pixel = i / VECTORS, vector = i % VECTORS;
            copy_async(target + row_of_pixel(first + pixel) * V_PITCH + vector * 16,
                       value + (level.start + pixel) * stride + vector * 16);
        }
        first += pixels;
    }
    for (u32 i = threadIdx.x; i < (DENSE_K - first) * VECTORS; i += THREADS) {
        store_shared(target + row_of_pixel(first + i / VECTORS) * V_PITCH + i % VECTORS * 16, {0, 0, 0, 0});
    }
    commit_copies();
    wait_for_copies<0>();
}

// Adds the weights of a tile to W, or clears what they were added to.
template <bool CLEAR> __device__ __forceinline__ void change_weights(const Problem &p, float *w, u32 row, u32 live) {
    for (u32 i = threadIdx.x; i < QUERIES * DENSE.count; i += THREADS) {
        const u32 query = i % QUERIES;
        if (query >= live) continue;
        u32 first = query * W_PITCH;
        for (int before = 0; before < i / QUERIES; before++) {
            const Level level = p.levels[DENSE[before]];
            first += level.width * level.height;
        }
        const int number = DENSE[i / QUERIES];
        const Level level = p.levels[number];
        const u32 right = level.width > 1 ? 1 : 0, down = level.height > 1 ? level.width : 0;
        const u64 sample = static_cast<u64>(row + query * p.heads) * SAMPLES + number * POINTS;
        constexpr int AT_ONCE = POINTS % 4 == 0 ? 4 : POINTS % 2 == 0 ? 2 : 1;
#pragma unroll 1
        for (int point = 0; point < POINTS; point += AT_ONCE) {
            float2 locations[AT_ONCE];
            float weights[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                locations[j] = p.locations[sample + point + j];
                weights[j] = CLEAR ? 0.0f : p.weights[sample + point + j];
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const Axis x = axis_of(locations[j].x, level.width), y = axis_of(locations[j].y, level.height);
                float *at = w + first + y.first * level.width + x.first;
                if (CLEAR) {
                    at[0] = at[right] = at[down] = at[down + right] = 0.0f;
                    continue;
                }
                const float all = weights[j] * x.inside * y.inside, lower = all * y.second, upper = all - lower;
                const float lower_right = lower * x.second, upper_right = upper * x.second;
                const float old[4] = {at[0], at[right], at[down], at[down + right]};
                // Where a level has one column or row, neighbours coincide: the one with all the weight is stored last.
                at[down + right] = old[3] + lower_right;
                at[down] = old[2] + (lower - lower_right);
                at[right] = old[1] + upper_right;
                at[0] = old[0] + (upper - upper_right);
            }
        }
    }
}

// A warp's part of W * V, to where the sums begin.
__device__ __forceinline__ void multiply_part(u32 v, u32 w, float *products) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 m = warp % TILES_M, n = warp / TILES_M % PARTS_N, k = warp / TILES_M / PARTS_N;
    const u32 row = m * 16 + lane / 4, channel = n * PART_CHANNELS;
    const u32 rows = w + (row * W_PITCH + lane % 4 * 4) * 4;
    const u32 columns = v + lane % 16 * V_PITCH + channel * 2 + lane / 16 * 16;
    float d[PART_CHANNELS / 8][4] = {};
    for (u32 step = k * STEPS_K / PARTS_K; step < (k + 1) * STEPS_K / PARTS_K; step++) {
        const Words upper = load_shared(rows + step * 64), lower = load_shared(rows + step * 64 + 8 * W_PITCH * 4);
        u32 coarse[4], fine[4];
        split(upper.x, upper.y, coarse[0], fine[0]);
        split(lower.x, lower.y, coarse[1], fine[1]);
        split(upper.z, upper.w, coarse[2], fine[2]);
        split(lower.z, lower.w, coarse[3], fine[3]);
#pragma unroll
        for (int i = 0; i < PART_CHANNELS / 8; i += 2) {
            const Words b = load_transposed(columns + step * (16 * V_PITCH) + i * 16);
            multiply(d[i], coarse, b.x, b.y);
            multiply(d[i + 1], coarse, b.z, b.w);
            if (SPLIT) {
                multiply(d[i], fine, b.x, b.y);
                multiply(d[i + 1], fine, b.z, b.w);
            }
        }
    }
    float *to = products + (k * QUERIES + row) * P_PITCH + channel + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < PART_CHANNELS / 8; i++) {
        *reinterpret_cast<float2 *>(to + i * 8) = {d[i][0], d[i][1]};
        *reinterpret_cast<float2 *>(to + 8 * P_PITCH + i * 8) = {d[i][2], d[i][3]};
    }
}

// The levels that are not dense, and the store.
__device__ __forceinline__ void gather(const Problem &p, const char *value, const float *products, u32 records, u32 row,
                                       u32 live) {
    const u32 lane = threadIdx.x % 32, group = lane / LANES, in_group = lane % LANES, stride = p.heads * PIXEL_BYTES;
    const u32 first_record = records + (threadIdx.x / 32) * RECORD_BYTES + group * 16;
    constexpr int ITEMS = GATHERED.count * CHUNKS;
    for (u32 slot = threadIdx.x; slot < QUERIES * LANES; slot += THREADS) {
        const u32 query = slot / LANES;
        const bool mine = query < live;
        const u64 at = row + static_cast<u64>(mine ? query : 0) * p.heads;
        float sums[VECTOR] = {};
#pragma unroll
        for (int k = 0; k < PARTS_K; k++) {
            const float *part = products + (k * QUERIES + query) * P_PITCH + in_group * VECTOR;
#pragma unroll
            for (int i = 0; i < VECTOR; i += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(part + i);
                sums[i] += four.x;
                sums[i + 1] += four.y;
                sums[i + 2] += four.z;
                sums[i + 3] += four.w;
            }
        }
        Pending pending;
        const auto ask = [&](int item) {
            const int point = item % CHUNKS * CHUNK + in_group * PER_LANE;
            pending.ask(p, at * SAMPLES + GATHERED[item / CHUNKS] * POINTS + point, mine && point < POINTS);
        };
        if (ITEMS > 0) ask(0);
#pragma unroll 1
        for (int item = 0; item < ITEMS; item++) {
            const Pending current = pending;
            if (item + 1 < ITEMS) ask(item + 1);
            const Level level = p.levels[GATHERED[item / CHUNKS]];
            share_records(current, first_record, group, in_group, level.width, level.height);
            const char *first = value + static_cast<u64>(level.start) * stride + in_group * 16;
            const int left = POINTS - item % CHUNKS * CHUNK;
            add_chunk(sums, first_record, left, Global{first}, stride, level.width, level.height);
        }
        if (mine) store_sums(p.out + (at * VECTORS + in_group) * 16, sums);
    }
}

// W leaves a multiprocessor room for about 512 threads: let them have its registers.
extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS) ladder_a15(const __grid_constant__ Problem p) {
    extern __shared__ __align__(1024) char memory[];
    float *w = reinterpret_cast<float *>(memory + W_AT), *products = reinterpret_cast<float *>(memory + P_AT);
    const u32 blocks = (p.queries + QUERIES * TILES - 1) / (QUERIES * TILES), plane = blockIdx.x / blocks;
    const u32 image = plane / p.heads, head = plane % p.heads, first_query = blockIdx.x % blocks * (QUERIES * TILES);
    const char *value = value_of_row(p, image * p.queries * p.heads + head);
    const u32 row = (image * p.queries + first_query) * p.heads + head, live = p.queries - first_query;
    load_dense(p, value, shared_address(memory));
    for (u32 i = threadIdx.x; i < QUERIES * W_PITCH / 4; i += THREADS) {
        store_shared(shared_address(w) + i * 16, {0, 0, 0, 0});
    }
    __syncthreads();
    change_weights<false>(p, w, row, live);
    for (u32 tile = 0; tile < TILES && tile * QUERIES < live; tile++) {
        const u32 done = tile * QUERIES, next = done + QUERIES;
        const u32 this_row = row + done * p.heads, next_row = row + next * p.heads;
        __syncthreads(); // W is whole, and the products of the tile before have been read
        multiply_part(shared_address(memory), shared_address(w), products);
        __syncthreads();
        change_weights<true>(p, w, this_row, live - done);
        if (tile + 1 < TILES && next < live) change_weights<false>(p, w, next_row, live - next);
        gather(p, value, products, shared_address(memory + RECORDS_AT), this_row, live - done);
    }
}
