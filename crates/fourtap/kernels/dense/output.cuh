// Results on their way to memory.

// Where a row of the output goes: the tensor itself, or a part's row in scratch.
struct Target {
    const Arguments &a;
    i64 base;  // of the sequence and head
    i64 plane; // of scratch
    __device__ __forceinline__ u16 *row(int i) const { return static_cast<u16 *>(a.out) + base + i * a.out_strides[2]; }
    __device__ __forceinline__ i64 apart() const { return ALIGN == 2 ? a.out_strides[3] : 1; } // channels
    __device__ __forceinline__ float *partial(int i) const { return a.partial + (plane * a.queries + i) * HEAD_V; }
};

// Outputs of 16 bits by way of shared memory, from where a lane takes eight neighbouring channels.
static __device__ __forceinline__ void store_rows(const Rows &rows, const Target &target, u32 staged_at, int first, u32 lane) {
    const Arguments &a = target.a;
    const u32 group = lane / 4, in_group = lane % 4;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = 16 * r + 8 * half + group;
            const float sum = rows.sum[r][half], inverse = 1.0f / sum;
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++) {
                const float left = rows.out[r][c][2 * half] * inverse, right = rows.out[r][c][2 * half + 1] * inverse;
                // A row that saw nothing is 0, whatever 0 times the values was.
                store_shared_word(staged_at + ValueTile::place(row, c) + 4 * in_group, sum == 0.0f ? 0 : Value::round(left, right));
            }
        }
    }
    __syncwarp();
    constexpr u32 STEP = 32 / ValueTile::SPAN;
    const u32 piece = lane % ValueTile::SPAN;
#pragma unroll
    for (u32 i = 0; i < ROWS; i += STEP) {
        const u32 row = i + lane / ValueTile::SPAN;
        if (first + static_cast<int>(row) >= a.queries) break;
        u16 *const to = target.row(first + row);
#pragma unroll
        for (u32 s = 0; s < ValueTile::SPANS; s++) {
            const u32 p = piece + s * ValueTile::SPAN;
            const Vector v = load_shared(staged_at + ValueTile::place(row, p));
            if (ALIGN == 16 && (!PADDED || 8 * p + 8 <= a.value_channels)) {
                store_vector(reinterpret_cast<char *>(to + 8 * p), v);
            } else {
                const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    if (8 * p + e < a.value_channels) to[(8 * p + e) * target.apart()] = static_cast<u16>(words[e / 2] >> 16 * (e % 2));
                }
            }
        }
    }
}

static __device__ __forceinline__ void store_partial(const Rows &rows, const Target &target, bool any, int first, u32 lane) {
    const Arguments &a = target.a;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const int i = first + static_cast<int>(16 * r + 8 * half + lane / 4);
            if (i >= a.queries) continue;
            float *const to = target.partial(i) + 2 * (lane % 4);
            if (lane % 4 == 0) a.states[target.plane * a.queries + i] = {rows.maximum[r][half], any ? rows.sum[r][half] : -1.0f};
            if (!any) continue;
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++) {
                *reinterpret_cast<float2 *>(to + 8 * c) = {rows.out[r][c][2 * half], rows.out[r][c][2 * half + 1]};
            }
        }
    }
}

static __device__ __forceinline__ void store_lse(const Rows &rows, const Arguments &a, i64 offset, int first, u32 lane) {
    if (a.lse == nullptr || lane % 4 != 0) return;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const int i = first + static_cast<int>(16 * r + 8 * half + lane / 4);
            const float sum = rows.sum[r][half];
            const float lse = sum == 0.0f ? minus_infinity() : __fmaf_rn(rows.maximum[r][half], LN_2, logf(sum));
            if (i < a.queries) a.lse[offset + i * a.lse_strides[2]] = lse;
        }
    }
}
