// Tensor cores by the WMMA instructions: products of 16x16 matrices in shared memory, summed in f32.
//
// Which lane holds which number is nobody's business: a sum can be stored, loaded and added to, but not scaled row by row.
// Addresses are multiples of 16 bytes, and so are the distances of rows.

struct Factor {
    u32 words[8]; // bf16 uses four
};
typedef float Sums[8];

// The left factor, row by row.
__device__ __forceinline__ void load_left(Factor &f, const u16 *address, u32 pitch) {
    u32(&w)[8] = f.words;
    if (VALUE == F16) {
        asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7])
                     : "r"(shared_address(address)), "r"(pitch)
                     : "memory");
    } else {
        asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(shared_address(address)), "r"(pitch)
                     : "memory");
    }
}

// The right factor, row by row, or TRANSPOSED, column by column. A product must be told the same.
template <bool TRANSPOSED> __device__ __forceinline__ void load_right(Factor &f, const u16 *address, u32 pitch) {
    u32(&w)[8] = f.words;
    const u32 at = shared_address(address);
    if (VALUE == F16 && TRANSPOSED) {
        asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7])
                     : "r"(at), "r"(pitch)
                     : "memory");
    } else if (VALUE == F16) {
        asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7])
                     : "r"(at), "r"(pitch)
                     : "memory");
    } else if (TRANSPOSED) {
        asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(at), "r"(pitch)
                     : "memory");
    } else {
        asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(at), "r"(pitch)
                     : "memory");
    }
}

// One instruction, which PTX spells out with every register.
#define WMMA_F16(LAYOUT)                                                                                                \
    asm volatile("wmma.mma.sync.aligned.row." LAYOUT ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "            \
                 "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "                   \
                 "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                                    \
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(b[0]),   \
                   "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]))
#define WMMA_BF16(LAYOUT)                                                                                               \
    asm volatile("wmma.mma.sync.aligned.row." LAYOUT ".m16n16k16.f32.bf16.bf16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "  \
                 "{%8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3, %4, %5, %6, %7};"                          \
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]))

template <bool TRANSPOSED> __device__ __forceinline__ void add_product(Sums &s, const Factor &left, const Factor &right) {
    const u32(&a)[8] = left.words, (&b)[8] = right.words;
    if (VALUE == F16 && TRANSPOSED) {
        WMMA_F16("col");
    } else if (VALUE == F16) {
        WMMA_F16("row");
    } else if (TRANSPOSED) {
        WMMA_BF16("col");
    } else {
        WMMA_BF16("row");
    }
}

__device__ __forceinline__ void load_sums(Sums &s, const float *address, u32 pitch) {
    asm volatile("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                 : "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3]), "=f"(s[4]), "=f"(s[5]), "=f"(s[6]), "=f"(s[7])
                 : "r"(shared_address(address)), "r"(pitch)
                 : "memory");
}
__device__ __forceinline__ void store_sums(float *address, const Sums &s, u32 pitch) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(
                     shared_address(address)),
                 "f"(s[0]), "f"(s[1]), "f"(s[2]), "f"(s[3]), "f"(s[4]), "f"(s[5]), "f"(s[6]), "f"(s[7]), "r"(pitch)
                 : "memory");
}
