// A8, distributed shared memory: the blocks of a cluster hold a whole image-head together, and read each other's part.
//
// A cluster takes consecutive units (ROWS queries of one image-head) of all there are. For each image-head its blocks
// copy their parts, wait for each other, work on a share of the queries each, and wait again before parts are replaced
// or a block leaves. By pixels (BY_CHANNELS 0): pixel i is in block i % PARTS, so that neighbours lie in different
// blocks and the load spreads. By channels: each block has some channels of every pixel, and the lanes of a row read
// their 4 to 16 bytes from different blocks.
// One warp takes a unit; a lane has eight 16-byte loads, or as many bytes in smaller ones, under way before it adds.
// Neither L1 nor L2 is needed for value; but the way between multiprocessors moves a third of what L2 does: by pixels
// 6.06 GB at 3.1 TB/s, 2 ms; by channels pieces of 8 bytes instead of 64, several times that.
//
// THREADS; PARTS: blocks of a cluster, a power of two; BLOCK_BYTES of its part. Also what records.cuh asks for.

constexpr int SLICE = PIXEL_BYTES / PARTS; // by channels: bytes of a pixel in a block
constexpr int LANE_BYTES = PIXEL_BYTES / LANES;
constexpr int LANE_WORDS = LANE_BYTES / 4;
constexpr int BATCH = 8 / LANE_WORDS; // samples: 32 words a lane
static_assert(CHUNK % BATCH == 0, "a chunk is whole batches");

// Two, four or eight channels of a pixel.
template <int COUNT> struct Piece {
    u32 words[COUNT];
};

template <int COUNT> __device__ __forceinline__ Piece<COUNT> read_piece(u32 address) {
    Piece<COUNT> piece;
    if constexpr (COUNT == 4) {
        const Words four = load_cluster(address);
        piece.words[0] = four.x, piece.words[1] = four.y, piece.words[2] = four.z, piece.words[3] = four.w;
    } else if constexpr (COUNT == 2) {
        asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];"
                     : "=r"(piece.words[0]), "=r"(piece.words[1])
                     : "r"(address)
                     : "memory");
    } else {
        piece.words[0] = load_cluster_word(address);
    }
    return piece;
}

__device__ __forceinline__ void add_piece(float (&sums)[2 * LANE_WORDS], const Piece<LANE_WORDS> &piece, float weight) {
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) {
        float low, high;
        widen(piece.words[i], low, high);
        sums[2 * i] = __fmaf_rn(weight, low, sums[2 * i]);
        sums[2 * i + 1] = __fmaf_rn(weight, high, sums[2 * i + 1]);
    }
}

template <int COUNT> __device__ __forceinline__ void store_piece(char *out, const float (&sums)[COUNT]) {
    if constexpr (COUNT == 8) {
        store_sums(out, sums);
    } else if constexpr (COUNT == 4) {
        __stcs(reinterpret_cast<uint2 *>(out), make_uint2(rounded(sums[0], sums[1]), rounded(sums[2], sums[3])));
    } else {
        __stcs(reinterpret_cast<u32 *>(out), rounded(sums[0], sums[1]));
    }
}

// LANE_BYTES into shared memory, without a register between.
__device__ __forceinline__ void copy_piece(u32 target, const char *source) {
    if constexpr (LANE_BYTES == 16) {
        copy_async(target, source);
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(source), "n"(LANE_BYTES)
                     : "memory");
    }
}

// A lane's channels of a pixel, in whichever block has them. `mine` is where they are for pixel 0; by channels also in
// which block.
__device__ __forceinline__ u32 place_of(u32 mine, u32 pixel) {
#if BY_CHANNELS
    return mine + pixel * SLICE;
#else
    return address_in_block(mine + pixel / PARTS * PIXEL_BYTES, pixel % PARTS);
#endif
}

// The whole cluster. Lanes find together first, as its barrier takes for granted.
__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    synchronise_cluster();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ladder_a08(const __grid_constant__ Problem p) {
    // The block's part of an image-head, then records.
    extern __shared__ __align__(1024) char memory[];
    const u32 shared = shared_address(memory), rank = rank_in_cluster();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / LANES, in_group = lane % LANES;
    const u32 first_record = shared + BLOCK_BYTES + warp * RECORD_BYTES + group * 16;
#if BY_CHANNELS
    const u32 mine = address_in_block(shared + in_group * LANE_BYTES % SLICE, in_group * LANE_BYTES / SLICE);
#else
    const u32 mine = shared + in_group * LANE_BYTES;
#endif
    const u64 stride = pixel_stride(p);
    const u32 units = (p.queries + ROWS - 1) / ROWS, clusters = gridDim.x / PARTS, cluster = blockIdx.x / PARTS;
    const u64 all_units = static_cast<u64>(p.images) * p.heads * units;
    const u64 end = all_units * (cluster + 1) / clusters;

#pragma unroll 1
    for (u64 begin = all_units * cluster / clusters; begin < end;) {
        const u32 plane = static_cast<u32>(begin / units), image = plane / p.heads, head = plane % p.heads;
        const u32 first = static_cast<u32>(begin % units);
        const u32 count = static_cast<u32>(min(end - begin, static_cast<u64>(units - first)));
        begin += count;
        const char *value = p.value + (static_cast<u64>(image) * p.pixels * p.heads + head) * PIXEL_BYTES;
        // By pixels LANES pieces of each pixel that falls to this block; by channels SLICE / LANE_BYTES of every one.
        constexpr u32 PIECES = BY_CHANNELS ? SLICE / LANE_BYTES : LANES;
        const u32 pieces = (BY_CHANNELS ? p.pixels : (p.pixels - rank + PARTS - 1) / PARTS) * PIECES;
        for (u32 i = threadIdx.x; i < pieces; i += THREADS) {
            const u64 pixel = BY_CHANNELS ? i / PIECES : i / PIECES * PARTS + rank;
            const u32 channel = (BY_CHANNELS ? rank * SLICE : 0) + i % PIECES * LANE_BYTES;
            copy_piece(shared + i * LANE_BYTES, value + pixel * stride + channel);
        }
        commit_copies();
        wait_for_copies<0>();
        meet_cluster();

        const auto share = [&](u32 block) { return first + static_cast<u32>(static_cast<u64>(count) * block / PARTS); };
        for (u32 unit = share(rank) + warp; unit < share(rank + 1); unit += WARPS) {
            const u32 query = unit * ROWS + group;
            const u64 row = (static_cast<u64>(image) * p.queries + query) * p.heads + head;
            float sums[2 * LANE_WORDS] = {};
#pragma unroll 1
            for (int chunk = 0; chunk < LEVELS * CHUNKS; chunk++) {
                const Level &level = p.levels[chunk / CHUNKS];
                const int point = chunk % CHUNKS * CHUNK + in_group * PER_LANE;
                Pending samples;
                samples.ask(p, row * SAMPLES + chunk / CHUNKS * POINTS + point, query < p.queries && point < POINTS);
                share_records(samples, first_record, group, in_group, level.width, level.height);
                const u32 right = level.width > 1 ? 1 : 0, down = level.height > 1 ? level.width : 0;
                // A batch may reach past the last point, to records of no weight; never past a chunk.
                const int rest = min(POINTS - chunk % CHUNKS * CHUNK, CHUNK);
#pragma unroll 1
                for (int step = 0; step < rest; step += BATCH) {
                    Piece<LANE_WORDS> taps[BATCH][4];
                    float weights[BATCH][3];
#pragma unroll
                    for (int i = 0; i < BATCH; i++) {
                        const Words record = load_shared(record_at(first_record, step + i));
                        const u32 pixel = level.start + record.x;
                        weights[i][0] = __uint_as_float(record.y);
                        weights[i][1] = __uint_as_float(record.z);
                        weights[i][2] = __uint_as_float(record.w);
                        taps[i][0] = read_piece<LANE_WORDS>(place_of(mine, pixel));
                        taps[i][1] = read_piece<LANE_WORDS>(place_of(mine, pixel + right));
                        taps[i][2] = read_piece<LANE_WORDS>(place_of(mine, pixel + down));
                        taps[i][3] = read_piece<LANE_WORDS>(place_of(mine, pixel + down + right));
                    }
#pragma unroll
                    for (int i = 0; i < BATCH; i++) {
                        const float one = 1.0f - weights[i][0];
                        add_piece(sums, taps[i][0], one * weights[i][1]);
                        add_piece(sums, taps[i][1], weights[i][0] * weights[i][1]);
                        add_piece(sums, taps[i][2], one * weights[i][2]);
                        add_piece(sums, taps[i][3], weights[i][0] * weights[i][2]);
                    }
                }
            }
            if (query < p.queries) store_piece(p.out + row * PIXEL_BYTES + in_group * LANE_BYTES, sums);
        }
        // Nobody replaces its part, or leaves with it, before all have read.
        meet_cluster();
    }
}
