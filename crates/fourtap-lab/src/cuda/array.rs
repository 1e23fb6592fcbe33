//! Tensors in the memory of a CUDA device.

use fourtap::cuda::driver::{Buffer, Context, Stream};
use fourtap::{Layout, View, ViewMut};

use crate::array::{Array, bytes_of};
use crate::error::Result;

/// A row-major tensor in device memory of its own.
///
/// Whoever queues work on its views queues all work of a tensor on one stream, so that it is done in order. The
/// memory is freed only once the device is idle.
#[derive(Debug)]
pub struct DeviceArray {
    buffer: Buffer,
    layout: Layout,
}

impl DeviceArray {
    /// A copy of a row-major tensor in host memory; returns when it is there for every stream.
    pub fn copied(context: &'static Context, view: &View<'_>) -> Result<Self> {
        let layout = *view.layout();
        let Some(data) = bytes_of(view) else {
            return Err(fourtap::Error::Unsupported {
                backend: "cuda",
                expected: "a row-major tensor in host memory to copy from".to_string(),
                found: format!("strides {:?} in {}", layout.strides(), view.place()),
            }
            .into());
        };
        Ok(DeviceArray {
            buffer: Buffer::from_slice(context, data)?,
            layout,
        })
    }

    /// Room for a row-major tensor like `host`, with whatever was in it.
    pub fn like(context: &'static Context, host: &Array) -> Result<Self> {
        let layout = Layout::contiguous(host.dtype(), host.shape().sizes());
        Ok(DeviceArray {
            buffer: Buffer::alloc(context, bytes(&layout))?,
            layout,
        })
    }

    /// Makes every element NaN, in the order of the stream's work.
    pub fn poison(&mut self, stream: Stream<'_>) -> Result<()> {
        Ok(self.buffer.fill(u8::MAX, stream)?)
    }

    /// Copies to a tensor like this one in host memory. Work on non-blocking streams must be waited for first.
    pub fn copy_to(&self, host: &mut Array) -> Result<()> {
        Ok(self.buffer.copy_to_host(host.bytes_mut())?)
    }

    /// Where it begins on the device.
    pub fn address(&self) -> u64 {
        self.buffer.as_ptr()
    }

    /// To read.
    pub fn view(&self) -> View<'_> {
        // SAFETY: the buffer holds every element of the row-major layout; see the type for how long.
        unsafe { View::on_cuda(self.ordinal(), self.buffer.as_ptr(), self.layout) }
    }

    /// To write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: as in `view`, and borrowed mutably.
        unsafe { ViewMut::on_cuda(self.ordinal(), self.buffer.as_ptr(), self.layout) }
    }

    fn ordinal(&self) -> usize {
        self.buffer.context().device().ordinal()
    }
}

fn bytes(layout: &Layout) -> usize {
    layout.shape().elements().unwrap_or(0) * layout.dtype().size()
}
