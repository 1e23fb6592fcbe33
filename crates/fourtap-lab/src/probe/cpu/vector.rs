//! Vectors of f32, and loops compiled for those of this processor.
//!
//! The few instructions the probes are about are named one by one: of the same loops in plain Rust, compilers made code
//! that kept its sums in memory or took vectors apart, and was far slower.

use fourtap::cpu::Simd;

/// Numbers side by side.
///
/// # Safety
/// Every function needs a processor with the instructions, which is why only [`run`] chooses one. `load` and `store` also
/// need memory of [`Vector::LANES`] numbers.
pub trait Vector: Copy {
    /// How many.
    const LANES: usize;

    /// The same in each lane.
    unsafe fn splat(number: f32) -> Self;

    /// From memory, wherever it begins.
    unsafe fn load(from: *const f32) -> Self;

    /// To memory, wherever it begins.
    unsafe fn store(self, to: *mut f32);

    /// The sums.
    unsafe fn add(self, other: Self) -> Self;

    /// The products with a factor, plus a term; rounded once where the processor can.
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self;
}

/// The lanes of the widest.
pub const MOST_LANES: usize = 16;

/// A loop over vectors.
pub trait Loop {
    /// What it computes.
    type Output;

    /// Runs it. Implementations, and all they call, are `#[inline(always)]`: else they are compiled without the
    /// instructions.
    ///
    /// # Safety
    /// The processor must have the instructions of `V`.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// Runs the copy for these instructions; the portable one if the processor lacks them.
pub fn run<L: Loop>(simd: Simd, work: L) -> L::Output {
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor is seen to have them.
        Simd::Amx | Simd::Avx512 if simd.is_available() => unsafe { x86::avx512(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise.
        Simd::Avx2 if simd.is_available() => unsafe { x86::avx2(work) },
        // SAFETY: every processor has what plain Rust needs.
        _ => unsafe { work.run::<[f32; 4]>() },
    }
}

impl Vector for [f32; 4] {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        [number; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four numbers; an array of them is aligned as one is.
        unsafe { from.cast::<Self>().read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as for `load`.
        unsafe { to.cast::<Self>().write(self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + other[lane])
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
        // Not `mul_add`, which is a call into a library where there is no instruction for it.
        std::array::from_fn(|lane| self[lane] * factor[lane] + term[lane])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Loop, Vector};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub fn avx512<L: Loop>(work: L) -> L::Output {
        // SAFETY: whoever calls this vouches for the instructions.
        unsafe { work.run::<__m512>() }
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2<L: Loop>(work: L) -> L::Output {
        // SAFETY: whoever calls this vouches for the instructions.
        unsafe { work.run::<__m256>() }
    }

    // SAFETY, of every block below: the caller vouches for the instructions, and for the memory.

    impl Vector for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(number) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(self, factor, term) }
        }
    }

    impl Vector for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            // SAFETY: see above.
            unsafe { _mm256_set1_ps(number) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { _mm256_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn multiply_add(self, factor: Self, term: Self) -> Self {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(self, factor, term) }
        }
    }
}
