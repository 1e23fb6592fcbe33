// Boxes of a tensor of RANK dimensions, loaded by a tensor map.
//
// One block: one box into shared memory, then out to be compared. `corners` has the RANK coordinates of each box's
// first element, which may lie outside the tensor.

extern "C" __global__ void __launch_bounds__(128)
    probe_tma(const __grid_constant__ TensorMap map, const int *corners, u32 box_bytes, u32 *boxes) {
    // The box, then the barrier.
    extern __shared__ __align__(128) u32 box[];
    const u32 target = shared_address(box), done = target + box_bytes;
    if (threadIdx.x == 0) {
        make_barrier(done, 1);
        publish_barriers();
        expect_bytes(done, box_bytes);
        const int *corner = corners + blockIdx.x * RANK;
#if RANK == 1
        load_box(target, &map, done, corner[0]);
#elif RANK == 2
        load_box(target, &map, done, corner[0], corner[1]);
#elif RANK == 3
        load_box(target, &map, done, corner[0], corner[1], corner[2]);
#elif RANK == 4
        load_box(target, &map, done, corner[0], corner[1], corner[2], corner[3]);
#else
        load_box(target, &map, done, corner[0], corner[1], corner[2], corner[3], corner[4]);
#endif
    }
    __syncthreads();
    wait_for_phase(done, 0);
    const u32 words = box_bytes / 4;
    for (u32 word = threadIdx.x; word < words; word += blockDim.x) boxes[blockIdx.x * words + word] = box[word];
}
