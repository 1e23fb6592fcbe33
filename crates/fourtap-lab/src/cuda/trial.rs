//! A computation whose tensors are on a CUDA device.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Context, Stream};
use fourtap::{Backend, ViewMut};

use super::array::{DeviceArray, DeviceMask};
use crate::array::Array;
use crate::computation::{Computation, InputViews};
use crate::error::Result;
use crate::record::KernelUsed;

/// One pass over one problem, ready to be repeated on a device.
#[derive(Debug)]
pub struct DeviceTrial<'a> {
    host: &'a dyn Computation,
    inputs: Vec<DeviceArray>,
    mask: Option<DeviceMask>,
    outputs: Vec<DeviceArray>,
    /// What it works in, where it was given.
    workspace: Option<Buffer>,
}

impl<'a> DeviceTrial<'a> {
    /// Copies the inputs of `host` to the context's device.
    pub fn new(host: &'a dyn Computation, context: &'static Context) -> Result<Self> {
        let tensors = host.tensors();
        Ok(DeviceTrial {
            host,
            inputs: tensors
                .iter()
                .map(|(_, view)| DeviceArray::copied(context, view))
                .collect::<Result<_>>()?,
            mask: match host.mask() {
                Some(mask) => Some(DeviceMask::copied(context, &mask)?),
                None => None,
            },
            outputs: host
                .outputs()?
                .iter()
                .map(|output| DeviceArray::like(context, output))
                .collect::<Result<_>>()?,
            workspace: None,
        })
    }

    /// Gives it memory to work in. Without, each computation takes it from the stream's pool.
    pub fn give_workspace(&mut self, context: &'static Context, bytes: usize) -> Result<()> {
        // First, or there would be two at a time.
        self.workspace = None;
        self.workspace = Some(Buffer::alloc(context, bytes)?);
        Ok(())
    }

    /// Queues one computation.
    pub fn queue(&mut self, cuda: &Cuda) -> Result<()> {
        let lent = self.workspace.as_ref().map(|it| (it.as_ptr(), it.len()));
        let (host, inputs, outputs) = self.views();
        let call = host.prepare(&Backend::Cuda(*cuda), &inputs, outputs)?;
        match lent {
            // SAFETY: allocated on this device, and freed only once the device is idle. All work of a trial is on one
            // stream, so no two computations use it at a time.
            Some((address, bytes)) => Ok(unsafe { call.launch_in(address, bytes) }?),
            None => Ok(call.launch()?),
        }
    }

    /// Makes every output NaN, and fills the workspace with the same bits, in the order of the stream's work.
    pub fn poison(&mut self, stream: Stream<'_>) -> Result<()> {
        if let Some(workspace) = &mut self.workspace {
            workspace.fill(u8::MAX, stream)?;
        }
        self.outputs
            .iter_mut()
            .try_for_each(|output| output.poison(stream))
    }

    /// Copies the outputs back. Work on non-blocking streams must be waited for first.
    pub fn download(&self) -> Result<Vec<Array>> {
        let mut outputs = self.host.outputs()?;
        for (output, host) in self.outputs.iter().zip(&mut outputs) {
            output.copy_to(host)?;
        }
        Ok(outputs)
    }

    /// Which kernels serve it.
    pub fn explain(&mut self, cuda: &Cuda) -> Result<KernelUsed> {
        let (host, inputs, outputs) = self.views();
        host.kernel(cuda, &inputs, outputs)
    }

    fn views(&mut self) -> (&'a dyn Computation, InputViews<'_>, Vec<ViewMut<'_>>) {
        (
            self.host,
            InputViews {
                tensors: self.inputs.iter().map(DeviceArray::view).collect(),
                mask: self.mask.as_ref().map(DeviceMask::view),
            },
            self.outputs.iter_mut().map(DeviceArray::view_mut).collect(),
        )
    }
}
