//! The CPU backend: one kernel source per operation, compiled for each instruction set, on all threads of the
//! current rayon pool. To use fewer, call from inside [`rayon::ThreadPool::install`], or use [`Cpu::with_threads`],
//! which a process that forks needs.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod cancel;
mod dense;
mod msda;
mod raw;
mod simd;
mod threads;
mod tuning;
mod workspace;

pub use simd::Simd;
pub use threads::ParallelFor;
pub use tuning::{Tuning, TuningDecision};

use self::cancel::Cancel;
use self::threads::Threads;
use crate::error::Result;
use crate::tensor::ViewMut;

/// The processor, which of its vector instructions to use, and how to split the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    simd: Simd,
    /// Whether the caller chose the instructions; then tuning tables do not.
    simd_is_explicit: bool,
    tuning: Tuning,
    /// Whether the caller chose how to split the work.
    tuning_is_explicit: bool,
    allow_rounding_changes: bool,
    cancel: Cancel,
    threads: Threads,
}

impl Cpu {
    /// With the widest instructions available, and the work split as the tables of [`crate::tuning`] say, or by default.
    pub fn new() -> Self {
        Cpu {
            simd: Simd::best(),
            simd_is_explicit: false,
            tuning: Tuning::default(),
            tuning_is_explicit: false,
            allow_rounding_changes: false,
            cancel: Cancel::default(),
            threads: Threads::Current,
        }
    }

    /// With these instructions; an error if the processor lacks them.
    pub fn with_simd(simd: Simd) -> Result<Self> {
        Ok(Cpu {
            simd: simd.require()?,
            simd_is_explicit: true,
            ..Cpu::new()
        })
    }

    /// With the work split as given, whatever the tables say.
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        Cpu {
            tuning,
            tuning_is_explicit: true,
            ..self
        }
    }

    /// Whether tuning tables may choose parameters that change the rounding of results in their last bits. By default
    /// they may not: results are bitwise equal with any table.
    pub fn allow_rounding_changes(self, allow_rounding_changes: bool) -> Self {
        Cpu {
            allow_rounding_changes,
            ..self
        }
    }

    /// The instruction set in use.
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

/// Whether no element is to be written. Such calls return before they are planned: their other sizes may be beyond any memory.
fn writes_nothing<'v, 'a: 'v>(outputs: impl IntoIterator<Item = &'v ViewMut<'a>>) -> bool {
    outputs
        .into_iter()
        .all(|view| view.shape().elements() == Some(0))
}
