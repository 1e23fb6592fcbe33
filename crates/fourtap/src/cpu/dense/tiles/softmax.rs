//! The softmax of a block's logits, which come a step at a time, a row for each query.

use std::arch::x86_64::*;
use std::ops::Range;

use super::layout::{KEYS, Kept, Layout, Line, ROWS};
use super::split::{NUMBERS, in_two, rounded};
use crate::cpu::amx::SIDE;

/// Of the powers from 1 on of a polynomial that is 2 to the power of its argument, from 0 to 1: relative error 2e-9, so
/// that a weight just below 1, for which the argument is rounded to 1, is off by no more than its rounding.
const COEFFICIENTS: [f32; 6] = [
    0.693_147_06,
    0.240_229_31,
    0.055_485_286,
    0.009_675_442,
    0.001_246_793_1,
    0.000_216_126_27,
];

/// The least power whose result is a normal number.
const LEAST: f32 = -126.0;

/// 2 to these powers, which are 0 or hardly more; 0 where that would not be a normal number. NaN stays NaN.
#[inline(always)]
unsafe fn exp2(powers: __m512) -> __m512 {
    // SAFETY: the caller is compiled for the instructions.
    unsafe {
        let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(powers, _mm512_set1_ps(LEAST));
        // What is left after rounding down, as scaling does it.
        const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
        let rest = _mm512_reduce_ps::<DOWN>(powers);
        let mut polynomial = _mm512_set1_ps(COEFFICIENTS[5]);
        for coefficient in [4, 3, 2, 1, 0] {
            let coefficient = _mm512_set1_ps(COEFFICIENTS[coefficient]);
            polynomial = _mm512_fmadd_ps(polynomial, rest, coefficient);
        }
        polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(1.0));
        _mm512_maskz_scalef_ps(normal, polynomial, powers)
    }
}

/// Highest logits below which multiplying and subtracting are rounded once, together. Above, the highest logit less itself
/// rounded could then be a large number.
const FUSED_BELOW: f32 = 1e6;

/// The logits of a row and where its weights go.
struct Row {
    logits: *const f32,
    weights: *mut Line,
    /// An even number of them, from an even number on.
    vectors: Range<usize>,
    factor: f32,
    /// What is subtracted of each logit times the factor.
    base: f32,
}

impl Row {
    /// Stores the weights, each as a sum of `PARTS` bf16; their sum.
    ///
    /// # Safety
    /// Logits and room for weights are there, and the caller is compiled for the instructions.
    #[inline(always)]
    unsafe fn weigh<const PARTS: usize, const FUSED: bool>(self) -> f32 {
        // SAFETY: as the caller promises.
        unsafe {
            let (factor, base) = (_mm512_set1_ps(self.factor), _mm512_set1_ps(self.base));
            let mut totals = [_mm512_setzero_ps(); 2];
            for vector in self.vectors.step_by(2) {
                let mut pair = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    let logits = _mm512_load_ps(self.logits.add((vector + i) * SIDE));
                    pair[i] = exp2(match FUSED {
                        true => _mm512_fmsub_ps(logits, factor, base),
                        false => _mm512_sub_ps(_mm512_mul_ps(logits, factor), base),
                    });
                    totals[i] = _mm512_add_ps(totals[i], pair[i]);
                }
                let to = self.weights.add(vector / 2);
                if PARTS == 1 {
                    _mm512_store_si512(to.cast(), rounded(pair[0], pair[1]));
                } else {
                    let [upper, lower] = in_two(pair[0], pair[1]);
                    _mm512_store_si512(to.cast(), upper);
                    _mm512_store_si512(to.add(Layout::WEIGHT_PART).cast(), lower);
                }
            }
            _mm512_reduce_add_ps(_mm512_add_ps(totals[0], totals[1]))
        }
    }
}

/// Turns the logits of the keys in `range`, which begins and ends at multiples of 32, into weights: after multiplying them
/// with `factor`, which is positive, as powers of two. Makes totals and sums relative to the highest logit.
///
/// # Safety
/// The first `rows` rows have logits, `range` lies in the step, and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
pub unsafe fn weigh(
    kept: &mut Kept<'_>,
    rows: usize,
    range: Range<usize>,
    factor: f32,
    logits: &[Line],
    weights: &mut [Line],
    layout: &Layout,
) {
    assert!(rows <= ROWS && range.end <= KEYS);
    let mut highest = [Line([f32::NEG_INFINITY; SIDE]); ROWS / SIDE];
    let mut bases = [Line([0.0; SIDE]); ROWS / SIDE];
    let mut decays = bases;
    let mut totals = bases;
    let (first, end) = (range.start / SIDE, range.end / SIDE);
    // SAFETY: rows, keys and lanes are those of the block and the step.
    unsafe {
        for row in 0..rows {
            let logits = logits.as_ptr().add(row * KEYS / SIDE).cast::<f32>();
            let mut top = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
            for vector in (first..end).step_by(2) {
                // The second operand is the result where they do not compare, so NaN is no highest logit.
                let at = logits.add(vector * SIDE);
                top[0] = _mm512_max_ps(_mm512_load_ps(at), top[0]);
                top[1] = _mm512_max_ps(_mm512_load_ps(at.add(SIDE)), top[1]);
            }
            let top = _mm512_reduce_max_ps(_mm512_max_ps(top[0], top[1]));
            highest[row / SIDE].0[row % SIDE] = top;
        }
        let factors = _mm512_set1_ps(factor);
        for lane in 0..ROWS / SIDE {
            let before = _mm512_load_ps(kept.highest[lane].0.as_ptr());
            let top = _mm512_mul_ps(_mm512_load_ps(highest[lane].0.as_ptr()), factors);
            let top = _mm512_max_ps(top, before);
            _mm512_store_ps(kept.highest[lane].0.as_mut_ptr(), top);
            // Where no key was seen yet, any finite number makes weights of 0, and infinity would make NaN.
            let base = _mm512_max_ps(top, _mm512_set1_ps(f32::MIN));
            _mm512_store_ps(bases[lane].0.as_mut_ptr(), base);
            let decay = exp2(_mm512_sub_ps(before, base));
            _mm512_store_ps(decays[lane].0.as_mut_ptr(), decay);
        }
        for row in 0..rows {
            let work = Row {
                logits: logits.as_ptr().add(row * KEYS / SIDE).cast(),
                weights: weights.as_mut_ptr().add(row * KEYS / NUMBERS),
                vectors: first..end,
                factor,
                base: bases[row / SIDE].0[row % SIDE],
            };
            let is_fused = work.base.abs() < FUSED_BELOW;
            totals[row / SIDE].0[row % SIDE] = match (layout.weight_parts, is_fused) {
                (1, true) => work.weigh::<1, true>(),
                (1, false) => work.weigh::<1, false>(),
                (_, true) => work.weigh::<2, true>(),
                (_, false) => work.weigh::<2, false>(),
            };
        }
        for lane in 0..ROWS / SIDE {
            let before = _mm512_load_ps(kept.totals[lane].0.as_ptr());
            let decay = _mm512_load_ps(decays[lane].0.as_ptr());
            let total = _mm512_load_ps(totals[lane].0.as_ptr());
            let all = _mm512_fmadd_ps(before, decay, total);
            _mm512_store_ps(kept.totals[lane].0.as_mut_ptr(), all);
        }
        for row in 0..rows {
            let decay = decays[row / SIDE].0[row % SIDE];
            if decay == 1.0 {
                continue;
            }
            let decay = _mm512_set1_ps(decay);
            for Line(sums) in &mut kept.sums[row * layout.value_tiles..][..layout.value_tiles] {
                let sum = _mm512_mul_ps(_mm512_load_ps(sums.as_ptr()), decay);
                _mm512_store_ps(sums.as_mut_ptr(), sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 to each of these powers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    unsafe fn powers_of_two(powers: [f32; SIDE]) -> [f32; SIDE] {
        let mut results = [0.0; SIDE];
        // SAFETY: as many are readable and writable as a vector has.
        unsafe {
            let powers = _mm512_loadu_ps(powers.as_ptr());
            _mm512_storeu_ps(results.as_mut_ptr(), exp2(powers));
        }
        results
    }

    #[test]
    fn powers_of_two_are_within_a_unit_in_the_last_place() {
        if !crate::cpu::Simd::Amx.is_available() {
            return;
        }
        let special = [
            0.0,
            f32::NAN,
            f32::NEG_INFINITY,
            -126.5,
            -126.0,
            -3e-9,
            -1.0,
        ];
        let mut powers = [-3.0; SIDE];
        powers[..special.len()].copy_from_slice(&special);
        // SAFETY: the processor has the instructions.
        let results = unsafe { powers_of_two(powers) };
        assert_eq!([results[0], results[2], results[3]], [1.0, 0.0, 0.0]);
        assert_eq!(results[5], 1.0);
        assert_eq!(
            [results[4], results[6], results[7]],
            [f32::MIN_POSITIVE, 0.5, 0.125]
        );
        assert!(results[1].is_nan());
        for first in 0..10_000 {
            let powers =
                std::array::from_fn(|i| -126.0 * ((16 * first + i) as f32 / 160_000.0).powi(3));
            // SAFETY: as above.
            let results = unsafe { powers_of_two(powers) };
            for (power, result) in powers.into_iter().zip(results) {
                let (exact, result) = (f64::from(power).exp2(), f64::from(result));
                let error = (result - exact).abs() / exact;
                assert!(error <= f64::from(f32::EPSILON), "{power}: {error:e}");
            }
        }
    }
}
