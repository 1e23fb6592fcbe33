// The choice between two forward kernels where levels are in device memory, so that the host cannot make it.
//
// KEPT_ROOM: bytes of shared memory that forward_matrix.cu has for the second half of the levels; 0: the host has
// chosen. forward_matrix.cu is queued first, forward_gather.cu after it. Both evaluate the same rule on the same
// levels, so exactly one of them computes the call and the other returns.

#if KEPT_ROOM
constexpr u32 MOST_PLACES = 0xffffu; // of a level of forward_matrix.cu: they have 16 bits

// Whether it is forward_matrix.cu that computes the call, by the rules of src/cuda/msda/matrix.rs and shared_levels.rs: every level of
// the second half can be kept, and all of them fit. `levels` are as both kernels have them in shared memory.
static __device__ __forceinline__ bool levels_suit_matrix(const int4 *levels) {
    bool suit = true;
    u32 kept = 0; // pixels; an image has less than 2^23
    for (int l = 0; l < LEVELS; l++) {
        const int4 level = levels[l];
        const u32 pixels = level.x * level.y;
        if (l < LEVELS / 2) {
            suit &= pixels <= MOST_PLACES;
        } else {
            // In a level of one column, pixels have no right-hand neighbour. The width of an empty one is negative.
            suit &= level.x > 1;
            kept += pixels;
        }
    }
    return suit && kept <= KEPT_ROOM / (VECTORS * 16);
}
#endif
