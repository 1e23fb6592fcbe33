//! What can go wrong between a call and a CUDA device.

use super::driver::DriverError;
use super::jit::JitError;

/// Why a call could not be carried out on a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A kernel could not be compiled or found.
    #[error(transparent)]
    Jit(#[from] JitError),
    /// The device lacks instructions the kernels are made of.
    #[error(
        "cuda:{ordinal} ({name}): expected compute capability {}.{} or later, found {}.{}",
        .needed.0, .needed.1, .found.0, .found.1
    )]
    OldDevice {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// What it has.
        found: (u32, u32),
        /// What is needed.
        needed: (u32, u32),
    },
}
