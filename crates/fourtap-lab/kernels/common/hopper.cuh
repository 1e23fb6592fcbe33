// What only Hopper and later have: clusters, barriers that count bytes, and copies of boxes by a tensor map.

struct __align__(128) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 blocks_in_cluster() {
    u32 count;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
}

// Every thread of every block of the cluster: what was stored before is seen after.
__device__ __forceinline__ void synchronise_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where the block of this rank has what this block has at a shared address.
__device__ __forceinline__ u32 address_in_block(u32 address, u32 rank) {
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

__device__ __forceinline__ Words load_cluster(u32 address) {
    Words v;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ u32 load_cluster_word(u32 address) {
    u32 word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

__device__ __forceinline__ void make_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After this the copy engine knows the barriers that were made.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and lets the barrier's phase last until so many bytes have been copied.
__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_phase(u32 barrier, u32 parity) {
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap *map, u32 barrier, int x) {
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
                     target),
                 "l"(map), "r"(barrier), "r"(x)
                 : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap *map, u32 barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            target),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap *map, u32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
            target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap *map, u32 barrier, int x, int y, int z, int u) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u)
                 : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap *map, u32 barrier, int x, int y, int z, int u,
                                                int v) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
                 : "memory");
}

__device__ __forceinline__ void store_box(u32 source, const TensorMap *map, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(source),
                 "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// Lets the copy engine see what is in shared memory by now.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until shared memory has been read for all but so many of the groups this thread committed.
template <int GROUPS> __device__ __forceinline__ void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
