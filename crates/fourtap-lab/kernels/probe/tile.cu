// Tiles of 2x2 pixels of 32 channels at random places of an image, copied into shared memory and summed there.
//
// One warp: eight tiles a round, into memory of its own, which one thread asks the copy engine for as boxes of a tensor
// map, a round ahead.
// One thread: 16 bytes of several tiles, and as many of its neighbour's to sum.
// Limited by the memory that holds the image, or by how many boxes the copy engine starts. PIXEL is bytes a pixel.

#define THREADS 256
#define TILES 8
#define TILE (4 * PIXEL)
#define STAGES 2
// Pieces of 16 bytes: of a tile, and of eight tiles a lane.
#define PIECES (TILE / 16)
#define OF_LANE (TILES * PIECES / 32)

struct Place {
    u32 x, y;
};

// Where tile number `tile` of a warp lies; whole inside the image.
__device__ __forceinline__ Place place(u32 warp, u32 tile, u32 width, u32 height) {
    const u32 random = mixed(warp * 0x9e3779b9u + tile);
    return {__umulhi(random, width - 1), __umulhi(random * 0x9e3779b1u, height - 1)};
}

// Few enough blocks a multiprocessor, or the compiler waits for the first loads before it issues the last.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    probe_tile(const __grid_constant__ TensorMap map, u32 width, u32 height, u32 rounds, u32 *sums) {
    // Tiles of each warp and stage, then a barrier of each.
    extern __shared__ __align__(128) char memory[];
    const u32 lane = threadIdx.x % 32, warp_in_block = threadIdx.x / 32;
    const u32 warp = blockIdx.x * (THREADS / 32) + warp_in_block;
    const u32 tiles = shared_address(memory) + warp_in_block * (STAGES * TILES * TILE);
    u32 sum = 0;
    // Another lane's pieces: what is summed was in shared memory.
    auto add = [&](u32 stage) {
        Words words[OF_LANE];
#pragma unroll
        for (int i = 0; i < OF_LANE; i++)
            words[i] = load_shared(tiles + stage * (TILES * TILE) + (i * 32 + (lane ^ 1)) * 16);
#pragma unroll
        for (int i = 0; i < OF_LANE; i++) sum += words[i].sum();
    };
    const u32 barriers = shared_address(memory) + (THREADS / 32) * (STAGES * TILES * TILE) + warp_in_block * (STAGES * 8);
    if (lane == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) make_barrier(barriers + stage * 8, 1);
        publish_barriers();
    }
    __syncwarp();
    auto fetch = [&](u32 round) {
        if (lane != 0) return;
        const u32 target = tiles + round % STAGES * (TILES * TILE), barrier = barriers + round % STAGES * 8;
        expect_bytes(barrier, TILES * TILE);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const Place at = place(warp, round * TILES + i, width, height);
            load_box(target + i * TILE, &map, barrier, 0, static_cast<int>(at.x), static_cast<int>(at.y));
        }
    };
    fetch(0);
#pragma unroll 1
    for (u32 round = 0; round < rounds; round++) {
        if (round + 1 < rounds) fetch(round + 1);
        wait_for_phase(barriers + round % STAGES * 8, round / STAGES % 2);
        add(round % STAGES);
        __syncwarp();
    }
    sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}
