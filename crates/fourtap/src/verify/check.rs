//! One case through one backend, every element of every output compared.

use super::case::Case;
use super::rule::{Judgement, Pass, judge};
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cpu::{Cpu, Simd, Tuning};
use crate::error::Error;
use crate::msda::{self, Gradients, oracle};

/// What a backend got wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A legal call was refused.
    #[error("a legal call was refused: {0}")]
    Refused(#[from] Error),
    /// An element is too far from the oracle.
    #[error(
        "{tensor}: element {} is {:e} where the oracle says {:e}; off by {:e}, allowed {:e}; in the 2-norm {:e}, \
         allowed {:e}",
        .judgement.worst, .judgement.found, .judgement.expected, .judgement.max_error, .judgement.max_allowed,
        .judgement.relative_error, .judgement.relative_allowed
    )]
    Inaccurate {
        /// Name of the tensor.
        tensor: &'static str,
        /// How far off.
        judgement: Judgement,
    },
    /// Memory around an output was written.
    #[error("{tensor}: {elements} elements around it were overwritten")]
    WroteOutside {
        /// Name of the tensor.
        tensor: &'static str,
        /// How many.
        elements: usize,
    },
}

/// What a path is checked as: as it comes, and with work cut so small that problems of a few samples are split over
/// threads, read in several passes and added up in several bands, as only large ones are otherwise.
pub fn backends(simd: Simd) -> Vec<Backend> {
    let small = Tuning {
        serial_work: 0,
        near_bytes: 512,
        task_bytes: 1024,
        band_bytes: 256,
        most_bands: 7,
    };
    let Ok(cpu) = Cpu::with_simd(simd) else {
        return Vec::new();
    };
    vec![Backend::Cpu(cpu), Backend::Cpu(cpu.with_tuning(small))]
}

/// Forward and backward of `case` on `backend`, against the oracle.
pub fn check(case: &Case, backend: &Backend) -> Result<(), Failure> {
    let inputs = case.inputs();
    let sizes = *msda::Problem::new(&inputs)?.sizes();
    let [
        out_storage,
        value_storage,
        locations_storage,
        weights_storage,
    ] = &case.outputs;

    let mut out = Tensor::poisoned(case.value.dtype(), &sizes.out(), out_storage);
    msda::forward(backend, inputs, out.view_mut())?;
    compare(
        "out",
        Pass::Forward,
        &out,
        &oracle::forward(&inputs)?,
        &oracle::forward(&inputs)?,
    )?;

    let (locations, weights) = (&case.sampling_locations, &case.attention_weights);
    let mut grad_value = Tensor::poisoned(case.value.dtype(), &sizes.value(), value_storage);
    let mut grad_locations = Tensor::poisoned(
        locations.dtype(),
        &sizes.sampling_locations(),
        locations_storage,
    );
    let mut grad_weights =
        Tensor::poisoned(weights.dtype(), &sizes.attention_weights(), weights_storage);
    let gradients = Gradients {
        value: Some(grad_value.view_mut()),
        sampling_locations: Some(grad_locations.view_mut()),
        attention_weights: Some(grad_weights.view_mut()),
    };
    msda::backward(backend, inputs, case.grad_out(), gradients)?;
    let reference = oracle::backward::<f64>(&inputs, &case.grad_out())?;
    let naive = oracle::backward::<f32>(&inputs, &case.grad_out())?;
    let backward = Pass::Backward;
    compare(
        "grad_value",
        backward,
        &grad_value,
        &reference.value,
        &naive.value,
    )?;
    let (oracle, naive_one) = (&reference.sampling_locations, &naive.sampling_locations);
    compare(
        "grad_locations",
        backward,
        &grad_locations,
        oracle,
        naive_one,
    )?;
    compare(
        "grad_weights",
        backward,
        &grad_weights,
        &reference.attention_weights,
        &naive.attention_weights,
    )
}

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
    let judgement = judge(pass, found.dtype(), &found.to_f64(), oracle, naive);
    if judgement.passed() {
        Ok(())
    } else {
        Err(Failure::Inaccurate { tensor, judgement })
    }
}
