//! The error of a result against the oracle: a timing of a wrong result is never printed.

use fourtap::msda::oracle::Sum;
use fourtap::verify::{Pass, judge};
use serde::{Deserialize, Serialize};

use crate::array::Array;

/// What was compared, and its error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Whether the result is right.
    pub passed: bool,
    /// In words, what is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// Rows (image, query, head), and of grad_value (image, pixel, head), compared; of dense attention (sequence, head,
    /// query).
    pub rows: usize,
    /// Each tensor of the result.
    pub tensors: Vec<TensorError>,
}

impl Verification {
    /// Of a result that is wrong, in words.
    pub fn failed(found: String) -> Self {
        Verification {
            passed: false,
            found: Some(found),
            rows: 0,
            tensors: Vec::new(),
        }
    }

    /// The worst tensor's relative error in the 2-norm.
    pub fn relative_error(&self) -> f64 {
        let errors = self.tensors.iter().map(|tensor| tensor.relative_error);
        errors.fold(0.0, f64::max)
    }
}

/// The error of a tensor against the oracle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorError {
    /// Its name.
    pub tensor: String,
    /// Elements compared.
    pub elements: usize,
    /// The largest distance.
    pub max_error: f64,
    /// The largest allowed.
    pub max_allowed: f64,
    /// Relative error in the 2-norm.
    pub relative_error: f64,
    /// The largest such ratio allowed.
    pub relative_allowed: f64,
}

/// One row of a result, with what the oracle and the naive implementation say.
pub type Row = (Vec<f64>, Vec<Sum<f64>>, Vec<Sum<f32>>);

/// The error tolerance of a result of forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The operator's.
    Operator,
    /// This distance over the reference's length, both in the 2-norm; no element farther off than eight times this
    /// share of the largest.
    Stated(f64),
}

/// Whether an element of an output was never written.
pub fn unwritten(names: &[&str], outputs: &[Array]) -> Option<Verification> {
    let mut named = names.iter().zip(outputs);
    named.find_map(|(name, output)| {
        let element = output.find_nan()?;
        Some(Verification::failed(format!(
            "{name}: element {element} is NaN, or was never written"
        )))
    })
}

/// Every tensor of a result by its rows.
pub fn judged(
    names: &[&str],
    outputs: &[Array],
    pass: Pass,
    compared: &[Vec<Row>],
    rule: Rule,
) -> Verification {
    let mut tensors = Vec::new();
    for ((name, output), rows) in names.iter().zip(outputs).zip(compared) {
        let found: Vec<f64> = rows.iter().flat_map(|row| row.0.iter().copied()).collect();
        let oracle: Vec<_> = rows.iter().flat_map(|row| row.1.iter().copied()).collect();
        let naive: Vec<_> = rows.iter().flat_map(|row| row.2.iter().copied()).collect();
        let mut judgement = judge(pass, output.dtype(), &found, &oracle, &naive);
        if let Rule::Stated(share) = rule {
            let largest = oracle.iter().map(|sum| sum.total.abs()).fold(0.0, f64::max);
            judgement.relative_allowed = share;
            judgement.max_allowed = 8.0 * share * largest;
        }
        if !judgement.passed() {
            return Verification::failed(format!(
                "{name}: {:e} where the oracle says {:e}; off by {:.3e}, allowed {:.3e}; in the 2-norm {:.3e}, \
                 allowed {:.3e}",
                judgement.found,
                judgement.expected,
                judgement.max_error,
                judgement.max_allowed,
                judgement.relative_error,
                judgement.relative_allowed
            ));
        }
        tensors.push(TensorError {
            tensor: name.to_string(),
            elements: found.len(),
            max_error: judgement.max_error,
            max_allowed: judgement.max_allowed,
            relative_error: judgement.relative_error,
            relative_allowed: judgement.relative_allowed,
        });
    }
    let rows = match pass {
        Pass::Forward => compared.first().map_or(0, Vec::len),
        // The gradients of locations and weights are of the same rows.
        Pass::Backward => compared.iter().take(2).map(Vec::len).sum(),
    };
    Verification {
        passed: true,
        found: None,
        rows,
        tensors,
    }
}
