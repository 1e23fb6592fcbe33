// Kernels that end badly on purpose, so that it can be tried whether that is reported.

extern "C" __global__ void illegal_address() { *reinterpret_cast<volatile int *>(8) = 1; }

extern "C" __global__ void never_ends() {
    volatile __shared__ int no;
    no = 0;
    while (no == 0) {
    }
}
