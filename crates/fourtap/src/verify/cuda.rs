//! A case on a CUDA device: copied there, memory around the tensors included, computed and copied back.

use super::case::Case;
use super::check::{Failure, compare};
use super::rule::Pass;
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cuda::Cuda;
use crate::cuda::driver::{Buffer, DriverError};
use crate::error::Result;
use crate::msda::{self, CudaLevels, Inputs, LevelTable, oracle};
use crate::tensor::{View, ViewMut};

/// Where a case's levels are when it is computed on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelsIn {
    /// Host memory.
    Host,
    /// Device memory.
    Device,
}

/// A tensor's memory on a device, the address of its first element aligned as it is on the host.
struct Copied {
    buffer: Buffer,
    first: u64,
}

impl Copied {
    fn new(cuda: &Cuda, tensor: &Tensor) -> std::result::Result<Self, DriverError> {
        // An empty tensor still gets an address.
        let buffer = if tensor.memory().is_empty() {
            Buffer::zeroed(cuda.context(), 16)?
        } else {
            Buffer::from_slice(cuda.context(), tensor.memory())?
        };
        let first = buffer.as_ptr() + tensor.first_byte() as u64;
        Ok(Copied { buffer, first })
    }

    fn view(&self, cuda: &Cuda, tensor: &Tensor) -> View<'_> {
        // SAFETY: the buffer is a copy of memory in which the layout stays, and outlives the view.
        unsafe { View::on_cuda(cuda.ordinal(), self.first, tensor.layout()) }
    }
}

/// A case's inputs in the memory of a device.
pub struct CudaCase<'a> {
    case: &'a Case,
    cuda: Cuda,
    value: Copied,
    locations: Copied,
    weights: Copied,
    shapes: Buffer,
    starts: Buffer,
}

impl<'a> CudaCase<'a> {
    /// Copies `case` to the device.
    pub fn new(case: &'a Case, cuda: Cuda) -> Result<Self> {
        let shapes: Vec<i64> = case
            .levels
            .iter()
            .flat_map(|level| [level.height as i64, level.width as i64])
            .collect();
        let starts: Vec<i64> = case.levels.iter().map(|level| level.start as i64).collect();
        // Room for an address even without levels.
        let table = |numbers: &[i64]| match numbers {
            [] => Buffer::zeroed(cuda.context(), 16),
            some => Buffer::from_slice(cuda.context(), some),
        };
        Ok(CudaCase {
            case,
            cuda,
            value: Copied::new(&cuda, &case.value)?,
            locations: Copied::new(&cuda, &case.sampling_locations)?,
            weights: Copied::new(&cuda, &case.attention_weights)?,
            shapes: table(&shapes)?,
            starts: table(&starts)?,
        })
    }

    fn inputs(&'a self, levels: LevelsIn) -> Inputs<'a> {
        let (ordinal, case) = (self.cuda.ordinal(), self.case);
        Inputs {
            value: self.value.view(&self.cuda, &case.value),
            levels: match levels {
                LevelsIn::Host => LevelTable::Host(&case.levels),
                // SAFETY: the buffers hold so many numbers and outlive the view.
                LevelsIn::Device => LevelTable::Cuda(unsafe {
                    CudaLevels::new(
                        ordinal,
                        case.levels.len(),
                        self.shapes.as_ptr(),
                        Some(self.starts.as_ptr()),
                    )
                }),
            },
            sampling_locations: self.locations.view(&self.cuda, &case.sampling_locations),
            attention_weights: self.weights.view(&self.cuda, &case.attention_weights),
        }
    }

    /// Computes forward and brings the result back, with the memory around it.
    pub fn forward(&self, levels: LevelsIn) -> Result<Tensor> {
        let inputs = self.inputs(levels);
        let sizes = *msda::Problem::new(&inputs)?.sizes();
        let dtype = self.case.value.dtype();
        let mut out = Tensor::poisoned(dtype, &sizes.out(), &self.case.outputs[0]);
        let copied = Copied::new(&self.cuda, &out)?;
        // SAFETY: the buffer is a copy of the memory in which the layout stays, and nobody else has it.
        let view = unsafe { ViewMut::on_cuda(self.cuda.ordinal(), copied.first, out.layout()) };
        msda::forward(&Backend::Cuda(self.cuda), inputs, view)?;
        let entered = self.cuda.context().enter()?;
        self.cuda.stream().synchronize()?;
        drop(entered);
        if !out.memory().is_empty() {
            copied.buffer.copy_to_host(out.memory_mut())?;
        }
        Ok(out)
    }
}

/// Forward of `case` on a device, against the oracle: every element, and the memory around them.
pub fn check_forward_on_cuda(
    case: &Case,
    cuda: &Cuda,
    levels: LevelsIn,
) -> std::result::Result<(), Failure> {
    let out = CudaCase::new(case, *cuda)?.forward(levels)?;
    let inputs = case.inputs();
    let (exact, naive) = (oracle::forward(&inputs)?, oracle::forward(&inputs)?);
    compare("out", Pass::Forward, &out, &exact, &naive)
}
