//! The memory a tensor is in: the host's or a device's.

use std::fmt;

/// The memory a tensor is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The host's.
    Host,
    /// A CUDA device's.
    Cuda {
        /// The device's number.
        ordinal: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host => f.write_str("host memory"),
            Place::Cuda { ordinal } => write!(f, "memory of cuda:{ordinal}"),
        }
    }
}
