// Loads and stores as the kernels mean them, by PTX.

struct __align__(16) Vector {
    u32 x, y, z, w;
};

// Read-only data that will be read again soon, by other threads.
static __device__ __forceinline__ Vector load_vector(const char *address) {
    Vector v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
}

// Read-only data that nobody will read again: it shall not push out what is.
template <int BYTES> struct Once;
template <> struct Once<2> {
    static __device__ __forceinline__ void load(u32 *words, const char *address) {
        u16 half;
        asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(half) : "l"(address));
        words[0] = half;
    }
};
template <> struct Once<4> {
    static __device__ __forceinline__ void load(u32 *words, const char *address) {
        asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(words[0]) : "l"(address));
    }
};
template <> struct Once<8> {
    static __device__ __forceinline__ void load(u32 *words, const char *address) {
        asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                     : "=r"(words[0]), "=r"(words[1])
                     : "l"(address));
    }
};
template <> struct Once<16> {
    static __device__ __forceinline__ void load(u32 *words, const char *address) {
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(address));
    }
};

// A result nobody reads soon.
static __device__ __forceinline__ void store_vector(char *address, Vector v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// What this thread has stored before.
static __device__ __forceinline__ Vector load_stored(const char *address) {
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

// Shared memory by its own 32-bit addresses: the compiler otherwise computes them again and again.
static __device__ __forceinline__ u32 shared_address(const void *pointer) {
    u32 address = static_cast<u32>(__cvta_generic_to_shared(pointer));
    asm volatile("" : "+r"(address));
    return address;
}
static __device__ __forceinline__ Vector load_shared(u32 address) {
    Vector v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}
static __device__ __forceinline__ void store_shared(u32 address, Vector v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
static __device__ __forceinline__ u32 load_shared_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}
static __device__ __forceinline__ void store_shared_word(u32 address, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
