//! One case through one backend, every element of every output compared.

use super::case::Case;
use super::compare::{Failure, compare};
use super::gradients::{ExpectedGradients, GradientSelection, GradientTensors};
use super::rule::Pass;
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cpu::{Cpu, Simd, Tuning};
use crate::error::Error;
use crate::msda::{self, oracle};

/// The backends that check one instruction set: with default tuning, and with work split so finely that problems of a
/// few samples run on several threads, in several passes and several bands, as otherwise only large ones do.
pub fn backends(simd: Simd) -> Vec<Backend> {
    let small = Tuning {
        serial_work: 0,
        near_bytes: 512,
        task_bytes: 1024,
        band_bytes: 256,
        most_bands: 7,
        tasks_each: 5,
        task_blocks: 2,
        dense_tasks_each: 1,
    };
    let Ok(cpu) = Cpu::with_simd(simd) else {
        return Vec::new();
    };
    vec![Backend::Cpu(cpu), Backend::Cpu(cpu.with_tuning(small))]
}

/// The expected results of forward and backward of a case, and their error tolerance: computed once, to check many
/// backends.
#[derive(Clone, Debug)]
pub struct ExpectedResults {
    exact: Vec<oracle::Sum<f64>>,
    naive: Vec<oracle::Sum<f32>>,
    gradients: ExpectedGradients,
}

impl ExpectedResults {
    /// Computed by the oracle, and by the naive implementation, whose error sets the error tolerance.
    pub fn new(case: &Case) -> Result<Self, Error> {
        let inputs = case.inputs();
        Ok(ExpectedResults {
            exact: oracle::forward(&inputs)?,
            naive: oracle::forward(&inputs)?,
            gradients: ExpectedGradients::new(case)?,
        })
    }

    /// Forward and backward of the case on `backend`, every element compared.
    pub fn check(&self, case: &Case, backend: &Backend) -> Result<(), Failure> {
        let inputs = case.inputs();
        let sizes = *msda::Problem::new(&inputs)?.sizes();
        let mut out = Tensor::poisoned(case.value.dtype(), &sizes.out(), &case.outputs[0]);
        msda::forward(backend, inputs, out.view_mut())?;
        self.compare_forward(&out)?;

        let mut gradients = GradientTensors::poisoned(case, GradientSelection::ALL);
        msda::backward(backend, inputs, case.grad_out(), gradients.views())?;
        self.compare_backward(&gradients)
    }

    /// Checks every element of `out`, and that the memory around it is unchanged.
    pub fn compare_forward(&self, out: &Tensor) -> Result<(), Failure> {
        compare("out", Pass::Forward, out, &self.exact, &self.naive)
    }

    /// Checks every element of the computed gradients, and that the memory around them is unchanged.
    pub fn compare_backward(&self, found: &GradientTensors) -> Result<(), Failure> {
        self.gradients.compare(found)
    }
}

/// Forward and backward of `case` on `backend`, against the oracle.
pub fn check(case: &Case, backend: &Backend) -> Result<(), Failure> {
    ExpectedResults::new(case)?.check(case, backend)
}
