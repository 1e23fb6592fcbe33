//! A tensor on a CUDA device, with the memory around it.

use super::compare::Failure;
use super::tensor::Tensor;
use crate::cuda::Cuda;
use crate::cuda::driver::{Buffer, DriverError};
use crate::layout::Layout;
use crate::tensor::{View, ViewMut};

pub(super) type DriverResult<T> = std::result::Result<T, DriverError>;
pub(super) type CheckResult<T> = std::result::Result<T, Failure>;

/// Bytes of guard memory before and after each tensor on the device, which no call may write. A multiple of the
/// alignment of allocations.
const MARGIN: usize = 256;

/// The contents of the guard memory.
const UNTOUCHED: u8 = 0xa5;

/// A tensor's memory on a device, the address of its first element aligned as it is on the host.
pub(super) struct DeviceTensor {
    buffer: Buffer,
    ordinal: usize,
    first: u64,
    layout: Layout,
}

impl DeviceTensor {
    pub fn new(cuda: &Cuda, tensor: &Tensor) -> DriverResult<Self> {
        let margin = [UNTOUCHED; MARGIN].as_slice();
        let memory = [margin, tensor.memory(), margin].concat();
        let buffer = Buffer::from_slice(cuda.context(), &memory)?;
        Ok(DeviceTensor {
            ordinal: cuda.ordinal(),
            first: buffer.as_ptr() + (MARGIN + tensor.first_byte()) as u64,
            layout: tensor.layout(),
            buffer,
        })
    }

    pub fn view(&self) -> View<'_> {
        // SAFETY: the buffer is a copy of memory in which the layout stays, and outlives the view.
        unsafe { View::on_cuda(self.ordinal, self.first, self.layout) }
    }

    /// Some of its elements, the first of them `first` elements after its own.
    pub fn part(&self, first: usize, layout: Layout) -> View<'_> {
        let first = self.first + (first * layout.dtype().size()) as u64;
        // SAFETY: as in `view`; whoever cuts it into parts stays inside.
        unsafe { View::on_cuda(self.ordinal, first, layout) }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: as in `view`, and borrowed mutably.
        unsafe { ViewMut::on_cuda(self.ordinal, self.first, self.layout) }
    }

    /// Copies the memory back into the tensor it was made of, once the stream's work is done.
    pub fn read(&self, cuda: &Cuda, name: &'static str, tensor: &mut Tensor) -> CheckResult<()> {
        let memory = self.wait_and_copy(cuda).map_err(crate::Error::from)?;
        let (before, rest) = memory.split_at(MARGIN);
        let (own, after) = rest.split_at(rest.len() - MARGIN);
        let margins = before.iter().chain(after);
        let bytes = margins.filter(|&&byte| byte != UNTOUCHED).count();
        if bytes > 0 {
            return Err(Failure::WroteOutside {
                tensor: name,
                elements: bytes.div_ceil(tensor.dtype().size()),
            });
        }
        tensor.memory_mut().copy_from_slice(own);
        Ok(())
    }

    fn wait_and_copy(&self, cuda: &Cuda) -> DriverResult<Vec<u8>> {
        let _entered = cuda.context().enter()?;
        cuda.stream().synchronize()?;
        self.buffer.to_vec()
    }
}
