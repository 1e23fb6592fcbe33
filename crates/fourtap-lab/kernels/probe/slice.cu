// Slices of 8 of 32 channels of f16, copied through shared memory: [heads][pixels][32] to the same place elsewhere.
//
// One block: of one head, one slice of 16 bytes a pixel, every fourth chunk of 256 pixels, four chunks at a time.
// METHOD 0 loads and stores together (COOPERATIVE), 1 copies into shared memory without registers (CP_ASYNC), both with
// one piece of a chunk a thread; 2 leaves all to the copy engine and needs one thread (BULK).
// Limited by how many bytes are in flight, and by half of each 32-byte sector being another block's.

#define COOPERATIVE 0
#define CP_ASYNC 1
#define BULK 2

#define PIXEL 64
#define PIECE 16
#define CHUNK 256
#define STAGES 4
#define QUARTERS 4

#if METHOD == BULK
extern "C" __global__ void __launch_bounds__(32)
    probe_slice(const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap target, u32 pixels) {
    // Chunks, then a barrier of each.
    extern __shared__ __align__(128) char memory[];
    if (threadIdx.x != 0) return;
    const int head = blockIdx.x / 16, channel = blockIdx.x / QUARTERS % 4 * 8;
    const u32 quarter = blockIdx.x % QUARTERS, chunks = (pixels + CHUNK - 1) / CHUNK;
    const u32 count = (chunks + QUARTERS - 1 - quarter) / QUARTERS;
    const u32 shared = shared_address(memory), barriers = shared + STAGES * (CHUNK * PIECE);
    for (u32 stage = 0; stage < STAGES; stage++) make_barrier(barriers + stage * 8, 1);
    publish_barriers();
    auto pixel_of = [&](u32 number) { return static_cast<int>((quarter + number * QUARTERS) * CHUNK); };
    auto fetch = [&](u32 number) {
        if (number >= count) return;
        const u32 stage = number % STAGES;
        // What lies past the last pixel counts: it is filled with zeros.
        expect_bytes(barriers + stage * 8, CHUNK * PIECE);
        load_box(shared + stage * (CHUNK * PIECE), &source, barriers + stage * 8, channel, pixel_of(number), head);
    };
    for (u32 number = 0; number < STAGES; number++) fetch(number);
    for (u32 number = 0; number < count; number++) {
        const u32 stage = number % STAGES;
        wait_for_phase(barriers + stage * 8, number / STAGES % 2);
        publish_shared();
        store_box(shared + stage * (CHUNK * PIECE), &target, channel, pixel_of(number), head);
        commit_stores();
        // The chunk before this one has left its place.
        wait_until_read<1>();
        if (number > 0) fetch(number - 1 + STAGES);
    }
    wait_until_read<0>();
}
#else
__device__ __forceinline__ void store(char *address, const Words &v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(CHUNK) probe_slice(const char *source, char *target, u32 pixels) {
    extern __shared__ __align__(128) char memory[];
    const u64 first = static_cast<u64>(blockIdx.x / 16) * pixels * PIXEL + blockIdx.x / QUARTERS % 4 * PIECE;
    const char *from = source + first;
    char *to = target + first;
    const u32 quarter = blockIdx.x % QUARTERS, chunks = (pixels + CHUNK - 1) / CHUNK;
    const u32 count = (chunks + QUARTERS - 1 - quarter) / QUARTERS;
    const u32 shared = shared_address(memory);
    // The thread that stores a pixel is not the one that fetched it: that is what the barrier is for.
    const u32 mine = threadIdx.x, other = threadIdx.x ^ 1;
    auto pixel_of = [&](u32 number, u32 thread) { return (quarter + number * QUARTERS) * CHUNK + thread; };
    auto place = [&](u32 number, u32 thread) { return shared + (number % STAGES * CHUNK + thread) * PIECE; };
    auto put = [&](u32 number) {
        const u32 pixel = pixel_of(number, other);
        if (number < count && pixel < pixels) store(to + static_cast<u64>(pixel) * PIXEL, load_shared(place(number, other)));
    };
#if METHOD == COOPERATIVE
    for (u32 number = 0; number < count; number += STAGES) {
        Words words[STAGES];
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            // Past the end, the last pixel again: a load that is always made is made at once.
            const u32 pixel = min(pixel_of(number + i, mine), pixels - 1);
            words[i] = load(from + static_cast<u64>(pixel) * PIXEL);
        }
#pragma unroll
        for (int i = 0; i < STAGES; i++) store_shared(place(number + i, mine), words[i]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STAGES; i++) put(number + i);
        __syncthreads();
    }
#else
    auto fetch = [&](u32 number) {
        const u32 pixel = pixel_of(number, mine);
        if (number < count && pixel < pixels) copy_async(place(number, mine), from + static_cast<u64>(pixel) * PIXEL);
        commit_copies();
    };
    for (u32 number = 0; number < STAGES - 1; number++) fetch(number);
    for (u32 number = 0; number < count; number++) {
        fetch(number + STAGES - 1);
        wait_for_copies<STAGES - 1>();
        __syncthreads();
        put(number);
        __syncthreads();
    }
#endif
}
#endif
