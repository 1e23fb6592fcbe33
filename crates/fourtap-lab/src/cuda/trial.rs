//! A trial whose tensors are on a CUDA device.

use std::collections::BTreeMap;

use fourtap::cuda::driver::{Buffer, Context, Stream};
use fourtap::cuda::msda::{Plan, Specialised, shipped};
use fourtap::cuda::{Cuda, jit};
use fourtap::msda::{Inputs, LevelTable};
use fourtap::{Backend, View};

use serde_json::Value;

use super::array::DeviceArray;
use crate::array::Array;
use crate::error::Result;
use crate::record::KernelUsed;
use crate::trial::{Trial, call, gradients};

/// One pass over one problem, ready to be repeated on a device.
#[derive(Debug)]
pub struct DeviceTrial<'a> {
    host: &'a Trial<'a>,
    inputs: DeviceInputs,
    outputs: Vec<DeviceArray>,
    /// What backward works in, where it was given.
    workspace: Option<Buffer>,
}

/// What a pass reads.
#[derive(Debug)]
struct DeviceInputs {
    value: DeviceArray,
    sampling_locations: DeviceArray,
    attention_weights: DeviceArray,
    /// Only backward has one.
    grad_out: Option<DeviceArray>,
}

impl<'a> DeviceTrial<'a> {
    /// Copies the inputs of `host` to the context's device.
    pub fn new(host: &'a Trial<'a>, context: &'static Context) -> Result<Self> {
        let inputs = host.inputs();
        let copied = |view| DeviceArray::copied(context, view);
        Ok(DeviceTrial {
            host,
            inputs: DeviceInputs {
                value: copied(&inputs.value)?,
                sampling_locations: copied(&inputs.sampling_locations)?,
                attention_weights: copied(&inputs.attention_weights)?,
                grad_out: host.grad_out().map(copied).transpose()?,
            },
            outputs: host
                .outputs()?
                .iter()
                .map(|output| DeviceArray::like(context, output))
                .collect::<Result<_>>()?,
            workspace: None,
        })
    }

    /// Gives backward memory to work in. Without, each computation takes it from the stream's pool.
    pub fn give_workspace(&mut self, context: &'static Context, bytes: usize) -> Result<()> {
        // First, or there would be two at a time.
        self.workspace = None;
        self.workspace = Some(Buffer::alloc(context, bytes)?);
        Ok(())
    }

    /// Queues one computation.
    pub fn queue(&mut self, cuda: &Cuda) -> Result<()> {
        let cuda = match &self.workspace {
            // SAFETY: allocated on this device, and freed only once the device is idle. All work of a trial is on one
            // stream, so no two computations use it at a time.
            Some(memory) => unsafe { cuda.with_workspace(memory.as_ptr(), memory.len()) },
            None => *cuda,
        };
        let (inputs, grad_out) = self.inputs.views(self.host.inputs().levels);
        let outputs = self.outputs.iter_mut().map(DeviceArray::view_mut);
        call(&Backend::Cuda(cuda), inputs, grad_out, outputs)
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
        let (inputs, grad_out) = self.inputs.views(self.host.inputs().levels);
        let Some(grad_out) = grad_out else {
            let plan = cuda.explain_forward(inputs, self.outputs[0].view_mut())?;
            let (major, minor) = cuda.device().compute_capability();
            let program = plan.kernel.program(jit::architecture_for(major, minor)?);
            return Ok(KernelUsed {
                words: plan.to_string(),
                fingerprint: Some(program.fingerprint().to_string()),
                parameters: parameters(&plan),
                asked: None,
                mode: None,
                reproducible: true,
                workspace_bytes: None,
            });
        };
        let gradients = gradients(self.outputs.iter_mut().map(DeviceArray::view_mut));
        let plan = cuda.explain_backward(inputs, grad_out, &gradients)?;
        let kernels = plan.kernels();
        let shipped = shipped();
        let used = shipped.iter().filter(|one| kernels.contains(&one.entry));
        let hashes: Vec<&str> = used.map(|one| one.source_hash.as_str()).collect();
        Ok(KernelUsed {
            words: plan.to_string(),
            fingerprint: Some(hashes.join(" ")),
            parameters: BTreeMap::new(),
            asked: None,
            mode: None,
            reproducible: plan.is_deterministic(),
            workspace_bytes: Some(plan.workspace_bytes()),
        })
    }
}

/// What forward's kernel was specialised and is launched with.
fn parameters(plan: &Plan) -> BTreeMap<String, Value> {
    let mut named: BTreeMap<&str, Value> = BTreeMap::new();
    named.insert("blocks", plan.blocks.into());
    named.insert("threads", plan.threads.into());
    if let Specialised::Gather(gather) = plan.kernel {
        named.insert("samples_per_lane", gather.per_lane.into());
        named.insert("split", gather.split.into());
        named.insert("heads_together", gather.heads_together.into());
        named.insert("phases", gather.phases.into());
        named.insert("dense", gather.dense.into());
        named.insert("alternate", gather.alternate.into());
    }
    let named = named.into_iter();
    named
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

impl DeviceInputs {
    /// To read.
    fn views<'a>(&'a self, levels: LevelTable<'a>) -> (Inputs<'a>, Option<View<'a>>) {
        let inputs = Inputs {
            value: self.value.view(),
            levels,
            sampling_locations: self.sampling_locations.view(),
            attention_weights: self.attention_weights.view(),
        };
        (inputs, self.grad_out.as_ref().map(DeviceArray::view))
    }
}
