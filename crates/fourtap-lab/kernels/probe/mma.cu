// The ceiling of tensor cores by `mma.sync`: 16x16 times 16x64 of f16, summed in f32, out of registers.
//
// One warp: the same product again and again, on eight sums of 16x8 in turn; its right factor's columns are rotated by
// its number, so that no two warps need give the same. Whole numbers, so that every sum is exact.
// Limited by the tensor cores; the instruction is that of earlier devices and does not reach all that Hopper's have.

#define THREADS 256
#define TILES 8
#define COLUMNS (TILES * 8)

__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// left: [16][16]; right: [COLUMNS][16], a column's numbers together; products: [warps][16][COLUMNS].
extern "C" __global__ void __launch_bounds__(THREADS)
    probe_mma(const u32 *left, const u32 *right, u32 rounds, float *products) {
    const u32 warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
    const u32 row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    // Two numbers a word: rows of 8 words.
    const u32 a[4] = {left[row * 8 + pair], left[(row + 8) * 8 + pair], left[row * 8 + pair + 4],
                      left[(row + 8) * 8 + pair + 4]};
    u32 b[TILES][2];
    float d[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const u32 column = (i * 8 + row + warp) % COLUMNS;
        b[i][0] = right[column * 8 + pair];
        b[i][1] = right[column * 8 + pair + 4];
#pragma unroll
        for (int j = 0; j < 4; j++) d[i][j] = 0;
    }
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < TILES; i++) multiply_add(d[i], a, b[i]);
    }
    float *mine = products + static_cast<u64>(warp) * (16 * COLUMNS);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) mine[(row + j / 2 * 8) * COLUMNS + i * 8 + pair * 2 + j % 2] = d[i][j];
    }
}
