// Suite 1, L2 policy: value is to stay in L2, what is read or written once is to leave it first.
//
// A3 with a policy on each access: pixels are loaded as `evict_last`, for PERCENT of all addresses; coordinates,
// weights and results pass as `evict_first`. It should spare pixels being fetched from DRAM twice. But at any time only
// a few images are being read, a few megabytes of the tens that L2 holds, so hardly any pixel is lost: should gain
// nothing.
//
// THREADS: of a block; RESIDENT: see vectorised.cuh; PERCENT: of value that is to stay.

__device__ __forceinline__ u64 stay_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, %1;" : "=l"(policy) : "f"(PERCENT / 100.0f));
    return policy;
}
__device__ __forceinline__ u64 leave_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ Words load_with(const char *address, u64 policy) {
    Words v;
    asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address), "l"(policy));
    return v;
}
// COUNT floats, in loads as wide as their place allows.
template <int COUNT> __device__ __forceinline__ void read_with(float (&to)[COUNT], const float *from, u64 policy) {
    constexpr int WIDE = largest_divisor(COUNT, 4);
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDE) {
        if constexpr (WIDE == 4) {
            asm("ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
                : "l"(from + i), "l"(policy));
        } else if constexpr (WIDE == 2) {
            asm("ld.global.nc.L2::cache_hint.v2.f32 {%0, %1}, [%2], %3;"
                : "=f"(to[i]), "=f"(to[i + 1])
                : "l"(from + i), "l"(policy));
        } else {
            asm("ld.global.nc.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(to[i]) : "l"(from + i), "l"(policy));
        }
    }
}
__device__ __forceinline__ void store_with(char *address, const float (&sums)[VECTOR], u64 policy) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address),
                 "r"(rounded(sums[0], sums[1])), "r"(rounded(sums[2], sums[3])), "r"(rounded(sums[4], sums[5])),
                 "r"(rounded(sums[6], sums[7])), "l"(policy)
                 : "memory");
}

KERNEL ladder_s1_l2_policy(const __grid_constant__ Problem p) {
    const Place place = place_of(p, static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x);
    if (!place.live) return;
    const u64 stay = stay_policy(), leave = leave_policy();
    const char *value = value_of_row(p, place.row) + 16 * place.vector;
    const u32 stride = p.heads * PIXEL_BYTES;
    u64 sample = static_cast<u64>(place.row) * SAMPLES;
    float sums[VECTOR] = {};
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level level = p.levels[l];
        const Corners corners = corners_of(value, stride, level);
#pragma unroll BATCHES
        for (int point = 0; point < POINTS; point += BATCH, sample += BATCH) {
            float locations[2 * BATCH], weights[BATCH];
            read_with(locations, reinterpret_cast<const float *>(p.locations + sample), leave);
            read_with(weights, p.weights + sample, leave);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const Record record = record_of({locations[2 * i], locations[2 * i + 1]}, weights[i], level);
                const u64 offset = static_cast<u64>(record.pixel) * stride;
                const Taps taps = {load_with(corners.of[0] + offset, stay), load_with(corners.of[1] + offset, stay),
                                   load_with(corners.of[2] + offset, stay), load_with(corners.of[3] + offset, stay)};
                add_sample(sums, taps, record);
            }
        }
    }
    store_with(out_of(p, place), sums, leave);
}
