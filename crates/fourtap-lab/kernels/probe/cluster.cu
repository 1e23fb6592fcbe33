// Clusters: blocks that read each other's shared memory.
//
// One block: fills its shared memory, waits for its cluster, reads every word from another block of it, and stores what
// it read. Word w comes from the block 1 + w % (blocks - 1) ranks on, so that every word of every block is read by
// exactly one other. Twice, with other words, so that both sides of the barrier are seen to work.

extern "C" __global__ void __launch_bounds__(256) probe_cluster(u32 words, u32 *found) {
    extern __shared__ u32 memory[];
    const u32 shared = shared_address(memory);
    const u32 rank = rank_in_cluster(), blocks = blocks_in_cluster();
    for (u32 pass = 0; pass < 2; pass++) {
        for (u32 word = threadIdx.x; word < words; word += blockDim.x)
            memory[word] = mixed((blockIdx.x * words + word) * 2 + pass);
        synchronise_cluster();
        for (u32 word = threadIdx.x; word < words; word += blockDim.x) {
            const u32 other = (rank + 1 + word % (blocks - 1)) % blocks;
            found[static_cast<u64>(pass * gridDim.x + blockIdx.x) * words + word] =
                load_cluster_word(address_in_block(shared + word * 4, other));
        }
        // Nobody overwrites its memory, or leaves with it, before all have read.
        synchronise_cluster();
    }
}
