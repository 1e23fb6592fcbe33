// Products by groups of four warps (wgmma, sm_90a): 64 rows, of which each warp has 16, by N columns, of 16-bit numbers summed
// in f32. They run beside the threads that start them, until waited for.
//
// Sums lie as those of `multiply_add`: of 8 columns a lane has two of row g, then of row g + 8.

// Where a matrix lies in shared memory: in columns of SPAN numbers whose rows follow each other, pieces of 16 bytes exchanged as
// TMA does it. A matrix read transposed has another such column `APART` bytes further.
//
// The lower half of a descriptor; the same plus BYTES / 16 is one of what lies as many further.
template <u32 APART = 16> static __device__ __forceinline__ u32 describe(u32 address) { return APART / 16 << 16 | address / 16; }
template <u32 SPAN> static __device__ __forceinline__ u64 descriptor(u32 lower) {
    static_assert(SPAN == 64 || SPAN == 32, "128 or 64 bytes");
    constexpr u32 EXCHANGE = SPAN == 64 ? 1 : 2, EIGHT_ROWS = 8 * 2 * SPAN;
    u64 whole;
    asm("mov.b64 %0, {%1, %2};" : "=l"(whole) : "r"(lower), "n"(EXCHANGE << 30 | EIGHT_ROWS / 16));
    return whole;
}

// Registers are as they were written before products that start now.
static __device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most so many groups of products, each ended by `end_products`, are not done.
template <int GROUPS> static __device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory"); }

// `of_shared`: sums = a * b, or sums += a * b where `add`, both in shared memory, b's rows being the sums' columns.
// `of_registers`: sums += a * b, a's fragments in registers, b read transposed: its rows are what is summed over.
template <int TYPE, int COLUMNS> struct Product;

#define SUMS_2(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define LIST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_32(d) SUMS_2(d, 0), SUMS_2(d, 2)
#define LIST_48 LIST_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SUMS_48(d) SUMS_32(d), SUMS_2(d, 4)
#define LIST_64 LIST_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_64(d) SUMS_48(d), SUMS_2(d, 6)
#define LIST_80 LIST_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SUMS_80(d) SUMS_64(d), SUMS_2(d, 8)
#define LIST_96 LIST_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_96(d) SUMS_80(d), SUMS_2(d, 10)
#define LIST_112 LIST_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SUMS_112(d) SUMS_96(d), SUMS_2(d, 12)
#define LIST_128 LIST_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_128(d) SUMS_112(d), SUMS_2(d, 14)
#define LIST_144 LIST_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SUMS_144(d) SUMS_128(d), SUMS_2(d, 16)
#define LIST_160 LIST_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SUMS_160(d) SUMS_144(d), SUMS_2(d, 18)
#define LIST_176 LIST_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SUMS_176(d) SUMS_160(d), SUMS_2(d, 20)
#define LIST_192 LIST_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_192(d) SUMS_176(d), SUMS_2(d, 22)
#define LIST_208 LIST_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SUMS_208(d) SUMS_192(d), SUMS_2(d, 24)
#define LIST_224 LIST_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SUMS_224(d) SUMS_208(d), SUMS_2(d, 26)
#define LIST_240 LIST_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SUMS_240(d) SUMS_224(d), SUMS_2(d, 28)
#define LIST_256 LIST_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_256(d) SUMS_240(d), SUMS_2(d, 30)

#define PRODUCT(TYPE, NAME, N, A, B, C, D, E)                                                                                          \
    template <> struct Product<TYPE, N> {                                                                                              \
        static __device__ __forceinline__ void of_shared(float (&d)[N / 8][4], u64 a, u64 b, int add) {                                \
            asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " C ", 0;\n\t"                                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST_##N "}, " A ", " B                  \
                         ", add, 1, 1, 0, 0;\n\t}"                                                                                   \
                         : SUMS_##N(d)                                                                                                 \
                         : "l"(a), "l"(b), "r"(add));                                                                                  \
        }                                                                                                                              \
        static __device__ __forceinline__ void of_registers(float (&d)[N / 8][4], const u32 (&a)[4], u64 b) {                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" LIST_##N "}, {" A ", " B ", " C ", " D   \
                         "}, " E ", 1, 1, 1, 1;"                                                                                       \
                         : SUMS_##N(d)                                                                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                        \
        }                                                                                                                              \
    };
#define PRODUCTS(N, A, B, C, D, E) PRODUCT(F16, "f16", N, A, B, C, D, E) PRODUCT(BF16, "bf16", N, A, B, C, D, E)
PRODUCTS(32, "%16", "%17", "%18", "%19", "%20")
PRODUCTS(48, "%24", "%25", "%26", "%27", "%28")
PRODUCTS(64, "%32", "%33", "%34", "%35", "%36")
PRODUCTS(80, "%40", "%41", "%42", "%43", "%44")
PRODUCTS(96, "%48", "%49", "%50", "%51", "%52")
PRODUCTS(112, "%56", "%57", "%58", "%59", "%60")
PRODUCTS(128, "%64", "%65", "%66", "%67", "%68")
PRODUCTS(144, "%72", "%73", "%74", "%75", "%76")
PRODUCTS(160, "%80", "%81", "%82", "%83", "%84")
PRODUCTS(176, "%88", "%89", "%90", "%91", "%92")
PRODUCTS(192, "%96", "%97", "%98", "%99", "%100")
PRODUCTS(208, "%104", "%105", "%106", "%107", "%108")
PRODUCTS(224, "%112", "%113", "%114", "%115", "%116")
PRODUCTS(240, "%120", "%121", "%122", "%123", "%124")
PRODUCTS(256, "%128", "%129", "%130", "%131", "%132")
