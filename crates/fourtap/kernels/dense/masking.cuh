// What hides keys from a warp's rows, or is added to their logits, from one tile of keys to the next.

#if ATTN == BITS
typedef TileStates Walk;
#else
// All tiles, one after the other.
struct Walk {
    __device__ __forceinline__ int next(int j, u32) const { return j; }
};
#endif
static __device__ __forceinline__ Walk walk_of(const Arguments &a, const Work &work) {
#if ATTN == BITS
    return work.states(a);
#else
    return {};
#endif
}

struct Masking {
    const Arguments &a;
    const Work &work;
    const int warp_row; // the warp's first
    const u32 lane;
    const Bounds bounds;
#if ATTN == BITS
    const char *const first_seen; // of the lane's first row
    SeenKeys seen_keys;
    bool hides = false;
#elif ATTN == GIVEN
    GivenBiases biases;
#endif

    __device__ __forceinline__ Masking(const Arguments &a, const Work &work, int warp_row, u32 lane)
        : a(a), work(work), warp_row(warp_row), lane(lane), bounds(a, warp_row, min(warp_row + static_cast<int>(ROWS), work.past_row))
#if ATTN == BITS
          , first_seen(work.mask(a) + (warp_row + lane / 4) * a.mask_strides[2])
#endif
    {}

    // What `apply` needs of tile j that `walk` found, before it is needed. `key`: the warp's first there.
    __device__ __forceinline__ void load(const Walk &walk, int j, int key) {
#if ATTN == BITS
        hides = walk.hides(j);
        if (hides) seen_keys.load(a, first_seen + key / 8);
#elif ATTN == GIVEN
        biases.load(a, work.mask(a), warp_row + lane / 4, key + 2 * (lane % 4));
#endif
    }
    // To logits that are to be scaled so. Returns what is left to scale them by: where there are biases they are scaled.
    __device__ __forceinline__ float apply(Logits &logits, float scale, int key) const {
#if ATTN == BITS
        if (hides) seen_keys.hide(logits, lane % 4);
#elif ATTN == BIAS
        add_biases(a, logits, scale, work.mask(a) + warp_row / 16 * a.mask_strides[2] + key / 16 * BIAS_BLOCK + lane * 32);
#elif ATTN == GIVEN
        biases.add(logits, scale);
#endif
        if (bounds.hide(key, KEYS)) hide(a, logits, warp_row + lane / 4, key + 2 * (lane % 4));
        return BIASED ? 1.0f : scale;
    }
};
