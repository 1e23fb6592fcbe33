// What the kernels of dense attention are given. Mirrored by the host.
//
// Strides count elements, of sequence, head, row and channel. A query i sees the keys j with
// i + first <= j < min(keys, i + past): the host folds alignment and window into `first` and `past`, clamped to
// +-2^30, which is past any key since queries and keys are below 2^30.

struct Arguments {
    const void *query, *key, *value;
    void *out;
    float *lse;     // or null
    float *partial; // SPLIT: [splits, planes, queries, HEAD_V], not yet divided by the sum
    float2 *states; // SPLIT: [splits, planes, queries] of (maximum in powers of two, sum); a sum of -1: nothing computed
    i64 query_strides[4], key_strides[4], value_strides[4], out_strides[4], lse_strides[3];
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
};

constexpr float LN_2 = 0.6931471805599453f;
constexpr u32 ALL = 0xffffffffu;

static __device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }
// A row that has seen nothing has a maximum of minus infinity, from which nothing can be subtracted.
static __device__ __forceinline__ float subtrahend(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }
