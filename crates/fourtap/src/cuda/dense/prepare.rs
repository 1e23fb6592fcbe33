//! Calls of this operator: checked and planned once, then launched.

use std::thread::LocalKey;

use super::arguments::{Addresses, Arguments};
use super::backward;
use super::maps::{LoadedTensors, Maps};
use super::plan::Plan;
use super::specialised::KernelVariant;
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors};
use crate::cuda::step::{LoadedStep, load_together, parameter};
use crate::dense::{
    AttnMaskKey, Forward, ForwardResults, Gradients, Implementation, Inputs, Options, Outputs,
};
use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

type ForwardCache = PlanCache<5, (Options, Option<AttnMaskKey>), Option<ForwardLaunch>>;

thread_local! {
    static FORWARD: ForwardCache = const { PlanCache::new() };
}

impl Implementation for Cuda {
    fn prepare_forward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        outputs: Outputs<'a>,
    ) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<ForwardCache> = &FORWARD;
        let addresses = Addresses::new(&inputs, &outputs);
        let views = [
            Some(&inputs.query),
            Some(&inputs.key),
            Some(&inputs.value),
            Some(outputs.out.as_view()),
            outputs.lse.as_ref().map(ViewMut::as_view),
        ];
        let tensors = Tensors {
            views,
            first_written: 3,
        };
        let mask = inputs.attn_mask.as_ref().map(AttnMaskKey::new);
        let is_same = |(known, known_mask): &(Options, _)| {
            *known == options && *known_mask == mask && !mask_is_written(&inputs, &outputs)
        };
        let make = || {
            let call = Forward::new(inputs, options, outputs.alias())?;
            call.problem.expect_in(self.place())?;
            Ok((ForwardLaunch::new(self, &call)?, (options, mask)))
        };
        let plan = PlanCache::plan(cache, self, &tensors, is_same, make)?;
        let bytes = match &*plan {
            Some(launch) => launch.plan.workspace_bytes(),
            None => 0,
        };
        let cuda = *self;
        Ok(Prepared::new(bytes, move |lent| {
            let Some(launch) = &*plan else {
                return Ok(());
            };
            let scratch = cuda.scratch(bytes, lent)?;
            // SAFETY: this call, or one that differs only in its addresses, was checked, and the creator of its views
            // has promised that their memory is valid; scratch memory is as large as the plan says.
            unsafe { launch.launch(&cuda, addresses, scratch.address()) }
        }))
    }

    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        results: ForwardResults<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        backward::prepare(self, inputs, options, results, grad_out, gradients)
    }
}

/// Whether an output may lie where the mask does. The cache compares all other tensors; such a call is refused when it is
/// checked.
fn mask_is_written(inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> bool {
    let lse = outputs.lse.as_ref().map(ViewMut::as_view);
    mask_meets(inputs, [Some(outputs.out.as_view()), lse])
}

/// The same for these views.
pub(super) fn mask_meets<const N: usize>(
    inputs: &Inputs<'_>,
    written: [Option<&View<'_>>; N],
) -> bool {
    let Some(read) = inputs.attn_mask.as_ref().map(|mask| mask.occupied()) else {
        return false;
    };
    (written.into_iter().flatten()).any(|view| match (&read, view.check("")) {
        (Ok(read), Ok(written)) => read.start < written.end && written.start < read.end,
        _ => true,
    })
}

impl Cuda {
    /// The plan that [`crate::dense::forward`] would follow for these tensors.
    pub fn explain_dense(
        &self,
        inputs: Inputs<'_>,
        options: Options,
        outputs: &Outputs<'_>,
    ) -> Result<Plan> {
        Plan::on(self, &Forward::new(inputs, options, outputs.alias())?)
    }
}

/// A prepared forward launch: everything but the addresses.
struct ForwardLaunch {
    plan: Plan,
    steps: Vec<LoadedStep>,
    arguments: Arguments,
    /// What TMA loads, if the kernel does.
    tensors: Option<LoadedTensors>,
}

impl ForwardLaunch {
    /// Prepares a checked call on this device; `None` where there is nothing to compute. All kernels are loaded before
    /// any is queued, so that a failure leaves nothing half done.
    fn new(cuda: &Cuda, call: &Forward<'_>) -> Result<Option<Self>> {
        let sizes = call.problem.sizes();
        if sizes.batch * sizes.query_heads * sizes.queries == 0 {
            return Ok(None);
        }
        let plan = Plan::on(cuda, call)?;
        load_together(cuda, plan.steps());
        let steps = plan.steps().map(|step| step.load(cuda));
        Ok(Some(ForwardLaunch {
            steps: steps.collect::<std::result::Result<_, CudaError>>()?,
            arguments: Arguments::new(call, &plan),
            tensors: match plan.forward.kernel {
                KernelVariant::Wgmma(kernel) => Some(LoadedTensors::new(
                    kernel.dtype,
                    sizes,
                    &plan.folded,
                    &kernel.tile,
                )),
                _ => None,
            },
            plan,
        }))
    }

    /// Queues the kernels without allocating or waiting.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors and the scratch
    /// memory at `scratch` stay allocated until the stream has done the work.
    unsafe fn launch(&self, cuda: &Cuda, addresses: Addresses, scratch: u64) -> Result<()> {
        let arguments = self.arguments.at(addresses, &self.plan, scratch);
        let mut steps = self.steps.iter();
        if self.plan.mask.is_some()
            && let Some(step) = steps.next()
        {
            let of_mask = arguments.of_mask(addresses, &self.plan);
            // SAFETY: as below.
            unsafe { step.launch(cuda, &mut [parameter(&of_mask)]) }?;
        }
        if self.plan.conversion.is_some()
            && let Some(step) = steps.next()
        {
            let of_conversion = arguments.of_conversion(&self.plan);
            // SAFETY: as below.
            unsafe { step.launch(cuda, &mut [parameter(&of_conversion)]) }?;
        }
        if let Some(tensors) = &self.tensors
            && let Some(step) = steps.next()
        {
            let maps = Maps::new(cuda.context(), tensors, &arguments).map_err(CudaError::from)?;
            // SAFETY: as below; the maps hold the addresses of tensors that stay allocated as long.
            unsafe { step.launch(cuda, &mut [parameter(&arguments), parameter(&maps)]) }?;
        }
        for step in steps {
            // SAFETY: each kernel takes these arguments, laid out as it declares them; the rest as the caller promises.
            unsafe { step.launch(cuda, &mut [parameter(&arguments)]) }?;
        }
        Ok(())
    }
}
