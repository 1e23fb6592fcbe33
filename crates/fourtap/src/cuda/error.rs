//! Errors of the CUDA backend.

use super::driver::DriverError;
use super::jit::JitError;

/// Why a call failed on a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A kernel could not be compiled or found.
    #[error(transparent)]
    Jit(#[from] JitError),
    /// The device lacks instructions that the kernels use.
    #[error(
        "cuda:{ordinal} ({name}): expected compute capability {}.{} or later, found {}.{}",
        .needed.0, .needed.1, .found.0, .found.1
    )]
    OldDevice {
        /// The device's number.
        ordinal: usize,
        /// The device's name.
        name: String,
        /// Its compute capability.
        found: (u32, u32),
        /// The lowest supported compute capability.
        needed: (u32, u32),
    },
}
