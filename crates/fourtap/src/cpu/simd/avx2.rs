//! 8 f32 sums in a 256-bit register. f64 is left to the compiler, which may use the same registers.

use std::arch::x86_64::*;

use super::exp2::{F32_COEFFICIENTS, F32_INFINITE, F32_LEAST};
use super::portable::Array;
use super::{Access, Isa, Kernel, Lanes};
use crate::dtype::{Element, bf16, f16};

/// Runs a kernel compiled for AVX2.
///
/// # Safety
/// The processor must have these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { kernel.run::<Avx2>() }
}

pub(super) struct Avx2;

impl Isa for Avx2 {
    type F32 = F32x8;
    type F64 = Array<f64, 8, true>;
    const REGISTERS: usize = 16;
}

#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

// SAFETY of every block below: the instructions exist wherever `run` was called, and nothing else makes this type;
// memory is readable or writable as the callers of `Access` promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes<f32> for F32x8 {
    const COUNT: usize = 8;
    const FUSES: bool = true;

    #[inline(always)]
    fn splat(number: f32) -> Self {
        F32x8(unsafe { _mm256_set1_ps(number) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        F32x8(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        F32x8(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        F32x8(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        F32x8(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_seen(self, logit: Self) -> Self {
        unsafe {
            let hidden = _mm256_set1_ps(f32::NEG_INFINITY);
            let seen = _mm256_cmp_ps::<_CMP_NEQ_UQ>(logit.0, hidden);
            F32x8(_mm256_and_ps(self.0, seen))
        }
    }

    #[inline(always)]
    fn exp2(self) -> Self {
        unsafe {
            let normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(self.0, _mm256_set1_ps(F32_LEAST));
            // The second where either is NaN.
            let power = _mm256_min_ps(_mm256_set1_ps(F32_INFINITE), self.0);
            let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(power);
            let rest = _mm256_sub_ps(power, whole);
            let mut polynomial = _mm256_set1_ps(F32_COEFFICIENTS[5]);
            for coefficient in [4, 3, 2, 1, 0] {
                let coefficient = _mm256_set1_ps(F32_COEFFICIENTS[coefficient]);
                polynomial = _mm256_fmadd_ps(polynomial, rest, coefficient);
            }
            polynomial = _mm256_fmadd_ps(polynomial, rest, _mm256_set1_ps(1.0));
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
            let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased));
            // Where the power is not a normal number the product is garbage, and masked out.
            F32x8(_mm256_and_ps(_mm256_mul_ps(polynomial, power), normal))
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        F32x8(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0));
            let sums = _mm_add_ps(
                _mm256_castps256_ps128(pairs),
                _mm256_extractf128_ps::<1>(pairs),
            );
            let mut array = [0.0; 4];
            _mm_storeu_ps(array.as_mut_ptr(), sums);
            array
        }
    }
}

impl F32x8 {
    #[inline(always)]
    fn to_array(self) -> [f32; 8] {
        // SAFETY: both are eight f32.
        unsafe { std::mem::transmute(self.0) }
    }

    /// A mask of the lanes below `count`, as `maskload` takes it.
    #[inline(always)]
    fn first(count: usize) -> __m256i {
        #[allow(clippy::undocumented_unsafe_blocks)]
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
        }
    }
}

/// The first `count` of eight elements; the others are 0.
#[inline(always)]
unsafe fn copy_first<E: Element>(from: *const E, count: usize) -> [E; 8] {
    let mut copy = [E::default(); 8];
    for (lane, element) in copy.iter_mut().enumerate().take(count) {
        // SAFETY: `count` elements are readable, as the caller promises.
        *element = unsafe { *from.add(lane) };
    }
    copy
}

#[inline(always)]
unsafe fn store_first<E: Element<Accumulator = f32>>(vector: F32x8, to: *mut E, count: usize) {
    for (lane, number) in vector.to_array().into_iter().enumerate().take(count) {
        // SAFETY: `count` elements are writable, as the caller promises.
        unsafe { *to.add(lane) = E::narrow(number) };
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<f32> for F32x8 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        F32x8(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        F32x8(unsafe { _mm256_maskload_ps(from, Self::first(count)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm256_maskstore_ps(to, Self::first(count), self.0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<f16> for F32x8 {
    #[inline(always)]
    unsafe fn load(from: *const f16) -> Self {
        F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f16, count: usize) -> Self {
        unsafe { Self::load(copy_first(from, count).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f16) {
        unsafe {
            _mm_storeu_si128(
                to.cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f16, count: usize) {
        unsafe { store_first(self, to, count) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<bf16> for F32x8 {
    #[inline(always)]
    unsafe fn load(from: *const bf16) -> Self {
        unsafe {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)))
        }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const bf16, count: usize) -> Self {
        unsafe { Self::load(copy_first(from, count).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut bf16) {
        unsafe {
            to.cast::<[bf16; 8]>()
                .write_unaligned(self.to_array().map(bf16::from_f32))
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut bf16, count: usize) {
        unsafe { store_first(self, to, count) }
    }

    // Elements of even index to the first vector, of odd index to the second: half the instructions of widening in
    // order.

    #[inline(always)]
    unsafe fn load_pair(from: *const bf16) -> [Self; 2] {
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let even = _mm256_slli_epi32::<16>(pairs);
            let odd = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [
                F32x8(_mm256_castsi256_ps(even)),
                F32x8(_mm256_castsi256_ps(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_pair([even, odd]: [Self; 2], to: *mut bf16) {
        let (even, odd) = (even.to_array(), odd.to_array());
        let in_order = std::array::from_fn(|i| {
            bf16::from_f32(if i % 2 == 0 { even[i / 2] } else { odd[i / 2] })
        });
        unsafe { to.cast::<[bf16; 16]>().write_unaligned(in_order) }
    }
}
