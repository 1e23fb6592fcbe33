// Kernels of one call of which the second is launched to begin before the first has ended, on devices of compute capability 9.0 and
// up: see `LoadedStep::launch_overlapping`.

// The next kernel may begin, once all blocks of this one have said so or ended. Changes nothing unless it was launched to do so.
static __device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the kernel before has ended and what it wrote can be read. Every kernel that was launched so calls it: what comes after it
// waits for nobody else.
static __device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
