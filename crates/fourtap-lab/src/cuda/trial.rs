//! A trial whose tensors are on a CUDA device.

use fourtap::Backend;
use fourtap::cuda::driver::{Context, Stream};
use fourtap::cuda::{Cuda, jit};
use fourtap::msda::Inputs;

use super::array::DeviceArray;
use crate::array::Array;
use crate::error::Result;
use crate::trial::{Trial, call};

/// One pass over one problem, ready to be repeated on a device.
#[derive(Debug)]
pub struct DeviceTrial<'a> {
    host: &'a Trial<'a>,
    value: DeviceArray,
    sampling_locations: DeviceArray,
    attention_weights: DeviceArray,
    /// Only backward has one.
    grad_out: Option<DeviceArray>,
    outputs: Vec<DeviceArray>,
}

/// The kernel that serves a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Its name and launch, or why it is not a faster one.
    pub kernel: String,
    /// Hash of its source and of all it was compiled with.
    pub fingerprint: String,
}

impl<'a> DeviceTrial<'a> {
    /// Copies the inputs of `host` to the context's device.
    pub fn new(host: &'a Trial<'a>, context: &'static Context) -> Result<Self> {
        let inputs = host.inputs();
        let copied = |view| DeviceArray::copied(context, view);
        Ok(DeviceTrial {
            host,
            value: copied(&inputs.value)?,
            sampling_locations: copied(&inputs.sampling_locations)?,
            attention_weights: copied(&inputs.attention_weights)?,
            grad_out: host.grad_out().map(copied).transpose()?,
            outputs: host
                .outputs()?
                .iter()
                .map(|output| DeviceArray::like(context, output))
                .collect::<Result<_>>()?,
        })
    }

    /// Queues one computation.
    pub fn queue(&mut self, cuda: &Cuda) -> Result<()> {
        let inputs = Inputs {
            value: self.value.view(),
            levels: self.host.inputs().levels,
            sampling_locations: self.sampling_locations.view(),
            attention_weights: self.attention_weights.view(),
        };
        let grad_out = self.grad_out.as_ref().map(DeviceArray::view);
        let outputs = self.outputs.iter_mut().map(DeviceArray::view_mut);
        call(&Backend::Cuda(*cuda), inputs, grad_out, outputs)
    }

    /// Makes every output NaN, in the order of the stream's work.
    pub fn poison(&mut self, stream: Stream<'_>) -> Result<()> {
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

    /// Which kernel serves it; none for a pass the library gives no account of.
    pub fn explain(&mut self, cuda: &Cuda) -> Result<Option<Explained>> {
        let (None, Some(out)) = (&self.grad_out, self.outputs.first_mut()) else {
            return Ok(None);
        };
        let inputs = Inputs {
            value: self.value.view(),
            levels: self.host.inputs().levels,
            sampling_locations: self.sampling_locations.view(),
            attention_weights: self.attention_weights.view(),
        };
        let plan = cuda.explain_forward(inputs, out.view_mut())?;
        let (major, minor) = cuda.device().compute_capability();
        let program = plan.kernel.program(jit::architecture_for(major, minor)?);
        Ok(Some(Explained {
            kernel: plan.to_string(),
            fingerprint: program.fingerprint().to_string(),
        }))
    }
}
