// What the kernels of dense attention are given. Mirrored by the host.
//
// Strides count elements, of sequence, head, row and channel. A query i sees the keys j with
// i + first <= j < min(keys, i + past): the host folds alignment and window into `first` and `past`, clamped to
// +-2^30, which is past any key since queries and keys are below 2^30.

#define NONE 0
#define BITS 1
#define BIAS 2
#define GIVEN 3

// What BITS say of a tile.
enum : unsigned char { NONE_SEEN, SOME_SEEN, ALL_SEEN };

struct Arguments {
    const void *query, *key, *value;
    void *out;
    void *lse;      // or null; f64 where the others are
    float *partial; // SPLIT: [splits, planes, queries, HEAD_V], not yet divided by the sum
    float2 *states; // SPLIT: [splits, planes, queries] of (maximum in powers of two, sum); a sum of -1: nothing computed
    const char *mask; // see mask.cuh
    const unsigned char *mask_states;
    // f32, see prepare_f32.cu: pieces of planes * tiles of rows, and what a unit of each tile's numbers is.
    const u16 *query_pieces, *key_pieces, *value_pieces;
    const float *query_units, *key_units, *value_units;
    i64 query_strides[4], key_strides[4], value_strides[4], out_strides[4], lse_strides[3];
    i64 state_strides[3]; // of sequence, head, tile of rows
    i64 mask_strides[4]; // of sequence, head, row or block of rows, in bytes; of key: 0. forward_plain.cu: of the tensor, in elements
    u32 planes;      // sequences times heads of queries
    u32 query_heads; // a sequence
    u32 group;       // query heads that share a key head
    u32 channels, value_channels;
    int queries, keys;
    int first, past;
    // |scale| / ln 2, at least 2^-126: with a positive factor the greatest product is the greatest logit, and of a masked
    // one it does not make NaN. A negative scale is a sign given to two queries' channels at a time instead, and a scale of 0
    // makes them 0.
    float scale;
    u32 sign, kept; // bits to change, bits to leave
    u32 splits; // over keys
    u32 same; // forward_wgmma.cu: bits 0 and 1 of the query, 2 and 3 of the key, 4 and 5 of the value: all sequences, all heads have the same
    u32 even; // forward_wgmma.cu: whether each block has as many slabs of queries as any other
    double given_scale;
};

constexpr float LN_2 = 0.6931471805599453f, LOG2_E = 1.4426950408889634f;
// Finite biases beyond this are as good as this: in powers of two they are numbers, too, and logits do not make them infinite.
constexpr float MOST_BIAS = 1.2676506002282294e30f; // 2^100
constexpr u32 ALL = 0xffffffffu;

static __device__ __forceinline__ bool is_most(float bias) { return fabsf(bias) > MOST_BIAS && fabsf(bias) < __int_as_float(0x7f800000); }
static __device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }
// A row that has seen nothing has a maximum of minus infinity, from which nothing can be subtracted.
static __device__ __forceinline__ float subtrahend(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }
