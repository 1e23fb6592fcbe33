//! The CPU backend: one kernel source an operation, compiled for each instruction set, on all threads of the
//! current rayon pool. To use fewer, call from inside [`rayon::ThreadPool::install`].

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod dense;
mod msda;
mod raw;
mod simd;
mod tuning;
mod workspace;

pub use simd::Simd;
pub use tuning::{Chosen, Tuning};

use crate::error::Result;

/// The processor, which of its vector instructions to use, and how to cut the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    simd: Simd,
    /// Whether the caller named the instructions; then no table does.
    simd_is_asked: bool,
    tuning: Tuning,
    /// Whether the caller said how to cut the work.
    tuning_is_asked: bool,
    other_bits: bool,
}

impl Cpu {
    /// With the best instructions there are, and the work cut as [`crate::tuning`]'s tables say, or else as usual.
    pub fn new() -> Self {
        Cpu {
            simd: Simd::best(),
            simd_is_asked: false,
            tuning: Tuning::default(),
            tuning_is_asked: false,
            other_bits: false,
        }
    }

    /// With these instructions; an error if the processor lacks them.
    pub fn with_simd(simd: Simd) -> Result<Self> {
        Ok(Cpu {
            simd: simd.require()?,
            simd_is_asked: true,
            ..Cpu::new()
        })
    }

    /// With the work cut so, whatever tables say.
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        Cpu {
            tuning,
            tuning_is_asked: true,
            ..self
        }
    }

    /// With tables' choices also where results may then differ, in their last bits, from those of a machine with other
    /// tables. Without, no table changes a bit.
    pub fn allow_other_bits(self, other_bits: bool) -> Self {
        Cpu { other_bits, ..self }
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
