//! What is tuned: a kernel on a problem.

use std::path::PathBuf;
use std::sync::Arc;

use fourtap::DType;
use fourtap::tuning::Space;

use super::Engine;
use crate::cli::{Direction, Distribution};
use crate::computation::TensorSet;
use crate::error::Result;
use crate::operators::{DataSpec, Workload};

/// A kernel on a problem.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What can be chosen about the kernel.
    pub space: &'static Space,
    /// What computes it.
    pub engine: Engine,
    /// Which pass it computes.
    pub direction: Direction,
    /// The problem, as it was named.
    pub named: PathBuf,
    /// Its sizes.
    pub workload: Arc<dyn Workload>,
    /// Where sampling points lie, if there are any.
    pub distribution: Distribution,
    /// Element type; locations and weights are in f32.
    pub dtype: DType,
}

impl Subject {
    /// Whether it computes gradients.
    pub fn is_backward(&self) -> bool {
        self.direction == Direction::Backward
    }

    /// What the numbers are like, as recorded.
    pub fn distribution(&self) -> &'static str {
        self.workload.numbers(self.distribution).name
    }

    /// Random numbers, the same on every machine.
    pub fn tensors(&self, seed: u64) -> Result<Box<dyn TensorSet>> {
        self.workload.filled(&DataSpec {
            dtype: self.dtype,
            coordinates: DType::F32,
            distribution: self.distribution,
            backward: self.is_backward(),
            seed,
        })
    }

    /// As in "cpu-msda-forward on detr-encoder/local/f32".
    pub fn name(&self) -> String {
        format!(
            "{} on {}/{}/{}",
            self.space.kernel,
            self.workload.name(),
            self.distribution(),
            self.dtype
        )
    }
}
