// What the probes' kernels share: words without a pattern, and loads that the compiler may neither leave out nor merge.
// The host computes the same words (src/probe/cuda/pattern.rs).

typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(16) Words {
    u32 x, y, z, w;
    __device__ __forceinline__ u32 sum() const { return x + y + z + w; }
};

// A number that says nothing of its neighbours, so that a wrong address cannot hide.
__device__ __forceinline__ u32 mixed(u32 number) {
    number = (number ^ number >> 16) * 0x7feb352du;
    number = (number ^ number >> 15) * 0x846ca68bu;
    return number ^ number >> 16;
}

__device__ __forceinline__ u32 next_random(u32 &state) {
    state = state * 1664525u + 1013904223u;
    return state;
}

__device__ __forceinline__ Words load(const char *address) {
    Words v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
}

// Past the first-level cache.
__device__ __forceinline__ Words load_once(const char *address) {
    Words v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ Words load_shared(u32 address) {
    Words v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(u32 address, const Words &v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// 16 bytes from device memory into shared memory, without a register between.
__device__ __forceinline__ void copy_async(u32 target, const char *source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most so many of the groups this thread committed are under way.
template <int GROUPS> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}
