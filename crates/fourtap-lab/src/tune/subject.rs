//! What is tuned: a kernel on a problem.

use std::path::PathBuf;

use fourtap::DType;
use fourtap::tuning::{Class, Space};

use super::Engine;
use crate::cli::{Direction, Distribution};
use crate::error::Result;
use crate::record::{AnyProblem, DenseSizes, ProblemSizes};
use crate::workload::AnyWorkload;

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
    pub workload: AnyWorkload,
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
        match self.workload {
            AnyWorkload::Msda(_) => self.distribution.name(),
            AnyWorkload::Dense(_) => "normal",
        }
    }

    /// What the workload is called.
    pub fn workload_name(&self) -> &str {
        match &self.workload {
            AnyWorkload::Msda(workload) => &workload.name,
            AnyWorkload::Dense(workload) => &workload.name,
        }
    }

    /// As in "cpu-msda-forward on detr-encoder/local/f32".
    pub fn name(&self) -> String {
        format!(
            "{} on {}/{}/{}",
            self.space.kernel,
            self.workload_name(),
            self.distribution(),
            self.dtype
        )
    }

    /// Which problems are like it.
    pub fn class(&self) -> Result<Class> {
        Ok(match &self.workload {
            AnyWorkload::Msda(workload) => Class::of_msda(&workload.sizes(&workload.levels()?)),
            AnyWorkload::Dense(workload) => {
                Class::of_dense(&workload.sizes(), &workload.options().mask)
            }
        })
    }

    /// Its sizes, for a record.
    pub fn problem(&self) -> Result<AnyProblem> {
        Ok(match &self.workload {
            AnyWorkload::Msda(workload) => {
                let levels = workload.levels()?;
                AnyProblem::Msda(ProblemSizes::new(&workload.sizes(&levels), &levels))
            }
            AnyWorkload::Dense(workload) => {
                AnyProblem::Dense(DenseSizes::from(&workload.problem(self.dtype)?))
            }
        })
    }
}
