//! The CPU backend: one kernel source an operation, compiled for each instruction set, on all threads of the
//! current rayon pool. To use fewer, call from inside [`rayon::ThreadPool::install`].

mod dense;
mod msda;
mod raw;
mod simd;
mod workspace;

pub use simd::Simd;

use crate::error::Result;

/// Where work is cut. Only `near_bytes` can change a result, in its last bit: levels read in a pass of their own are
/// added first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Below this many samples times channels, or 8 times as many products of dense attention, a call stays on its
    /// thread: waking others costs more than they save.
    pub serial_work: usize,
    /// Bytes a level of one image may have and still count on staying in the near cache. A larger one is read in a
    /// pass of its own, so that it does not push the others out.
    pub near_bytes: usize,
    /// Bytes of sums one task of forward leaves between two passes over its rows: few enough to stay in the near
    /// cache, enough that a pass over them finds each coarse level there most of the time.
    pub task_bytes: usize,
    /// Bytes of sums one task of backward adds to, while `most_bands` allows.
    pub band_bytes: usize,
    /// How often a level is cut to keep within `band_bytes`: every band walks all queries, so cutting finer stops
    /// paying.
    pub most_bands: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            serial_work: 1 << 16,
            near_bytes: 2 << 20,
            task_bytes: 512 << 10,
            band_bytes: 1 << 20,
            most_bands: 4,
        }
    }
}

/// The processor, which of its vector instructions to use, and how to cut the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    simd: Simd,
    tuning: Tuning,
}

impl Cpu {
    /// With the best instructions there are.
    pub fn new() -> Self {
        Cpu {
            simd: Simd::best(),
            tuning: Tuning::default(),
        }
    }

    /// With these instructions; an error if the processor lacks them.
    pub fn with_simd(simd: Simd) -> Result<Self> {
        Ok(Cpu {
            simd: simd.require()?,
            ..Cpu::new()
        })
    }

    /// With the work cut otherwise.
    pub fn with_tuning(self, tuning: Tuning) -> Self {
        Cpu { tuning, ..self }
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
