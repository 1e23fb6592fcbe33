//! Whose memory a tensor lies in.

use std::fmt;

/// Whose memory a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The host's.
    Host,
    /// A CUDA device's.
    Cuda {
        /// Its number.
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
