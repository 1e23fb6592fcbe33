//! Where a call runs: the one place that knows the backends by name.

use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::{Error, Result};
use crate::tensor::Place;
use crate::{dense, msda};

/// Where a call runs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Where the data is: on a CUDA device its default stream is used.
    #[default]
    Auto,
    /// This processor, all threads of the current rayon pool.
    Cpu(Cpu),
    /// A CUDA device, on one of its streams. A call returns once its work is queued there.
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

impl Backend {
    /// This backend, or the one `Auto` stands for, if it can use tensors in `place`, where `tensor` is.
    fn for_tensors_in(&self, place: Place, tensor: &'static str) -> Result<Backend> {
        let (chosen, needed) = match (*self, place) {
            (Backend::Auto, Place::Host) => (Backend::Cpu(Cpu::new()), place),
            #[cfg(feature = "cuda")]
            (Backend::Auto, Place::Cuda { ordinal }) => (Backend::Cuda(Cuda::new(ordinal)?), place),
            #[cfg(not(feature = "cuda"))]
            (Backend::Auto, Place::Cuda { .. }) => (Backend::Auto, Place::Host),
            (Backend::Cpu(_), _) => (*self, Place::Host),
            #[cfg(feature = "cuda")]
            (Backend::Cuda(cuda), _) => {
                let ordinal = cuda.ordinal();
                (*self, Place::Cuda { ordinal })
            }
        };
        if needed != place {
            return Err(Error::Place {
                tensor,
                expected: needed.to_string(),
                found: place,
            });
        }
        Ok(chosen)
    }

    pub(crate) fn msda_forward(&self, call: &msda::Forward<'_>) -> Result<()> {
        match self.for_tensors_in(call.problem.place(), "value")? {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.msda_forward(call),
            Backend::Cpu(cpu) => cpu.msda_forward(call),
            Backend::Auto => unreachable!("Auto stands for another backend"),
        }
    }

    pub(crate) fn msda_backward(&self, call: &msda::Backward<'_>) -> Result<()> {
        match self.for_tensors_in(call.problem.place(), "value")? {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.msda_backward(call),
            Backend::Cpu(cpu) => cpu.msda_backward(call),
            Backend::Auto => unreachable!("Auto stands for another backend"),
        }
    }

    pub(crate) fn dense_forward(&self, call: &dense::Forward<'_>) -> Result<()> {
        match self.for_tensors_in(call.problem.place(), "query")? {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.dense_forward(call),
            Backend::Cpu(cpu) => cpu.dense_forward(call),
            Backend::Auto => unreachable!("Auto stands for another backend"),
        }
    }
}
