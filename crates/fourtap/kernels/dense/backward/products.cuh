// The products of a tile of rows and a tile of columns, both in shared memory.

// logits = rows . columns, over CHANNELS. Addresses are where a lane reads its rows of fragments.
template <int CHANNELS> static __device__ __forceinline__ void multiply(Logits &logits, u32 rows_at, u32 columns_at) {
    typedef Tile<CHANNELS> T;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) logits[r][k][i] = 0.0f;
#pragma unroll
    for (u32 step = 0; step < CHANNELS / 16; step++) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++) load_matrices(a[r], T::further(rows_at, 2 * step) + r * 16 * T::ROW);
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k += 2) {
            u32 b[4];
            load_matrices(b, T::further(columns_at, 2 * step) + k * 8 * T::ROW);
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++) {
                multiply_add<VALUE>(logits[r][k], a[r][0], a[r][1], a[r][2], a[r][3], b[0], b[1]);
                multiply_add<VALUE>(logits[r][k + 1], a[r][0], a[r][1], a[r][2], a[r][3], b[2], b[3]);
            }
        }
    }
}

template <int CHANNELS> struct Sums {
    float of[ROW_TILES][CHANNELS / 8][4];

    __device__ __forceinline__ Sums() {
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (u32 c = 0; c < CHANNELS / 8; c++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) of[r][c][i] = 0.0f;
    }
    // Numbers of a tile, rounded, times its columns.
    __device__ __forceinline__ void add(const Logits &factors, u32 columns_at) {
        typedef Tile<CHANNELS> T;
#pragma unroll
        for (u32 k = 0; k < KEY_TILES; k += 2) {
            u32 a[ROW_TILES][4];
#pragma unroll
            for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float(&f)[4] = factors[r][k + i / 2];
                    a[r][i] = Value::round(f[i % 2 * 2], f[i % 2 * 2 + 1]);
                }
#pragma unroll
            for (u32 c = 0; c < CHANNELS / 8; c += 2) {
                u32 b[4];
                load_transposed(b, T::further(columns_at, c) + k * 8 * T::ROW);
#pragma unroll
                for (u32 r = 0; r < ROW_TILES; r++) {
                    multiply_add<VALUE>(of[r][c], a[r][0], a[r][1], a[r][2], a[r][3], b[0], b[1]);
                    multiply_add<VALUE>(of[r][c + 1], a[r][0], a[r][1], a[r][2], a[r][3], b[2], b[3]);
                }
            }
        }
    }
    // Whether the four of a row, all of a lane's, are numbers.
    __device__ __forceinline__ bool is_sound(u32 r, u32 half) const {
        bool sound = true;
#pragma unroll
        for (u32 c = 0; c < CHANNELS / 8; c++) sound &= is_finite(of[r][c][2 * half]) && is_finite(of[r][c][2 * half + 1]);
        return sound;
    }
    // A warp's rows, times `factor`, to memory by way of shared memory, from where a lane takes eight neighbouring channels.
    // `staged_at`: where the warp's rows were. `first`: of `rows` that there are.
    __device__ __forceinline__ void store(void *to, i64 at, const i64 (&strides)[4], u32 channels, float factor, u32 staged_at, int first, int rows,
                                          u32 lane) const {
        typedef Tile<CHANNELS> T;
        __syncwarp(); // what was here has been read
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
#pragma unroll
                for (u32 c = 0; c < CHANNELS / 8; c++) {
                    const float(&s)[4] = of[r][c];
                    store_shared_word(staged_at + T::place(16 * r + 8 * half + lane / 4, c) + 4 * (lane % 4),
                                      Value::round(s[2 * half] * factor, s[2 * half + 1] * factor));
                }
        __syncwarp();
        constexpr u32 STEP = 32 / T::SPAN;
        const u32 piece = lane % T::SPAN;
        const i64 apart = ALIGN == 2 ? strides[3] : 1;
#pragma unroll 1
        for (u32 i = 0; i < ROWS; i += STEP) {
            const u32 row = i + lane / T::SPAN;
            if (first + static_cast<int>(row) >= rows) break;
            Value::Storage *const of_row = static_cast<Value::Storage *>(to) + at + (first + static_cast<int>(row)) * strides[2];
#pragma unroll
            for (u32 s = 0; s < T::SPANS; s++) {
                const u32 p = piece + s * T::SPAN;
                const Vector v = load_shared(staged_at + T::place(row, p));
                if (ALIGN == 16 && (!PADDED || 8 * p + 8 <= channels)) {
                    store_vector(reinterpret_cast<char *>(of_row + 8 * p), v);
                } else {
                    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (u32 e = 0; e < 8; e++) {
                        if (8 * p + e < channels) of_row[(8 * p + e) * apart] = static_cast<u16>(words[e / 2] >> 16 * (e % 2));
                    }
                }
            }
        }
    }
};
