// Copies by the tensor memory accelerator (TMA) and the barriers in shared memory that tell of them; sm_90 and up.

// A descriptor of a tensor, made by the host.
struct __align__(128) TensorMap {
    u64 words[16];
};

// A barrier has phases, numbered from 0; a phase ends when `arrivals` threads have arrived and the bytes expected are there.
static __device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// What was initialised is seen by TMA.
static __device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
static __device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and so many bytes will.
static __device__ __forceinline__ void arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// For the end of a phase with this lowest bit.
static __device__ __forceinline__ void wait_for_phase(u32 barrier, u32 parity) {
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// A box of a tensor of four dimensions to shared memory. What lies outside the tensor is zero.
static __device__ __forceinline__ void copy_box(u32 target, const TensorMap &map, u32 barrier, int c, int row, int head, int sequence) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(target),
                 "l"(&map), "r"(c), "r"(row), "r"(head), "r"(sequence), "r"(barrier)
                 : "memory");
}
// What this thread read and wrote in shared memory comes before what TMA and groups of warps write and read there.
static __device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Threads of some warps wait for each other, or only say that they were there. `threads`: of those that wait and those that do not.
static __device__ __forceinline__ void wait_for_others(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
static __device__ __forceinline__ void tell_others(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// How many registers the threads of a group of four warps have from here on.
template <int REGISTERS> static __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> static __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
