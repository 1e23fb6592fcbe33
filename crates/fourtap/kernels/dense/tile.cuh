// Rows of CHANNELS 16-bit numbers in shared memory, in pieces of 16 bytes, so that eight rows' pieces of one place are
// in different banks: the pieces of a row are exchanged within spans of 128 bytes (64 where a row is no multiple of
// 128) by exclusive or with the row's number. CHANNELS: a multiple of 32; a tile starts at a multiple of 128 bytes.

// Four 8x8 matrices of 16-bit numbers as they lie; lane l has the address of row l % 8 of matrix l / 8.
static __device__ __forceinline__ void load_matrices(u32 (&matrices)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address));
}

constexpr u32 THREADS = 32 * WARPS;

template <int CHANNELS> struct Tile {
    static constexpr u32 ROW = 2 * CHANNELS;
    static constexpr u32 SPAN = CHANNELS % 64 == 0 ? 8 : 4; // pieces
    static constexpr u32 SPANS = CHANNELS / 8 / SPAN;
    static __device__ __forceinline__ u32 turn(u32 row) { return SPAN == 8 ? row % 8 : row / 2 % 4; }
    static __device__ __forceinline__ u32 place(u32 row, u32 piece) {
        return row * ROW + piece / SPAN * SPAN * 16 + (piece % SPAN ^ turn(row)) * 16;
    }
    // The piece `pieces` further, an even number, from piece 0 or 1 of a row.
    static __device__ __forceinline__ u32 further(u32 address, u32 pieces) {
        return (address ^ pieces % SPAN * 16) + pieces / SPAN * SPAN * 16;
    }
};

// 16 bytes of which the first `bytes` are there; sources are multiples of ALIGN. Only with ALIGN 2 channels may be `apart`.
static __device__ __forceinline__ void copy_piece(u32 target, const char *source, u32 bytes, i64 apart) {
    if (ALIGN == 16) {
        copy_async<16>(target, source, bytes);
    } else if (ALIGN == 4) {
#pragma unroll
        for (u32 i = 0; i < 16; i += 4) copy_async<4>(target + i, source + i, bytes > i ? min(bytes - i, 4u) : 0);
    } else {
        u32 words[4] = {};
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (2 * i < bytes) words[i / 2] |= static_cast<u32>(reinterpret_cast<const u16 *>(source)[i * apart]) << 16 * (i % 2);
        }
        store_shared(target, {words[0], words[1], words[2], words[3]});
    }
}

// One thread's part in bringing tiles of SIZE rows: every THREADS / SPAN-th row, one piece of every span of it.
template <int CHANNELS, int SIZE> struct Copier {
    typedef Tile<CHANNELS> T;
    static constexpr u32 STEP = THREADS / T::SPAN;
    static_assert(STEP % 8 == 0, "a thread's rows are exchanged alike");
    const char *source; // this thread's piece in row 0
    i64 stride, apart;  // of rows in bytes, of channels in elements
    u32 channels, row, piece, target;

    __device__ __forceinline__ Copier(const void *tensor, i64 offset, const i64 (&strides)[4], u32 channels)
        : stride(2 * strides[2]), apart(ALIGN == 2 ? strides[3] : 1), channels(channels), row(threadIdx.x / T::SPAN),
          piece(threadIdx.x % T::SPAN), target(T::place(row, piece)) {
        source = static_cast<const char *>(tensor) + 2 * offset + 16 * piece * apart;
    }
    // Rows from `first` on; those from `rows` on are zero.
    __device__ __forceinline__ void copy(u32 tile, int first, int rows) const {
        const char *at = source + (first + static_cast<int>(row)) * stride;
#pragma unroll
        for (u32 i = 0; i < SIZE; i += STEP, at += STEP * stride) {
            const bool there = first + static_cast<int>(i + row) < rows;
#pragma unroll
            for (u32 s = 0; s < T::SPANS && (SIZE % STEP == 0 || i + row < SIZE); s++) {
                const int left = 2 * static_cast<int>(channels) - 16 * static_cast<int>(piece + s * T::SPAN);
                const u32 bytes = PADDED ? max(0, min(16, left)) : 16;
                copy_piece(tile + target + i * T::ROW + s * T::SPAN * 16, at + s * T::SPAN * 16 * apart, there ? bytes : 0, apart);
            }
        }
    }
    // What this thread has brought, with other signs or as zeros.
    __device__ __forceinline__ void change_bits(u32 tile, u32 kept, u32 sign) const {
#pragma unroll 1
        for (u32 i = row; i < SIZE; i += STEP) {
#pragma unroll 1
            for (u32 s = 0; s < T::SPANS; s++) {
                const u32 at = tile + target + (i - row) * T::ROW + s * T::SPAN * 16;
                const Vector v = load_shared(at);
                store_shared(at, {v.x & kept ^ sign, v.y & kept ^ sign, v.z & kept ^ sign, v.w & kept ^ sign});
            }
        }
    }
};

// The shared memory of a block: queries (the outputs, at the end), then STAGES of a tile of keys and a tile of values.
// Of f32, each row's coarse parts and then its fine ones.
constexpr u32 PARTS = VALUE == F32 ? 2 : 1;
typedef Tile<PARTS * HEAD> KeyTile; // queries too
typedef Tile<PARTS * HEAD_V> ValueTile;
constexpr u32 QUERY_BYTES = BLOCK_M * (HEAD > HEAD_V || VALUE == F32 ? KeyTile::ROW : ValueTile::ROW);
constexpr u32 KEY_BYTES = BLOCK_N * KeyTile::ROW, KEYS_AT = QUERY_BYTES, VALUES_AT = KEYS_AT + KEY_BYTES;
constexpr u32 STAGE_BYTES = KEY_BYTES + BLOCK_N * ValueTile::ROW;
