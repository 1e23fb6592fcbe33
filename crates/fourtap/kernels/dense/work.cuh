// Parts of a problem: what a block computes of it, and which of that concerns a warp.

// Queries of one head, and the tiles of keys that some of them see: all of these, or with SPLIT a part.
struct Work {
    u32 b, h, key_head, split;
    int first_row, past_row, first_tile, count;

    // As they are counted, heads are those of one sequence after another, unless biases are the same for all sequences: blocks
    // that run together then read the same.
    __device__ __forceinline__ Work(const Arguments &a, u32 plane, int first_row, int rows, u32 split)
        : split(split), first_row(first_row), past_row(min(first_row + rows, a.queries)) {
        b = plane / a.query_heads;
        h = plane - b * a.query_heads;
        if (BIASED && a.mask_strides[0] == 0) {
            const u32 batch = a.planes / a.query_heads;
            h = plane / batch;
            b = plane - h * batch;
        }
        key_head = h / a.group;
        const int begin = MASK ? max(0, first_row + a.first) : 0, end = MASK ? min(a.keys, past_row - 1 + a.past) : a.keys;
        first_tile = begin / BLOCK_N;
        count = end > begin ? (end + BLOCK_N - 1) / BLOCK_N - first_tile : 0;
        if (SPLIT) {
            const int each = (count + a.splits - 1) / a.splits, before = min(count, static_cast<int>(split) * each);
            first_tile += before;
            count = min(each, count - before);
        }
    }

    // That of a block of which there is one for each tile of queries. With bounds the last queries come first: of causal ones they
    // are the longest. Otherwise a head's blocks are next to each other, so that its keys are in L2.
    static __device__ __forceinline__ Work of_block(const Arguments &a) {
        const u32 tiles = (a.queries + BLOCK_M - 1) / BLOCK_M;
        const u32 tile = MASK ? tiles - 1 - blockIdx.x / a.planes : blockIdx.x % tiles;
        const u32 plane = MASK ? blockIdx.x % a.planes : blockIdx.x / tiles;
        return Work(a, plane, tile * BLOCK_M, BLOCK_M, blockIdx.y);
    }

    // The first key of a tile.
    __device__ __forceinline__ int key_of(int j) const { return (first_tile + j) * BLOCK_N; }
    // Where the head's mask is.
    __device__ __forceinline__ const char *mask(const Arguments &a) const {
        return a.mask + (ATTN == NONE ? 0 : b * a.mask_strides[0] + h * a.mask_strides[1]);
    }
    __device__ __forceinline__ TileStates states(const Arguments &a) const {
        const i64 at = b * a.state_strides[0] + h * a.state_strides[1] + first_row / BLOCK_M * a.state_strides[2] + first_tile;
        return {a.mask_states + at, count, -32, 0, 0};
    }
};

// Between which bounds some and all of some rows see keys.
struct Bounds {
    int from, to, all_from, all_to;

    __device__ __forceinline__ Bounds(const Arguments &a, int first_row, int past_row) {
        from = MASK ? first_row + a.first : 0;
        to = first_row >= past_row ? 0 : MASK ? min(a.keys, past_row - 1 + a.past) : a.keys;
        all_from = MASK ? past_row - 1 + a.first : 0;
        all_to = MASK ? min(a.keys, first_row + a.past) : a.keys;
    }
    // Whether some of the rows see some of these keys, and whether some do not see some.
    __device__ __forceinline__ bool show(int key, u32 keys) const { return key < to && key + static_cast<int>(keys) > from; }
    __device__ __forceinline__ bool hide(int key, u32 keys) const { return key < all_from || key + static_cast<int>(keys) > all_to; }
};
