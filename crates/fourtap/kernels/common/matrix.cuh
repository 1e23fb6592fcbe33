// Tensor cores, as the kernels use them: 16-bit numbers multiplied exactly and summed in f32.
//
// Of a fragment, lane 4*g + t holds row g and columns 2t and 2t + 1, two numbers a word.

// d[16x8] += a[16x16] * b[16x8]. a: rows g and g + 8 of columns 2t.., then the same of columns 2t + 8..; b: rows 2t.. and
// 2t + 8.. of column g; d: columns 2t and 2t + 1 of row g, then of row g + 8.
template <int TYPE>
static __device__ __forceinline__ void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (TYPE == F16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// Four 8x8 matrices of 16-bit numbers from shared memory, rows for columns; lane l has the address of row l % 8 of matrix l / 8.
static __device__ __forceinline__ void load_transposed(u32 (&matrices)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address));
}

// Two numbers as the sum of two of the type each: together they keep twice the digits.
template <int TYPE> static __device__ __forceinline__ void split(float low, float high, u32 &coarse, u32 &fine) {
    coarse = Element<TYPE>::round(low, high);
    float coarse_low, coarse_high;
    Element<TYPE>::widen(coarse, coarse_low, coarse_high);
    fine = Element<TYPE>::round(low - coarse_low, high - coarse_high);
}
