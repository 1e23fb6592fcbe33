//! Forward from projections: the kernels of forward, told otherwise where to sample.

use super::arguments::ProjectionArguments;
use super::mask::MaskLaunch;
use super::prepare::ProjectedAddresses;
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::{Addresses, SizedArguments};
use crate::cuda::msda::forward::{ForwardSteps, Plan};
use crate::cuda::msda::operands::{Operand, Operands};
use crate::cuda::msda::specialised::KernelVariant;
use crate::cuda::recipe::SpecialisedKernel;
use crate::cuda::step::parameter;
use crate::error::Result;
use crate::msda::projections::ProjectedForward;

/// A prepared forward launch: everything but the addresses.
pub(super) struct ForwardLaunch {
    workspace_bytes: usize,
    kernels: Vec<&'static str>,
    /// Makes the copy of `value` that is read in its place.
    mask: Option<MaskLaunch>,
    /// Those of forward in launch order; none where there is nothing to compute.
    steps: ForwardSteps,
    arguments: SizedArguments,
    projection: ProjectionArguments,
}

impl ForwardLaunch {
    /// Prepares a checked call on this device.
    pub fn new(cuda: &Cuda, call: &ProjectedForward<'_>) -> Result<Self> {
        let operands = Operands::projected(&call.problem, &call.inputs);
        let out = Operand::of_output(&call.out);
        let sizes = &operands.sizes;
        let plan = match sizes.images * sizes.queries * sizes.heads {
            0 => None,
            _ => Some(Plan::of(cuda, &operands, &out)?),
        };
        let capacity = match plan.as_ref().map(|plan| plan.step.kernel) {
            Some(KernelVariant::Channel(channel)) => Some(channel.level_capacity),
            _ => None,
        };
        let mask = match &call.inputs.value_mask {
            Some(mask) if plan.is_some() && sizes.pixels > 0 && !call.inputs.mask_is_applied => {
                let value = Operand::of(&call.inputs.value);
                Some(MaskLaunch::new(cuda, Some(&value), &operands.value, mask)?)
            }
            _ => None,
        };
        let masks = mask.iter().map(MaskLaunch::kernel);
        let steps = plan.iter().flat_map(Plan::steps);
        let kernels = masks.chain(steps.map(|step| step.kernel.entry()));
        Ok(ForwardLaunch {
            kernels: kernels.collect(),
            workspace_bytes: mask.as_ref().map_or(0, |_| operands.value.bytes()),
            mask,
            steps: ForwardSteps::load(cuda, plan.as_ref())?,
            arguments: SizedArguments::new(&operands, Some(&out), capacity),
            projection: ProjectionArguments::new(&call.problem),
        })
    }

    /// The names of its kernels, in launch order.
    pub fn kernels(&self) -> &[&'static str] {
        &self.kernels
    }

    /// Bytes of scratch memory.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Queues the kernels without allocating or waiting.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors and the scratch
    /// memory at `workspace` stay allocated until the stream has done the work.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        addresses: ProjectedAddresses,
        workspace: u64,
    ) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let mut of_inputs = addresses.inputs;
        if let Some(mask) = &self.mask {
            // SAFETY: the scratch memory is as large as the copy; the rest as the caller promises.
            unsafe { mask.launch(cuda, of_inputs.value, workspace, addresses.mask) }?;
            of_inputs = Addresses {
                value: workspace,
                ..of_inputs
            };
        }
        let arguments = self.arguments.at(of_inputs);
        let mut projection = self.projection;
        projection.references = addresses.references;
        // SAFETY: kernels of projections declare the projection last; the rest as the caller promises.
        unsafe {
            self.steps
                .launch(cuda, &arguments, Some(parameter(&projection)))
        }
    }
}
