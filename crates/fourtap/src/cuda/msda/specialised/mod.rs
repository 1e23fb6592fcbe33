//! All kernels, and what each is compiled for.

mod backward;
mod common;
mod forward;
mod projected;

use std::fmt;

use crate::cuda::recipe::{Recipe, ShippedKernel, SpecialisedKernel};

pub use backward::{Bands, SamplesChannel, SamplesGather, Search, Sort, Sum};
pub(super) use common::PROJECTED_LEVELS;
pub use common::{Projection, Sampling, Types};
pub use forward::{Channel, Gather};
pub(super) use forward::{MOST_KEPT_BYTES, MOST_KEPT_ON_MATRIX};
pub use projected::{Mask, ProjectedPass};

/// A kernel specialised for a kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelVariant {
    /// Forward; serves every problem.
    Channel(Channel),
    /// Forward; fast, for channels that fill 16-byte vectors.
    Gather(Gather),
    /// Forward: the same on tensor cores, for 16-bit channels that fill four such vectors.
    Matrix(Gather),
    /// Backward: sorts samples by the pixels they fall on.
    Sort(Sort),
    /// Backward: `grad_value` from sorted samples; serves every type and number of channels.
    ValueChannel(Sum),
    /// Backward: `grad_value` from sorted samples, on tensor cores.
    ValueMatrix(Sum),
    /// Backward: `grad_value` where samples cannot be sorted; serves every problem.
    ValueSearch(Search),
    /// Backward: `grad_value` where samples are few.
    ValueBands(Bands),
    /// Backward: gradients of locations and weights; serves every problem.
    SamplesChannel(SamplesChannel),
    /// Backward: gradients of locations and weights; fast, for channels that fill 16-byte vectors.
    SamplesGather(SamplesGather),
    /// Backward: the same on tensor cores, for 16-bit channels that fill four or eight such vectors.
    SamplesMatrix(Gather),
    /// Backward from projections: what the softmax of each row takes.
    Statistics(ProjectedPass),
    /// Backward from projections: gradients of reference points.
    References(ProjectedPass),
    /// Zeros in place of padding.
    Mask(Mask),
}

impl SpecialisedKernel for KernelVariant {
    fn recipe(&self) -> Box<dyn Recipe + '_> {
        match *self {
            KernelVariant::Channel(kernel) => Box::new(kernel),
            KernelVariant::Gather(kernel) => Box::new(kernel),
            KernelVariant::Matrix(kernel) => Box::new(forward::Matrix(kernel)),
            KernelVariant::Sort(kernel) => Box::new(kernel),
            KernelVariant::ValueChannel(kernel) => Box::new(backward::ValueChannel(kernel)),
            KernelVariant::ValueMatrix(kernel) => Box::new(backward::ValueMatrix(kernel)),
            KernelVariant::ValueSearch(kernel) => Box::new(kernel),
            KernelVariant::ValueBands(kernel) => Box::new(kernel),
            KernelVariant::SamplesChannel(kernel) => Box::new(kernel),
            KernelVariant::SamplesGather(kernel) => Box::new(kernel),
            KernelVariant::SamplesMatrix(kernel) => Box::new(backward::SamplesMatrix(kernel)),
            KernelVariant::Statistics(kernel) => Box::new(projected::Statistics(kernel)),
            KernelVariant::References(kernel) => Box::new(projected::References(kernel)),
            KernelVariant::Mask(kernel) => Box::new(kernel),
        }
    }
}

impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recipe().fmt(f)
    }
}

/// All kernels of this operator that this library ships.
pub fn shipped() -> Vec<ShippedKernel> {
    forward::SHIPPED
        .iter()
        .chain(backward::SHIPPED)
        .chain(projected::SHIPPED)
        .map(ShippedKernel::new)
        .collect()
}
