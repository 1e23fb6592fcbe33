// Division by a number known before the launch, for numerators below 2^31. Mirrored in src/cuda/msda/arguments.rs.
struct Divisor {
    u32 multiplier, shift;
    __device__ __forceinline__ u32 divide(u32 number) const {
        return static_cast<u32>(static_cast<u64>(number) * multiplier >> shift);
    }
};
