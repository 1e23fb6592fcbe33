//! What kernels of both passes share.

use std::fmt;

use crate::cuda::msda::arguments::LEVEL_CAPACITIES;
use crate::cuda::recipe::{Defines, name};
use crate::dtype::DType;

/// Sources that several kernels share.
pub(super) mod sources {
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
    pub(super) fn defines(&self) -> Defines {
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

pub(super) fn smallest_capacity() -> (&'static str, String) {
    ("LEVEL_CAPACITY", LEVEL_CAPACITIES[0].to_string())
}
