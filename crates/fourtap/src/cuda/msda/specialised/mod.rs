//! The kernels there are, and what each is compiled for.

mod backward;
mod forward;

use std::fmt;

use super::arguments::LEVEL_CAPACITIES;
use super::kept;
use crate::cuda::jit::{Architecture, Program};
use crate::cuda::recipe::{Defines, Recipe, Shipped, flag, hash, name, number, program};
use crate::dtype::DType;

pub use backward::{SamplesChannel, SamplesGather, Search, Sort, Sum};
pub use forward::{Channel, Gather};

/// Sources that several kernels share.
mod sources {
    pub use crate::cuda::recipe::sources::{COPY, DIVISOR, MATRIX, MEMORY, TYPES};
    pub const PROBLEM: &str = include_str!("../../../../kernels/msda/problem.cuh");
    pub const GATHER: &str = include_str!("../../../../kernels/msda/gather.cuh");
    pub const GRADIENTS: &str = include_str!("../../../../kernels/msda/gradients.cuh");
    pub const BINS: &str = include_str!("../../../../kernels/msda/bins.cuh");
    pub const SAMPLES: &str = include_str!("../../../../kernels/msda/samples.cuh");
    pub const RUNS: &str = include_str!("../../../../kernels/msda/runs.cuh");
}

/// Element types of the tensors read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Types {
    /// Of `value` and `out`.
    pub value: DType,
    /// Of `sampling_locations`.
    pub locations: DType,
    /// Of `attention_weights`.
    pub weights: DType,
}

impl Types {
    fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.value)),
            ("LOCATION", name(self.locations)),
            ("WEIGHT", name(self.weights)),
        ]
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if (self.locations, self.weights) != (DType::F32, DType::F32) {
            write!(f, "-{}-{}", self.locations, self.weights)?;
        }
        Ok(())
    }
}

/// A kernel compiled for a kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Specialised {
    /// Forward; serves every problem.
    Channel(Channel),
    /// Forward; fast, for channels that fill 16-byte vectors.
    Gather(Gather),
    /// Backward: samples in the order of the pixels they touch.
    Sort(Sort),
    /// Backward: `grad_value` from sorted samples; serves every type and number of channels.
    ValueChannel(Sum),
    /// Backward: `grad_value` from sorted samples, on tensor cores.
    ValueMatrix(Sum),
    /// Backward: `grad_value` where samples cannot be sorted; serves every problem.
    ValueSearch(Search),
    /// Backward: gradients of locations and weights; serves every problem.
    SamplesChannel(SamplesChannel),
    /// Backward: gradients of locations and weights; fast, for channels that fill 16-byte vectors.
    SamplesGather(SamplesGather),
    /// Backward: the same on tensor cores, for 16-bit channels that fill four or eight of them.
    SamplesMatrix(Gather),
}

impl Specialised {
    fn recipe(&self) -> Box<dyn Recipe + '_> {
        match *self {
            Specialised::Channel(kernel) => Box::new(kernel),
            Specialised::Gather(kernel) => Box::new(kernel),
            Specialised::Sort(kernel) => Box::new(kernel),
            Specialised::ValueChannel(kernel) => Box::new(backward::ValueChannel(kernel)),
            Specialised::ValueMatrix(kernel) => Box::new(backward::ValueMatrix(kernel)),
            Specialised::ValueSearch(kernel) => Box::new(kernel),
            Specialised::SamplesChannel(kernel) => Box::new(kernel),
            Specialised::SamplesGather(kernel) => Box::new(kernel),
            Specialised::SamplesMatrix(kernel) => Box::new(backward::SamplesMatrix(kernel)),
        }
    }

    /// Its function's name.
    pub fn entry(&self) -> &'static str {
        self.recipe().entry()
    }

    /// Whether launches ask for shared memory beyond what the source declares.
    pub(in super::super) fn has_dynamic_shared(&self) -> bool {
        match self {
            Specialised::Gather(gather) => gather.keeps,
            Specialised::Sort(_) => true,
            _ => false,
        }
    }

    /// What a multiprocessor should set aside as shared memory at most, if its cache needs the rest.
    pub(in super::super) fn shared_at_most(&self) -> Option<u32> {
        matches!(self, Specialised::Gather(gather) if gather.keeps).then_some(kept::MOST_BYTES)
    }

    /// Hash of its source, as [`shipped`] has it.
    pub fn source_hash(&self) -> String {
        hash(self.recipe().parts())
    }

    /// To compile for `architecture`.
    pub fn program(&self, architecture: Architecture) -> Program {
        program(&*self.recipe(), architecture)
    }
}

/// Short and speaking: it names cache entries too.
impl fmt::Display for Specialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recipe().fmt(f)
    }
}

fn smallest_capacity() -> (&'static str, String) {
    ("LEVEL_CAPACITY", LEVEL_CAPACITIES[0].to_string())
}

/// All kernels of this operator that this library ships.
pub fn shipped() -> Vec<Shipped> {
    forward::SHIPPED
        .iter()
        .chain(backward::SHIPPED)
        .map(Shipped::new)
        .collect()
}
