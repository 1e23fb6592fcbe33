//! Tensors in the memory of a CUDA device.

use fourtap::cuda::driver::{Buffer, Context, Stream};
use fourtap::{BoolView, Layout, Place, Shape, View, ViewMut};

use crate::array::{Array, bytes_of, bytes_of_mask};
use crate::error::{Error, Result};

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
            return Err(not_row_major(layout.strides(), view.place()));
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

/// A row-major mask in device memory of its own, as long-lived as a [`DeviceArray`].
#[derive(Debug)]
pub struct DeviceMask {
    buffer: Buffer,
    shape: Shape,
}

impl DeviceMask {
    /// A copy of a row-major mask in host memory; returns when it is there for every stream.
    pub fn copied(context: &'static Context, view: &BoolView<'_>) -> Result<Self> {
        let Some(data) = bytes_of_mask(view) else {
            return Err(not_row_major(view.strides(), view.place()));
        };
        Ok(DeviceMask {
            buffer: match data {
                // Never empty, so that there is an address.
                [] => Buffer::zeroed(context, 1)?,
                some => Buffer::from_slice(context, some)?,
            },
            shape: view.shape(),
        })
    }

    /// To read.
    pub fn view(&self) -> BoolView<'_> {
        let ordinal = self.buffer.context().device().ordinal();
        let strides = row_major(self.shape);
        // SAFETY: the buffer holds every element of the row-major mask; see the type for how long.
        unsafe { BoolView::on_cuda(ordinal, self.buffer.as_ptr(), self.shape.sizes(), &strides) }
    }
}

/// The strides, in elements, of a row-major tensor.
fn row_major(shape: Shape) -> Vec<isize> {
    let axes = 0..shape.rank();
    axes.map(|axis| shape.sizes()[axis + 1..].iter().product::<usize>() as isize)
        .collect()
}

fn not_row_major(strides: &[isize], place: Place) -> Error {
    let refused = fourtap::Error::Unsupported {
        backend: "cuda",
        expected: "a row-major tensor in host memory to copy from".to_string(),
        found: format!("strides {strides:?} in {place}"),
    };
    refused.into()
}

fn bytes(layout: &Layout) -> usize {
    layout.shape().elements().unwrap_or(0) * layout.dtype().size()
}
