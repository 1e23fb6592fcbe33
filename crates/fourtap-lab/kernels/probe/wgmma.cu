// The ceiling of Hopper's tensor cores: 64x64 times 64x256 of f16, summed in f32, both factors in shared memory.
//
// One block: one warp group that adds the same product to its sums again and again, in steps of 16 of the inner
// dimension; its right factor's columns are rotated by its number, so that no two blocks need give the same. Whole
// numbers, so that every sum is exact.
// Limited by the tensor cores, or by the power they may draw.

#define THREADS 128
#define ROWS 64
#define COLUMNS 256
#define INNER 64
#define STEP 16
// Products a round: between two rounds the warp group waits for the tensor cores.
#define PRODUCTS 4

// Shared memory holds cores of 8 rows (or columns) of 16 bytes, 128 bytes each: all cores of the first 8 numbers of a
// step, then those of the last 8.
#define CORE 128

// How far cores of one row are apart (leading) and how far the next 8 rows are (stride), in a descriptor for wgmma.
__device__ __forceinline__ u64 descriptor(u32 address, u32 leading) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(CORE >> 4) << 32;
}

__device__ __forceinline__ void multiply_add(float (&d)[128], u64 left, u64 right) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                   "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                   "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                   "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                   "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                   "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                   "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                   "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(left), "l"(right));
}

// Takes a factor of `lines` rows (or columns) of INNER numbers into shared memory, a line's numbers together before.
__device__ __forceinline__ void take(u32 shared, const char *factor, u32 lines, u32 rotated) {
    for (u32 at = threadIdx.x; at < lines * (INNER / 8); at += THREADS) {
        const u32 line = at / (INNER / 8), eight = at % (INNER / 8);
        const Words words = load(factor + ((line + rotated) % lines * (INNER / 8) + eight) * 16);
        store_shared(shared + eight * (lines / 8 * CORE) + line / 8 * CORE + line % 8 * 16, words);
    }
}

// left: [ROWS][INNER]; right: [COLUMNS][INNER]; products: [blocks][ROWS][COLUMNS].
extern "C" __global__ void __launch_bounds__(THREADS)
    probe_wgmma(const char *left, const char *right, u32 rounds, float *products) {
    __shared__ __align__(128) char a[ROWS * INNER * 2];
    __shared__ __align__(128) char b[COLUMNS * INNER * 2];
    take(shared_address(a), left, ROWS, 0);
    take(shared_address(b), right, COLUMNS, blockIdx.x % COLUMNS);
    // What was stored is for the tensor cores to see, which read shared memory by another way.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    const u64 first_left = descriptor(shared_address(a), ROWS / 8 * CORE);
    const u64 first_right = descriptor(shared_address(b), COLUMNS / 8 * CORE);
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; i++) d[i] = 0;
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int product = 0; product < PRODUCTS; product++) {
#pragma unroll
            for (int step = 0; step < INNER / STEP; step++) {
                // A step has two rows of cores.
                multiply_add(d, first_left + step * (2 * ROWS / 8 * CORE >> 4),
                             first_right + step * (2 * COLUMNS / 8 * CORE >> 4));
            }
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    const u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    float *mine = products + static_cast<u64>(blockIdx.x) * (ROWS * COLUMNS);
#pragma unroll
    for (int i = 0; i < 128; i++) mine[(row + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + pair * 2 + i % 2] = d[i];
}
