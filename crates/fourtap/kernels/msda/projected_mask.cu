// From projections: zeros in the place of masked pixels of `value`. A warp looks at 32 pixels of an image at a time.
//
// COPY: `to` becomes a copy of `from` with zeros; otherwise only the masked pixels are written, in `to`.
// UNITS: bytes moved at a time (1, 2, 4, 8 or 16), which a pixel of a head is a multiple of.

// Mirrored in src/cuda/msda/projected/arguments.rs.
struct MaskArguments {
    const char *from;
    char *to;
    const unsigned char *mask;
    // In bytes: of images, pixels and heads, and from a unit to the next.
    i64 from_strides[4], to_strides[4];
    i64 mask_strides[2]; // of images and pixels
    i64 images, pixels;
    u32 heads, units; // of a pixel
};

template <int BYTES> struct Unit;
template <> struct Unit<1> { typedef unsigned char Type; };
template <> struct Unit<2> { typedef unsigned short Type; };
template <> struct Unit<4> { typedef unsigned int Type; };
template <> struct Unit<8> { typedef unsigned long long Type; };
template <> struct Unit<16> { typedef uint4 Type; };

extern "C" __global__ void __launch_bounds__(256) msda_projected_mask(const __grid_constant__ MaskArguments a) {
    typedef Unit<UNITS>::Type Word;
    const u32 lane = threadIdx.x % 32;
    const i64 groups = (a.pixels + 31) / 32, warps = static_cast<i64>(gridDim.x) * (blockDim.x / 32);
    const u32 row = a.heads * a.units;
    for (i64 at = static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; at < a.images * groups; at += warps) {
        const i64 n = at / groups, first = at % groups * 32, mine = first + lane;
        const bool masked = mine < a.pixels && a.mask[n * a.mask_strides[0] + mine * a.mask_strides[1]] != 0;
        const u32 all = __ballot_sync(0xffffffffu, masked);
        const u32 count = static_cast<u32>(min(i64(32), a.pixels - first));
        const char *const from = a.from + n * a.from_strides[0];
        char *const to = a.to + n * a.to_strides[0];
#if COPY
        for (u32 i = lane; i < count * row; i += 32) {
            const u32 pixel = i / row, rest = i - pixel * row, head = rest / a.units, unit = rest - head * a.units;
            Word word = {};
            if (!(all >> pixel & 1)) {
                word = *reinterpret_cast<const Word *>(from + (first + pixel) * a.from_strides[1] + head * a.from_strides[2] +
                                                       unit * a.from_strides[3]);
            }
            *reinterpret_cast<Word *>(to + (first + pixel) * a.to_strides[1] + head * a.to_strides[2] + unit * a.to_strides[3]) = word;
        }
#else
        for (u32 left = all; left; left &= left - 1) {
            const i64 pixel = first + __ffs(left) - 1;
            for (u32 i = lane; i < row; i += 32) {
                const u32 head = i / a.units, unit = i - head * a.units;
                *reinterpret_cast<Word *>(to + pixel * a.to_strides[1] + head * a.to_strides[2] + unit * a.to_strides[3]) = Word{};
            }
        }
#endif
    }
}
