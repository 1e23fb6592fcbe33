// f32 in the form that forward_f32.cu multiplies: each number as the sum of two f16, a coarse and a fine part, which
// together keep 23 of its 24 digits.
//
// f16 holds little but 2^-24 to 2^16, so a tile of rows is counted in a unit, a power of two that makes its largest
// number nearly as large as f16 can be: numbers 2^16 times smaller still keep all digits. Where a whole row is smaller than
// that the unit is NaN: its tile makes NaN, and rows that come out so are computed once more (careful.cuh). A row is
// HEAD coarse parts and then as many fine ones, zero beyond the channels that there are; tiles are whole. Limited by memory.
//
// A block converts a tile. blockIdx.y: query, key, value.

struct Conversion {
    const float *from;
    u16 *to;
    float *units;      // of each tile
    i64 strides[4];    // of sequence, head, row, channel
    u32 heads, rows;   // of a sequence, of a head
    u32 tile, tiles;   // rows of a tile, tiles of a head
    u32 channels, head; // head: rounded up to a multiple of 32
    u32 blocks;        // all tiles
    u32 sign, kept;    // as in problem.cuh, of one number
};

struct ConversionArguments {
    Conversion of[3];
};

constexpr u32 THREADS = 256;
constexpr u32 LARGEST = 14;    // a power of two below the largest f16
constexpr u32 MOST_RANGE = 16; // powers of two between the largest numbers of the largest and the smallest row
constexpr u32 MOST_ROWS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) dense_prepare_f32(const __grid_constant__ ConversionArguments arguments) {
    const Conversion &a = arguments.of[blockIdx.y];
    if (blockIdx.x >= a.blocks) return;
    const u32 plane = blockIdx.x / a.tiles, tile = blockIdx.x - plane * a.tiles, b = plane / a.heads, h = plane - b * a.heads;
    const float *const from = a.from + b * a.strides[0] + h * a.strides[1];
    const u32 first = tile * a.tile, there = min(a.tile, a.rows - first);
    const bool vectors = a.strides[3] == 1 && (a.strides[0] | a.strides[1] | a.strides[2]) % 4 == 0 && reinterpret_cast<u64>(a.from) % 16 == 0;
    // Four neighbouring channels of a row.
    const auto load = [&](u32 row, u32 channel, float(&x)[4]) {
        const float *const at = from + (first + row) * a.strides[2] + channel * a.strides[3];
        if (vectors && channel + 4 <= a.channels && row < there) {
            const float4 v = *reinterpret_cast<const float4 *>(at);
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = row < there && channel + i < a.channels ? at[i * a.strides[3]] : 0.0f;
        }
    };

    // Eight lanes have a row, each every eighth four channels of it.
    __shared__ u32 row_largest[MOST_ROWS]; // as bits, which are ordered as the magnitudes are
    const u32 lane = threadIdx.x % 8;
#pragma unroll 2
    for (u32 row = threadIdx.x / 8; row < a.tile; row += THREADS / 8) {
        u32 largest = 0;
#pragma unroll 2
        for (u32 channel = 4 * lane; channel < a.head; channel += 32) {
            float x[4];
            load(row, channel, x);
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 magnitude = __float_as_uint(x[e]) & 0x7fffffffu;
                if (magnitude < 0x7f800000u) largest = max(largest, magnitude);
            }
        }
        // Tiles have a multiple of 16 rows, so that a warp's lanes are here together.
#pragma unroll
        for (u32 lanes = 1; lanes < 8; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        if (lane == 0) row_largest[row] = largest;
    }
    __syncthreads();
    u32 largest = 0, least = 0x7fffffffu;
    for (u32 row = threadIdx.x % 32; row < a.tile; row += 32) {
        const u32 magnitude = row_largest[row];
        largest = max(largest, magnitude);
        if (magnitude != 0) least = min(least, magnitude);
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    least = __reduce_min_sync(0xffffffffu, least);
    const bool wide = largest != 0 && (largest >> 23) - (least >> 23) > MOST_RANGE;
    // Biased exponents: of the largest number, so that those of the factor and the unit are of normal numbers.
    const u32 exponent = max(largest >> 23, LARGEST + 1);
    const float factor = __uint_as_float((254 + LARGEST - exponent) << 23);
    if (threadIdx.x == 0) a.units[blockIdx.x] = __uint_as_float(wide ? 0x7fffffffu : (exponent - LARGEST) << 23);

    u16 *const to = a.to + static_cast<u64>(blockIdx.x) * a.tile * 2 * a.head;
#pragma unroll 2
    for (u32 row = threadIdx.x / 8; row < a.tile; row += THREADS / 8) {
#pragma unroll 2
        for (u32 channel = 4 * lane; channel < a.head; channel += 32) {
            float x[4];
            load(row, channel, x);
            u32 coarse[2], fine[2];
#pragma unroll
            for (u32 pair = 0; pair < 2; pair++) {
                const float low = __uint_as_float(__float_as_uint(x[2 * pair]) & a.kept ^ a.sign) * factor;
                const float high = __uint_as_float(__float_as_uint(x[2 * pair + 1]) & a.kept ^ a.sign) * factor;
                split<F16>(low, high, coarse[pair], fine[pair]);
            }
            u16 *const at = to + row * 2 * a.head + channel;
            *reinterpret_cast<uint2 *>(at) = {coarse[0], coarse[1]};
            *reinterpret_cast<uint2 *>(at + a.head) = {fine[0], fine[1]};
        }
    }
}
