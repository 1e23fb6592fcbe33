//! Comparison of a result with the oracle.

use super::rule::{Judgement, Pass, judge};
use super::tensor::Tensor;
use crate::error::Error;
use crate::oracle;

/// How a backend failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A legal call was refused.
    #[error("a legal call was refused: {0}")]
    Refused(#[from] Error),
    /// An element exceeds the error tolerance.
    #[error(
        "{tensor}: element {} is {:e} where the oracle says {:e}; off by {:e}, allowed {:e}; in the 2-norm {:e}, \
         allowed {:e}",
        .judgement.worst, .judgement.found, .judgement.expected, .judgement.max_error, .judgement.max_allowed,
        .judgement.relative_error, .judgement.relative_allowed
    )]
    Inaccurate {
        /// Name of the tensor.
        tensor: &'static str,
        /// The error and the tolerance.
        judgement: Judgement,
    },
    /// Memory around an output was overwritten.
    #[error("{tensor}: {elements} elements around it were overwritten")]
    WroteOutside {
        /// Name of the tensor.
        tensor: &'static str,
        /// How many.
        elements: usize,
    },
}

/// Compares every element of a result, and the memory around it. Where the oracle says NaN, the result must, and is not
/// judged otherwise.
pub(super) fn compare(
    tensor: &'static str,
    pass: Pass,
    found: &Tensor,
    oracle: &[oracle::Sum<f64>],
    naive: &[oracle::Sum<f32>],
) -> Result<(), Failure> {
    let elements = found.damaged_guards();
    if elements > 0 {
        return Err(Failure::WroteOutside { tensor, elements });
    }
    let (dtype, mut found) = (found.dtype(), found.to_f64());
    let (mut oracle, mut naive) = (oracle.to_vec(), naive.to_vec());
    for ((found, oracle), naive) in found.iter_mut().zip(&mut oracle).zip(&mut naive) {
        if oracle.total.is_nan() && found.is_nan() {
            (*found, *oracle, *naive) = Default::default();
        }
    }
    let judgement = judge(pass, dtype, &found, &oracle, &naive);
    if judgement.passed() {
        Ok(())
    } else {
        Err(Failure::Inaccurate { tensor, judgement })
    }
}
