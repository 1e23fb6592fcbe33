//! What backward on a CUDA device promises about its bits.

use fourtap::cuda::Cuda;
use serde::{Deserialize, Serialize};

/// How backward adds up. Forward has one way, whatever the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In whatever order is fast.
    Fast,
    /// In one order, so that it is bitwise reproducible.
    Deterministic,
}

impl Mode {
    /// As `--deterministic` was given or not.
    pub fn new(deterministic: bool) -> Self {
        match deterministic {
            true => Mode::Deterministic,
            false => Mode::Fast,
        }
    }

    /// As recorded.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fast => "fast",
            Mode::Deterministic => "deterministic",
        }
    }

    /// The same device in this mode.
    pub fn on(self, cuda: &Cuda) -> Cuda {
        cuda.deterministic(self == Mode::Deterministic)
    }
}
