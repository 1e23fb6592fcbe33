//! Where a call runs: the one place that knows the backends by name.

use crate::cpu::Cpu;
use crate::error::Result;
use crate::msda::{Backward, Forward};

/// Where a call runs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Where the data is.
    #[default]
    Auto,
    /// This processor, all threads of the current rayon pool.
    Cpu(Cpu),
}

impl Backend {
    fn cpu(&self) -> Cpu {
        match *self {
            Backend::Auto => Cpu::new(),
            Backend::Cpu(cpu) => cpu,
        }
    }

    pub(crate) fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        self.cpu().msda_forward(call)
    }

    pub(crate) fn msda_backward(&self, call: &Backward<'_>) -> Result<()> {
        self.cpu().msda_backward(call)
    }
}
