//! The error tolerance.
//!
//! Fixed tolerances hide errors. The error of a result may be twice (backward: three times) that of the naive f32
//! implementation, plus one unit in the last place of the output type at the largest output. Where terms
//! cancel, the naive error can be small by luck, so one unit of the accumulator's type at the largest sum of
//! magnitudes is allowed in addition.

use crate::dtype::{DType, bf16, f16};
use crate::oracle::Sum;

/// Which pass a result comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// At most twice the naive error.
    Forward,
    /// At most three times the naive error.
    Backward,
}

/// The error of a result relative to the oracle, and the tolerance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Index, in row-major order, of the element with the largest error.
    pub worst: usize,
    /// Its value.
    pub found: f64,
    /// The oracle's value.
    pub expected: f64,
    /// The largest error.
    pub max_error: f64,
    /// The largest error allowed.
    pub max_allowed: f64,
    /// Relative error in the 2-norm.
    pub relative_error: f64,
    /// The largest relative error allowed.
    pub relative_allowed: f64,
}

impl Judgement {
    /// Whether the result is within the tolerance. NaN never is.
    pub fn passed(&self) -> bool {
        self.max_error <= self.max_allowed && self.relative_error <= self.relative_allowed
    }
}

/// Compares every element of a result with the oracle.
///
/// # Panics
/// If the three differ in length.
pub fn judge(
    pass: Pass,
    dtype: DType,
    found: &[f64],
    oracle: &[Sum<f64>],
    naive: &[Sum<f32>],
) -> Judgement {
    assert_eq!(
        (found.len(), naive.len()),
        (oracle.len(), oracle.len()),
        "results of one problem"
    );
    // For f64 the oracle itself is f64 and has the same rounding error: only the sums of magnitudes set the tolerance.
    let cancellation = if dtype == DType::F64 {
        16.0 * DType::F64.epsilon()
    } else {
        DType::F32.epsilon()
    };
    let (mut naive_error, mut largest, mut mass) = (0f64, 0f64, 0f64);
    let (mut square_error, mut square_naive, mut square) = (0f64, 0f64, 0f64);
    let mut judgement = Judgement {
        worst: 0,
        found: 0.0,
        expected: 0.0,
        max_error: 0.0,
        max_allowed: 0.0,
        relative_error: 0.0,
        relative_allowed: 0.0,
    };
    for (index, ((&found, oracle), naive)) in found.iter().zip(oracle).zip(naive).enumerate() {
        let error = (found - oracle.total).abs();
        let naive = if dtype == DType::F64 {
            0.0
        } else {
            (round(dtype, naive.total) - oracle.total).abs()
        };
        // The first NaN is kept.
        if (error > judgement.max_error || error.is_nan()) && !judgement.max_error.is_nan() {
            judgement = Judgement {
                worst: index,
                found,
                expected: oracle.total,
                max_error: error,
                ..judgement
            };
        }
        naive_error = naive_error.max(naive);
        largest = largest.max(oracle.total.abs());
        mass = mass.max(oracle.mass);
        square_error += error * error;
        square_naive += naive * naive;
        square += oracle.total * oracle.total;
    }
    let factor = match pass {
        Pass::Forward => 2.0,
        Pass::Backward => 3.0,
    };
    let floor = dtype.epsilon() * largest + cancellation * mass;
    judgement.max_allowed = factor * naive_error + floor;
    if square > 0.0 {
        let limit: f64 = match dtype {
            DType::F16 => 1e-3,
            DType::BF16 => 8e-3,
            DType::F32 => 1e-5,
            DType::F64 => 1e-13,
        };
        // Where cancellation makes even the naive result exceed the limit, the limit is raised.
        let excused = factor * square_naive.sqrt() + floor * (found.len() as f64).sqrt();
        judgement.relative_error = (square_error / square).sqrt();
        judgement.relative_allowed = limit.max(excused / square.sqrt());
    }
    judgement
}

/// What the naive implementation stores.
fn round(dtype: DType, number: f32) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(number).to_f64(),
        DType::BF16 => bf16::from_f32(number).to_f64(),
        DType::F32 | DType::F64 => number as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum<R: From<f32>>(total: f32) -> Sum<R> {
        Sum {
            total: R::from(total),
            mass: R::from(total.abs()),
        }
    }

    #[test]
    fn accepts_the_naive_result_and_refuses_one_a_little_worse() {
        let (oracle, naive) = ([sum(1.0), sum(-2.0)], [sum(1.001), sum(-2.0)]);
        assert!(judge(Pass::Forward, DType::F16, &[1.001, -2.0], &oracle, &naive).passed());
        assert!(!judge(Pass::Forward, DType::F16, &[1.007, -2.0], &oracle, &naive).passed());
    }

    #[test]
    fn never_accepts_nan() {
        let judgement = judge(
            Pass::Backward,
            DType::F32,
            &[1.0, f64::NAN],
            &[sum(1.0); 2],
            &[sum(1.0); 2],
        );
        assert!(!judgement.passed());
        assert_eq!(judgement.worst, 1);
    }
}
