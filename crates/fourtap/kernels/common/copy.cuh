// From global to shared memory without a register between. `bytes` of them are read, the rest of the target becomes zero.

template <int BYTES> static __device__ __forceinline__ void copy_async(u32 target, const char *source, u32 bytes) {
    if (BYTES == 16) { // past L1, where rows would not stay
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(source), "r"(bytes), "n"(BYTES)
                     : "memory");
    }
}

// Until all of this thread's are there. Other threads' need a barrier after.
static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What this thread has begun to copy since the last such call is a batch.
static __device__ __forceinline__ void end_of_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all of its batches but the last `PENDING` are there.
template <int PENDING> static __device__ __forceinline__ void wait_for_batch() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
