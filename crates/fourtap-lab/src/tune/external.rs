//! Kernels of other crates.

use std::fmt;

use fourtap::cuda::jit::{Architecture, Program};
use fourtap::tuning::{Choice, Space};

use super::{Bench, Subject};
use crate::cuda::Hardware;
use crate::error::Result;
use crate::operators::Operator;

/// A forward kernel for CUDA devices that is not the library's and yet can be tuned.
///
/// Nothing is kept of what is found about it, since no call of the library uses it; and it does not declare which
/// choices change the last bits of its results.
pub trait ExternalKernel: fmt::Debug + Sync {
    /// What can be chosen about it.
    fn space(&'static self) -> &'static Space;

    /// What it computes.
    fn operator(&self) -> &'static dyn Operator;

    /// Whether it can compute a problem so; in words if not.
    fn accepts(
        &self,
        subject: &Subject,
        hardware: &Hardware,
        choice: &Choice,
    ) -> std::result::Result<(), String>;

    /// What must be compiled for that.
    fn programs(
        &self,
        subject: &Subject,
        hardware: &Hardware,
        choice: &Choice,
        architecture: Architecture,
    ) -> Result<std::result::Result<Vec<Program>, String>>;

    /// Ready to compute random numbers of this seed, on the device of this number.
    fn bench(&self, subject: &Subject, ordinal: usize, seed: u64) -> Result<Box<dyn Bench>>;
}
