//! The CPU backend: one kernel source an operation, compiled for each instruction set, on all threads of the
//! current rayon pool. To use fewer, call from inside [`rayon::ThreadPool::install`].

mod msda;
mod simd;

pub use simd::Simd;

use crate::error::Result;

/// The processor, and which of its vector instructions to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    simd: Simd,
}

impl Cpu {
    /// With the best instructions there are.
    pub fn new() -> Self {
        Cpu { simd: Simd::best() }
    }

    /// With these instructions; an error if the processor lacks them.
    pub fn with_simd(simd: Simd) -> Result<Self> {
        Ok(Cpu { simd: simd.require()? })
    }

    /// The instructions in use.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// Runs a kernel compiled for the instructions in use.
    fn run<K: simd::Kernel>(&self, kernel: K) {
        // SAFETY: a `Cpu` is only made with instructions the processor has.
        unsafe { self.simd.run(kernel) }
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}
