// Sums on tensor cores, for forward_matrix.cu. See gather.cuh and forward_rows.cuh.
//
//     neighbours, 16 bytes per lane --x identity--> channels x neighbours --x weights--> channels x rows, f32
//
// A product with the identity transposes words exactly. The second factor has two columns for each row: its weights
// rounded to 16 bits, and what rounding took away, so sums are as exact as with f32 weights.
//
// A pixel that is not finite, or a weight too large for 16 bits, makes its row not finite: such rows are recomputed.

constexpr u32 PIXEL_BYTES = PIXEL_UNITS * 16;
// Weights in f16 have most digits far above its smallest numbers.
constexpr float SCALE = VALUE == F16 ? 4096.0f : 1.0f;

// The identity's fragment. From memory: for one it knows the compiler would move zeros for every product.
struct Identity {
    u32 words[4];
};
// Words a and b as loaded, of lane 4 r + c elements (r, 2c) and (r, 2c + 1) of a matrix each, rows for columns. As f16, whatever they
// are: a product with 1 and sums with 0 change nothing but what is no finite f16, which leaves NaN in its column in either type.
static __device__ __forceinline__ void transpose(u32 &a, u32 &b, const Identity &identity) {
    u32 first, second;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %8};"
                 : "=r"(first), "=r"(second)
                 : "r"(identity.words[0]), "r"(identity.words[1]), "r"(identity.words[2]), "r"(identity.words[3]), "r"(a), "r"(b), "r"(0));
    a = first, b = second;
}

struct WordPair {
    u32 x, y;
};
static __device__ __forceinline__ WordPair load_shared_pair(u32 address) {
    WordPair words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address));
    return words;
}

// place * bytes + base, where the compiler does not know `bytes`: it would take the product apart.
static __device__ __forceinline__ const char *at(u32 place, u32 bytes, const char *base) {
    const char *address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(place), "r"(bytes), "l"(base));
    return address;
}
// The half of a word that is the place of point `half`, of which the compiler may not make a shift of that product.
static __device__ __forceinline__ u32 place_of_point(const Vector &places, int step, int half) {
    const u32 word = step == 0 ? places.x : step == 1 ? places.y : step == 2 ? places.z : places.w;
    u32 place;
    if (half) {
        asm("shr.u32 %0, %1, 16;" : "=r"(place) : "r"(word));
    } else {
        asm("and.b32 %0, %1, 65535;" : "=r"(place) : "r"(word));
    }
    return place;
}

// What the compiler shall not know, in shared memory.
struct Constants {
    Identity identities[32]; // of each lane
    u32 pixel, one;
};
static __device__ __forceinline__ void write_constants(Constants &constants) {
    if (threadIdx.x < 32) {
        const u32 one = threadIdx.x % 4 == threadIdx.x / 8 ? (threadIdx.x / 4 % 2 ? 0x3c000000u : 0x3c00u) : 0u;
        constants.identities[threadIdx.x] = {{one, 0, 0, one}};
    }
    if (threadIdx.x == 0) {
        constants.pixel = PIXEL_BYTES;
        constants.one = 1;
    }
}
static __device__ __forceinline__ Identity read_identity(const Constants &constants, u32 lane) {
    Identity identity;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(identity.words[0]), "=r"(identity.words[1]), "=r"(identity.words[2]), "=r"(identity.words[3])
                 : "r"(shared_address(&constants.identities[lane])));
    return identity;
}
static __device__ __forceinline__ u32 read_opaque(const u32 *number) {
    u32 read;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(read) : "r"(shared_address(number)));
    return read;
}

// Four neighbouring channels of a row, of which a lane's sums are those at part + 0, 2, 4 and 6 of eight: the rest are in lane ^ 4.
struct Channels {
    u32 words[2];
    bool sound; // whether the sums are finite

    __device__ __forceinline__ Channels(float (&sums)[4], u32 part) {
        float zero = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[i] *= 1.0f / SCALE;
            zero = __fmaf_rn(sums[i], 0.0f, zero);
        }
        sound = zero == 0.0f; // not if it is NaN
        const u32 low = Value::round(sums[0], sums[1]), high = Value::round(sums[2], sums[3]);
        const u32 got = __shfl_xor_sync(ALL, part ? low : high, 4);
        const u32 even = part ? got : low, odd = part ? high : got;
        words[0] = __byte_perm(even, odd, 0x5410);
        words[1] = __byte_perm(even, odd, 0x7632);
    }
    __device__ __forceinline__ void store(char *out) const {
        asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(out), "r"(words[0]), "r"(words[1]) : "memory");
    }
};

#if PROJECTED
// The logits of a row, two in each round for each of its eight lanes, and then their softmax.
template <int ROUNDS> struct RowLogits {
    static constexpr int WORDS = WEIGHT_BYTES * 2 / 4;
    u32 words[ROUNDS][WORDS];
    float weight[ROUNDS][2];

    __device__ __forceinline__ void load(int round, const char *logits) { Once<WEIGHT_BYTES * 2>::load(words[round], logits); }
    // All lanes of a warp call it together.
    __device__ __forceinline__ void turn_into_weights() {
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
#if WEIGHT == F32
            weight[i][0] = __uint_as_float(words[i][0]), weight[i][1] = __uint_as_float(words[i][WORDS - 1]);
#else
            Element<WEIGHT>::widen(words[i][0], weight[i][0], weight[i][1]);
#endif
        }
        float largest = weight[0][0], sum = 0.0f;
#pragma unroll
        for (int i = 1; i < 2 * ROUNDS; i++) largest = fmaxf(largest, weight[i / 2][i % 2]);
#pragma unroll
        for (int other = 1; other < 8; other *= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, other));
#pragma unroll
        for (int i = 0; i < 2 * ROUNDS; i++) {
            weight[i / 2][i % 2] = power_of_gather(weight[i / 2][i % 2], largest);
            sum += weight[i / 2][i % 2];
        }
#pragma unroll
        for (int other = 1; other < 8; other *= 2) sum += __shfl_xor_sync(ALL, sum, other);
        const float inverse = 1.0f / sum;
#pragma unroll
        for (int i = 0; i < 2 * ROUNDS; i++) weight[i / 2][i % 2] *= inverse;
    }
};
#endif
