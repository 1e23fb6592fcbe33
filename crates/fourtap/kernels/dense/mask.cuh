// A tensor that hides keys or is added to logits, as prepare_mask.cu left it in scratch.
//
// ATTN: NONE; BITS: a bit for each key, set where it is seen, rows of 64-bit words, whole tiles, and of each tile whether
// none, some or all are; BIAS: biases in f32
// in blocks of 16 queries by 16 keys, each lane's eight side by side, so that a warp reads a block as its logits lie. They are
// divided by ln 2, as scaled logits are, which they are added to once these are complete: a tensor core would cut off their digits.
// GIVEN: biases of the type of queries as they are given, the keys of a row side by side.
// Where a bias of minus infinity meets a logit that is infinite or NaN the sum is NaN, and the row computed once more: careful.cuh.

constexpr bool BIASED = ATTN == BIAS || ATTN == GIVEN;
constexpr i64 BIAS_BLOCK = 16 * 16 * 4; // bytes

// Bits that a lane reads at once: as many as all tiles' first keys are a multiple of.
constexpr u32 UNIT = KEYS % 64 == 0 ? 64 : KEYS % 32 == 0 ? 32 : 16, UNITS = KEYS / UNIT;
template <u32 BITS_AT_ONCE> struct Unit;
template <> struct Unit<16> { typedef u16 Type; };
template <> struct Unit<32> { typedef u32 Type; };
template <> struct Unit<64> { typedef u64 Type; };

// Which keys of a tile a lane's rows see.
struct SeenKeys {
    typedef Unit<UNIT>::Type Word;
    Word words[ROW_TILES][2][UNITS];

    // `first`: where the lane's first row and the warp's first key of the tile are.
    __device__ __forceinline__ void load(const Arguments &a, const char *first) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const Word *const at = reinterpret_cast<const Word *>(first + (16 * r + 8 * half) * a.mask_strides[2]);
#pragma unroll
                for (u32 u = 0; u < UNITS; u++) words[r][half][u] = __ldg(at + u);
            }
        }
    }
    // Hides the logits of other keys. `in_group`: lane % 4.
    __device__ __forceinline__ void hide(Logits &logits, u32 in_group) const {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
#pragma unroll
                for (u32 k = 0; k < KEY_TILES; k++) {
                    const u32 byte = static_cast<u32>(words[r][half][8 * k / UNIT] >> 8 * k % UNIT) >> 2 * in_group;
                    if (!(byte & 1)) logits[r][k][2 * half] = minus_infinity();
                    if (!(byte & 2)) logits[r][k][2 * half + 1] = minus_infinity();
                }
            }
        }
    }
};

// Scales logits and adds biases. `biases`: this lane's of the warp's first block of 16 queries by 16 keys.
static __device__ __forceinline__ void add_biases(const Arguments &a, Logits &logits, float scale, const char *biases) {
#pragma unroll
    for (u32 k = 0; k < KEY_TILES; k += 2) {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) {
            const char *const block = biases + r * a.mask_strides[2] + k / 2 * BIAS_BLOCK;
            const Vector low = load_vector(block), high = load_vector(block + 16);
            const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                float &logit = logits[r][k + i / 4][i % 4];
                logit = __fmaf_rn(logit, scale, __uint_as_float(words[i]));
            }
        }
    }
}

#if ATTN == GIVEN
// Biases of a tile's keys and a warp's rows, loaded before they are needed.
struct GivenBiases {
    u32 words[2][KEY_TILES]; // two keys of row g, of row g + 8

    // `row`: the lane's first. Those of rows and keys after the last are not looked at.
    __device__ __forceinline__ void load(const Arguments &a, const char *plane, int row, int key) {
        const i64 stride = a.mask_strides[2];
        const char *const rows[2] = {plane + min(row, a.queries - 1) * stride + 2 * key, plane + min(row + 8, a.queries - 1) * stride + 2 * key};
        const bool in_pairs = (reinterpret_cast<u64>(plane) | stride) % 4 == 0;
        if (in_pairs && key + static_cast<int>(8 * KEY_TILES) - 6 <= a.keys) {
#pragma unroll
            for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) words[half][k] = __ldg(reinterpret_cast<const u32 *>(rows[half] + 16 * k));
        } else {
#pragma unroll
            for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u16 *const at = reinterpret_cast<const u16 *>(rows[half] + 16 * k);
                    const int left = a.keys - key - static_cast<int>(8 * k);
                    words[half][k] = left > 0 ? __ldg(at) : 0;
                    if (left > 1) words[half][k] |= static_cast<u32>(__ldg(at + 1)) << 16;
                }
            }
        }
    }
    // Scales logits and adds them.
    __device__ __forceinline__ void add(Logits &logits, float scale) const {
        float top = 0.0f; // of f16 none is beyond what counts
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                float low, high;
                Value::widen(words[half][k], low, high);
                if (VALUE == BF16) top = fmaxf(top, fmaxf(fabsf(low), fabsf(high)));
            }
        }
        const bool any_most = VALUE == BF16 && __any_sync(ALL, top > MOST_BIAS);
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                float biases[2];
                Value::widen(words[half][k], biases[0], biases[1]);
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    if (any_most && is_most(biases[e])) biases[e] = copysignf(MOST_BIAS, biases[e]);
                    float &logit = logits[0][k][2 * half + e];
                    logit = __fmaf_rn(logit, scale, __fmul_rn(biases[e], LOG2_E));
                }
            }
        }
    }
};
#endif

// Which tiles of a block's queries are hidden whole or in part; 32 at a time, a bit for each.
struct TileStates {
    const unsigned char *states; // of the first tile
    int count, base;
    u32 needed, partial;

    // The first from j on that is not hidden whole, or `count`. All lanes of a warp call it together.
    __device__ __forceinline__ int next(int j, u32 lane) {
        for (; j < count; j = base + 32) {
            if (j >= base + 32) {
                base = j;
                const u32 state = j + static_cast<int>(lane) < count ? states[j + lane] : NONE_SEEN;
                needed = __ballot_sync(ALL, state != NONE_SEEN);
                partial = __ballot_sync(ALL, state == SOME_SEEN);
            }
            const u32 left = needed >> (j - base);
            if (left != 0) return j + __ffs(left) - 1;
        }
        return count;
    }
    // Whether some of its keys are hidden from some queries. Of the tile found last.
    __device__ __forceinline__ bool hides(int j) const { return partial >> (j - base) & 1; }
};

// Whether a query sees a key.
static __device__ __forceinline__ bool is_seen(const Arguments &a, const char *plane, int i, int key) {
    return plane[i * a.mask_strides[2] + key / 8] >> key % 8 & 1;
}

// The bias of a query and a key.
static __device__ __forceinline__ float bias_at(const Arguments &a, const char *plane, int i, int key) {
#if ATTN == GIVEN
    const float bias = Value::widen(reinterpret_cast<const u16 *>(plane + i * a.mask_strides[2])[key]);
    return __fmul_rn(is_most(bias) ? copysignf(MOST_BIAS, bias) : bias, LOG2_E);
#endif
    const char *const block = plane + i / 16 * a.mask_strides[2] + key / 16 * BIAS_BLOCK;
    const int lane = i % 8 * 4 + key % 8 / 2, place = key / 8 % 2 * 4 + i / 8 % 2 * 2 + key % 2;
    return reinterpret_cast<const float *>(block)[lane * 8 + place];
}
