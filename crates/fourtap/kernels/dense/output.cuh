// Results on their way to memory.

// Where a row of the output goes: the tensor itself, or a part's row in scratch.
struct Target {
    const Arguments &a;
    i64 base, lse_base; // of the sequence and head
    i64 plane;          // of scratch
    __device__ __forceinline__ Target(const Arguments &a, const Work &work)
        : a(a), base(work.b * a.out_strides[0] + work.h * a.out_strides[1]), lse_base(work.b * a.lse_strides[0] + work.h * a.lse_strides[1]),
          plane((SPLIT ? static_cast<i64>(work.split) * a.planes : 0) + work.b * a.query_heads + work.h) {}
    __device__ __forceinline__ Value::Storage *row(int i) const { return static_cast<Value::Storage *>(a.out) + base + i * a.out_strides[2]; }
    __device__ __forceinline__ i64 apart() const { return ALIGN == 2 || VALUE == F32 ? a.out_strides[3] : 1; } // channels
    __device__ __forceinline__ float *partial(int i) const { return a.partial + (plane * a.queries + i) * HEAD_V; }
    __device__ __forceinline__ void store_lse(int i, float maximum, float sum) const {
        if (a.lse == nullptr) return;
        static_cast<float *>(a.lse)[lse_base + i * a.lse_strides[2]] = sum == 0.0f ? minus_infinity() : __fmaf_rn(maximum, LN_2, logf(sum));
    }
};

#if VALUE == F32
// A lane has pairs of neighbouring channels, four lanes 32 bytes.
static __device__ __forceinline__ void store_rows(const Rows &rows, const Target &target, int first, u32 lane) {
    const Arguments &a = target.a;
    const bool pairs = a.out_strides[3] == 1 && (a.out_strides[0] | a.out_strides[1] | a.out_strides[2]) % 2 == 0 && reinterpret_cast<u64>(a.out) % 8 == 0;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const int i = first + static_cast<int>(16 * r + 8 * half + lane / 4);
            if (i >= a.queries) continue;
            const float sum = rows.sum[r][half], inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
            float *const to = target.row(i);
#pragma unroll
            for (u32 c = 0; c < OUT_TILES; c++) {
                const u32 channel = 8 * c + 2 * (lane % 4);
                // A row that saw nothing is 0, whatever 0 times the values was.
                const float left = sum == 0.0f ? 0.0f : rows.out[r][c][2 * half] * inverse;
                const float right = sum == 0.0f ? 0.0f : rows.out[r][c][2 * half + 1] * inverse;
                if (pairs && channel + 1 < a.value_channels) {
                    *reinterpret_cast<float2 *>(to + channel) = {left, right};
                } else {
                    if (channel < a.value_channels) to[channel * target.apart()] = left;
                    if (channel + 1 < a.value_channels) to[(channel + 1) * target.apart()] = right;
                }
            }
        }
    }
}
#else
// Outputs of 16 bits by way of shared memory, from where a lane takes eight neighbouring channels.
static __device__ __forceinline__ void store_rows(const Rows &rows, const Target &target, u32 staged_at, int first, u32 lane) {
    const Arguments &a = target.a;
    const u32 group = lane / 4, in_group = lane % 4;
    __syncwarp(); // queries, which were here, have been read
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
#endif

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

static __device__ __forceinline__ void store_lse(const Rows &rows, const Target &target, int first, u32 lane) {
    if (lane % 4 != 0) return;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const int i = first + static_cast<int>(16 * r + 8 * half + lane / 4);
            if (i < target.a.queries) target.store_lse(i, rows.maximum[r][half], rows.sum[r][half]);
        }
    }
}
