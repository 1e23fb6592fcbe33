//! 16-bit numbers as sums of bf16, which is what tiles multiply.

use std::arch::x86_64::*;

use crate::cpu::simd::Vectorized;
use crate::dtype::{bf16, f16};

/// Numbers of a row of a left tile.
pub const NUMBERS: usize = 32;

/// Of each number the bits without the sign.
const MAGNITUDE: i16 = 0x7fff;

/// A type of 16 bits whose numbers are sums of bf16.
pub trait Split: Vectorized<Accumulator = f32> {
    /// How many.
    const PARTS: usize;
    /// Bits of the least and greatest magnitude of a row's largest number with which tiles do what f32 would: sums of
    /// products then stay finite, and what tiles count as 0 is too little to matter.
    const ORDINARY: [u16; 2];

    /// The parts; the second is 0 if there is one. They are exact for numbers in range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and BF16.
    unsafe fn split(numbers: __m512i) -> [__m512i; 2];
}

impl Split for bf16 {
    const PARTS: usize = 1;
    // 2 to the -60 and 60.
    const ORDINARY: [u16; 2] = [(127 - 60) << 7, (127 + 60) << 7];

    #[inline(always)]
    unsafe fn split(numbers: __m512i) -> [__m512i; 2] {
        // SAFETY: as the caller promises.
        [numbers, unsafe { _mm512_setzero_si512() }]
    }
}

impl Split for f16 {
    const PARTS: usize = 2;
    // Every number that is not 0 or infinite.
    const ORDINARY: [u16; 2] = [1, 0x7bff];

    #[inline(always)]
    unsafe fn split(numbers: __m512i) -> [__m512i; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let first = _mm512_cvtph_ps(_mm512_castsi512_si256(numbers));
            let second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(numbers));
            in_two(first, second)
        }
    }
}

/// 32 numbers as sums of two bf16 each: the upper half of the number, and the nearest to the rest.
///
/// # Safety
/// The processor must have AVX-512 F and BF16.
#[inline(always)]
pub unsafe fn in_two(first: __m512, second: __m512) -> [__m512i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let (upper_first, upper_second) = (upper(first), upper(second));
        [
            rounded(upper_first, upper_second),
            rounded(
                _mm512_sub_ps(first, upper_first),
                _mm512_sub_ps(second, upper_second),
            ),
        ]
    }
}

/// 32 numbers rounded to the nearest bf16.
///
/// # Safety
/// The processor must have AVX-512 F and BF16.
#[inline(always)]
pub unsafe fn rounded(first: __m512, second: __m512) -> __m512i {
    // SAFETY: as the caller promises; both types are 64 bytes.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) }
}

#[inline(always)]
unsafe fn upper(numbers: __m512) -> __m512 {
    // SAFETY: as the caller of this module promises.
    unsafe {
        let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(numbers), mask))
    }
}

/// `count` numbers `stride` apart, at most [`NUMBERS`]; the rest is 0.
///
/// # Safety
/// They are readable, and the processor has AVX-512 F and BW.
#[inline(always)]
pub unsafe fn load<E: Split>(from: *const E, stride: isize, count: usize) -> __m512i {
    // SAFETY: as the caller promises; `E` is 16 bits of integer inside.
    unsafe {
        if stride == 1 {
            let first = (((1u64 << count) - 1) & 0xffff_ffff) as __mmask32;
            return _mm512_maskz_loadu_epi16(first, from.cast());
        }
        let mut gathered = [E::default(); NUMBERS];
        for (index, number) in gathered.iter_mut().enumerate().take(count) {
            *number = *from.offset(index as isize * stride);
        }
        _mm512_loadu_si512(gathered.as_ptr().cast())
    }
}

/// Whether all rows that were looked at are ordinary, by the largest and the least magnitude among them.
pub struct Survey {
    greatest: __m512i,
    /// Less one, so that 0 is out of the way.
    least: __m512i,
}

impl Survey {
    /// # Safety
    /// The processor must have AVX-512 F and BW, here and below.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            Survey {
                greatest: _mm512_setzero_si512(),
                least: _mm512_set1_epi16(-1),
            }
        }
    }

    /// Looks at some numbers.
    #[inline(always)]
    pub unsafe fn add<E: Split>(&mut self, numbers: __m512i) {
        // SAFETY: as the caller promises.
        unsafe {
            let magnitude = _mm512_and_si512(numbers, _mm512_set1_epi16(MAGNITUDE));
            self.greatest = _mm512_max_epu16(self.greatest, magnitude);
            if E::ORDINARY[0] > 1 {
                let less = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
                self.least = _mm512_min_epu16(self.least, less);
            }
        }
    }

    /// Whether every row is ordinary for sure. If not, it takes a look at each row to say which is not.
    #[inline(always)]
    pub unsafe fn is_ordinary<E: Split>(&self) -> bool {
        let [least, greatest] = E::ORDINARY.map(|bits| bits as i16);
        // SAFETY: as the caller promises.
        unsafe {
            let above = _mm512_cmpgt_epu16_mask(self.greatest, _mm512_set1_epi16(greatest));
            let below = _mm512_cmplt_epu16_mask(self.least, _mm512_set1_epi16(least - 1));
            above | below == 0
        }
    }
}

/// Whether a row of this many channels is ordinary: see [`Split::ORDINARY`].
///
/// # Safety
/// The row is readable.
pub unsafe fn is_ordinary<E: Split>(row: *const E, stride: isize, channels: usize) -> bool {
    let greatest = (0..channels as isize)
        // SAFETY: the channel lies in the row; `E` is 16 bits of integer inside.
        .map(|channel| unsafe { *row.offset(channel * stride).cast::<u16>() } & MAGNITUDE as u16)
        .max();
    let [least, most] = E::ORDINARY;
    greatest.is_none_or(|greatest| greatest == 0 || (least..=most).contains(&greatest))
}
