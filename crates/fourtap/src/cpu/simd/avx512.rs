//! 16 f32 sums in a 512-bit register. f64 is left to the compiler, which may use the same registers.

use std::arch::x86_64::*;

use super::exp2::{F32_COEFFICIENTS, F32_LEAST};
use super::portable::Array;
use super::{Access, Isa, Kernel, Lanes};
use crate::dtype::{bf16, f16};

/// Runs a kernel compiled for AVX-512.
///
/// # Safety
/// The processor must have these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { kernel.run::<Avx512>() }
}

pub(super) struct Avx512;

impl Isa for Avx512 {
    type F32 = F32x16;
    type F64 = Array<f64, 8, true>;
    const REGISTERS: usize = 32;
}

#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

/// [a a b b], each half of a vector added to the other.
#[inline(always)]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: as for the blocks below.
    unsafe {
        let lower = _mm512_shuffle_f32x4(a, b, 0b01_00_01_00);
        let upper = _mm512_shuffle_f32x4(a, b, 0b11_10_11_10);
        _mm512_add_ps(lower, upper)
    }
}

#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

// SAFETY of every block below: the instructions exist wherever `run` was called, and nothing else makes this type;
// memory is readable or writable as the callers of `Access` promise.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes<f32> for F32x16 {
    const COUNT: usize = 16;
    const FUSES: bool = true;

    #[inline(always)]
    fn splat(number: f32) -> Self {
        F32x16(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        F32x16(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        F32x16(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        F32x16(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        F32x16(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_seen(self, logit: Self) -> Self {
        unsafe {
            let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
            let seen = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(logit.0, hidden);
            F32x16(_mm512_maskz_mov_ps(seen, self.0))
        }
    }

    #[inline(always)]
    fn exp2(self) -> Self {
        unsafe {
            let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(F32_LEAST));
            let whole =
                _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            let rest = _mm512_sub_ps(self.0, whole);
            let mut polynomial = _mm512_set1_ps(F32_COEFFICIENTS[5]);
            for coefficient in [4, 3, 2, 1, 0] {
                let coefficient = _mm512_set1_ps(F32_COEFFICIENTS[coefficient]);
                polynomial = _mm512_fmadd_ps(polynomial, rest, coefficient);
            }
            polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(1.0));
            F32x16(_mm512_maskz_scalef_ps(normal, polynomial, whole))
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        F32x16(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let (ab, cd) = (add_halves(a.0, b.0), add_halves(c.0, d.0));
            // Quarters [a a b b] and [c c d d] become [a b c d].
            let quarters = _mm512_add_ps(
                _mm512_shuffle_f32x4(ab, cd, 0b10_00_10_00),
                _mm512_shuffle_f32x4(ab, cd, 0b11_01_11_01),
            );
            let twos = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0b01_00_11_10));
            let ones = _mm512_add_ps(twos, _mm512_permute_ps(twos, 0b10_11_00_01));
            let lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            let mut sums = [0.0; 4];
            _mm_storeu_ps(
                sums.as_mut_ptr(),
                _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, ones)),
            );
            sums
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<f32> for F32x16 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        F32x16(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        F32x16(unsafe { _mm512_maskz_loadu_ps(first(count), from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<f16> for F32x16 {
    #[inline(always)]
    unsafe fn load(from: *const f16) -> Self {
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f16, count: usize) -> Self {
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f16) {
        unsafe {
            _mm256_storeu_si256(
                to.cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f16, count: usize) {
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_mask_storeu_epi16(to.cast(), first(count), halves);
        }
    }
}

impl F32x16 {
    /// Each lane rounded to the nearest bf16, ties to even, in its upper half; the lower half is garbage. A NaN stays
    /// one by keeping its quiet bit, as `half` does.
    #[inline(always)]
    fn rounded_to_bf16(self) -> __m512i {
        #[allow(clippy::undocumented_unsafe_blocks)]
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_add_epi32(bits, bias);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            _mm512_mask_mov_epi32(rounded, nan, quiet)
        }
    }

    #[inline(always)]
    fn to_bf16(self) -> __m256i {
        #[allow(clippy::undocumented_unsafe_blocks)]
        unsafe {
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(self.rounded_to_bf16()))
        }
    }

    #[inline(always)]
    fn of_bf16(halves: __m256i) -> Self {
        #[allow(clippy::undocumented_unsafe_blocks)]
        F32x16(unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        })
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Access<bf16> for F32x16 {
    #[inline(always)]
    unsafe fn load(from: *const bf16) -> Self {
        Self::of_bf16(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const bf16, count: usize) -> Self {
        Self::of_bf16(unsafe { _mm256_maskz_loadu_epi16(first(count), from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut bf16) {
        unsafe { _mm256_storeu_si256(to.cast(), self.to_bf16()) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut bf16, count: usize) {
        unsafe { _mm256_mask_storeu_epi16(to.cast(), first(count), self.to_bf16()) }
    }

    // Elements of even index to the first vector, of odd index to the second: half the instructions of widening in
    // order.

    #[inline(always)]
    unsafe fn load_pair(from: *const bf16) -> [Self; 2] {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let even = _mm512_slli_epi32::<16>(pairs);
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(UPPER));
            [
                F32x16(_mm512_castsi512_ps(even)),
                F32x16(_mm512_castsi512_ps(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_pair([even, odd]: [Self; 2], to: *mut bf16) {
        unsafe {
            let even = _mm512_srli_epi32::<16>(even.rounded_to_bf16());
            let odd = _mm512_and_si512(odd.rounded_to_bf16(), _mm512_set1_epi32(UPPER));
            _mm512_storeu_si512(to.cast(), _mm512_or_si512(even, odd));
        }
    }
}

/// The upper half of a lane.
const UPPER: i32 = 0xffff_0000_u32 as i32;
