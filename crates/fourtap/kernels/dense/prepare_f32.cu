// f32 in the form that forward_f32.cu multiplies: each number as the sum of two f16, a coarse and a fine part, which
// together keep 23 of its 24 digits.
//
// f16 holds little but 2^-24 to 2^16, so a tile of rows is counted in a unit, a power of two that makes its largest
// number nearly as large as f16 can be: numbers 2^16 times smaller still keep all digits. A channel of the output is a sum
// over that channel of values alone, so one that is small beside others has a unit of its own. Where a whole row is smaller than
// that the unit is NaN: its tile makes NaN, and rows that come out so are computed once more (careful.cuh). A row is
// HEAD coarse parts and then as many fine ones, zero beyond the channels that there are; tiles are whole. Limited by memory.
//
// A block converts a tile. blockIdx.y: query, key, value.

struct Conversion {
    const float *from;
    u16 *to;
    float *units;      // of each tile; of values also whether there are others in it, and those of its HEAD channels
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
constexpr u32 MOST_ROWS = 128, MOST_CHANNELS = 256;
constexpr u32 VALUES = 2;         // blockIdx.y
constexpr u32 CHANNEL_RANGE = 10; // powers of two between the largest numbers of a tile and of a channel counted in its unit

static __device__ __forceinline__ u32 magnitude_of(float x) {
    const u32 magnitude = __float_as_uint(x) & 0x7fffffffu;
    return magnitude < 0x7f800000u ? magnitude : 0;
}
// The biased exponent of the largest number, at least so great that those of the factor and the unit are of normal numbers.
static __device__ __forceinline__ u32 exponent_of(u32 largest) { return max(largest >> 23, LARGEST + 1); }
static __device__ __forceinline__ float factor_of(u32 exponent) { return __uint_as_float((254 + LARGEST - exponent) << 23); }
static __device__ __forceinline__ float unit_of(u32 exponent) { return __uint_as_float((exponent - LARGEST) << 23); }

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
    __shared__ __align__(16) u32 channel_largest[THREADS / 32][MOST_CHANNELS]; // of values, by each warp
    __shared__ u32 channel_exponent[MOST_CHANNELS]; // of their units
    const u32 lane = threadIdx.x % 8;
    const bool values = blockIdx.y == VALUES;
    // Tiles have a multiple of 16 rows, so that a warp's lanes are here together.
    const auto keep_row = [&](u32 row, u32 largest, bool is_first) {
#pragma unroll
        for (u32 lanes = 1; lanes < 8; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        if (lane == 0) row_largest[row] = is_first ? largest : max(largest, row_largest[row]);
    };
    if (values) {
#pragma unroll 1
        for (u32 channel = 4 * lane; channel < a.head; channel += 32) {
            u32 largest[4] = {};
#pragma unroll 2
            for (u32 row = threadIdx.x / 8; row < a.tile; row += THREADS / 8) {
                float x[4];
                load(row, channel, x);
                u32 whole = 0;
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    const u32 magnitude = magnitude_of(x[e]);
                    largest[e] = max(largest[e], magnitude);
                    whole = max(whole, magnitude);
                }
                keep_row(row, whole, channel < 32);
            }
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
#pragma unroll
                for (u32 lanes = 8; lanes < 32; lanes *= 2) largest[e] = max(largest[e], __shfl_xor_sync(0xffffffffu, largest[e], lanes));
            }
            if (threadIdx.x % 32 < 8) *reinterpret_cast<uint4 *>(&channel_largest[threadIdx.x / 32][channel]) = {largest[0], largest[1], largest[2], largest[3]};
        }
    } else {
#pragma unroll 2
        for (u32 row = threadIdx.x / 8; row < a.tile; row += THREADS / 8) {
            u32 largest = 0;
#pragma unroll 2
            for (u32 channel = 4 * lane; channel < a.head; channel += 32) {
                float x[4];
                load(row, channel, x);
#pragma unroll
                for (u32 e = 0; e < 4; e++) largest = max(largest, magnitude_of(x[e]));
            }
            keep_row(row, largest, true);
        }
    }
    __syncthreads();
    // The largest number, and whether some rows are so small beside others that they lose digits; every warp finds the same.
    u32 largest = 0;
    const auto is_wide = [&] {
        u32 least = 0x7fffffffu;
        largest = 0;
        for (u32 row = threadIdx.x % 32; row < a.tile; row += 32) {
            const u32 magnitude = row_largest[row];
            largest = max(largest, magnitude);
            if (magnitude != 0) least = min(least, magnitude);
        }
        largest = __reduce_max_sync(0xffffffffu, largest);
        least = __reduce_min_sync(0xffffffffu, least);
        return largest != 0 && (largest >> 23) - (least >> 23) > MOST_RANGE;
    };
    // Of the numbers as they are: one that is larger than all others makes a unit in which the rest of its channel is nothing.
    bool wide = is_wide(), mixed = false;
    const u32 exponent = exponent_of(largest);
    if (values && !wide) {
        for (u32 channel = threadIdx.x % 32; channel < a.head; channel += 32) {
            u32 own = 0;
#pragma unroll
            for (u32 warp = 0; warp < THREADS / 32; warp++) own = max(own, channel_largest[warp][channel]);
            const bool is_small = own != 0 && exponent_of(own) + CHANNEL_RANGE < exponent;
            mixed |= is_small;
            if (threadIdx.x < 32) channel_exponent[channel] = is_small ? exponent_of(own) : exponent;
        }
        mixed = __any_sync(0xffffffffu, mixed);
        if (mixed) __syncthreads();
    }

    u16 *const to = a.to + static_cast<u64>(blockIdx.x) * a.tile * 2 * a.head;
    const auto convert = [&](bool by_channel) {
#pragma unroll 2
        for (u32 row = threadIdx.x / 8; row < a.tile; row += THREADS / 8) {
            u32 scaled_largest = 0;
#pragma unroll 2
            for (u32 channel = 4 * lane; channel < a.head; channel += 32) {
                float x[4];
                load(row, channel, x);
                u32 coarse[2], fine[2];
#pragma unroll
                for (u32 pair = 0; pair < 2; pair++) {
                    float scaled[2];
#pragma unroll
                    for (u32 e = 0; e < 2; e++) {
                        const float number = x[2 * pair + e];
                        const u32 own = by_channel ? channel_exponent[channel + 2 * pair + e] : exponent;
                        scaled[e] = __uint_as_float(__float_as_uint(number) & a.kept ^ a.sign) * factor_of(own);
                        // A number that becomes 0 is none.
                        if (by_channel) scaled_largest = max(scaled_largest, max(magnitude_of(scaled[e]), min(magnitude_of(number), 1u)));
                    }
                    split<F16>(scaled[0], scaled[1], coarse[pair], fine[pair]);
                }
                u16 *const at = to + row * 2 * a.head + channel;
                *reinterpret_cast<uint2 *>(at) = {coarse[0], coarse[1]};
                *reinterpret_cast<uint2 *>(at + a.head) = {fine[0], fine[1]};
            }
            if (by_channel) keep_row(row, scaled_largest, true);
        }
    };
    if (mixed) {
        // All have read what rows were as they are: the barrier above.
        convert(true);
        __syncthreads();
        // And of rows in their channels' units.
        wide = is_wide();
    } else {
        convert(false);
    }
    const float unit = wide ? __uint_as_float(0x7fffffffu) : unit_of(exponent);
    if (!values) {
        if (threadIdx.x == 0) a.units[blockIdx.x] = unit;
        return;
    }
    float *const units = a.units + static_cast<u64>(blockIdx.x) * (a.head + 2);
    if (threadIdx.x == 0) *reinterpret_cast<float2 *>(units) = {unit, mixed && !wide ? 1.0f : 0.0f};
    if (mixed) {
        for (u32 channel = threadIdx.x; channel < a.head; channel += THREADS) units[2 + channel] = unit_of(channel_exponent[channel]);
    }
}
