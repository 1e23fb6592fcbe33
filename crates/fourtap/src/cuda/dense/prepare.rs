//! Calls of this operator: checked and planned once, then launched.

use std::thread::LocalKey;

use super::arguments::{Addresses, Arguments};
use super::plan::Plan;
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors};
use crate::cuda::step::{LoadedStep, parameter};
use crate::dense::{Forward, Implementation, Inputs, Options, Outputs};
use crate::error::{Error, Result};
use crate::prepared::Prepared;
use crate::tensor::ViewMut;

type ForwardCache = PlanCache<5, Options, Option<ForwardLaunch>>;

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
        if inputs.attn_mask.is_some() {
            let call = Forward::new(inputs, options, outputs)?;
            call.problem.expect_in(self.place())?;
            return Err(no_mask());
        }
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
        let is_same = |known: &Options| *known == options;
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = Forward::new(inputs, options, outputs.alias())?;
            call.problem.expect_in(self.place())?;
            Ok((ForwardLaunch::new(self, &call)?, options))
        })?;
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
}

impl Cuda {
    /// The plan that [`crate::dense::forward`] would follow for these tensors.
    pub fn explain_dense(
        &self,
        inputs: Inputs<'_>,
        options: Options,
        outputs: &Outputs<'_>,
    ) -> Result<Plan> {
        let call = Forward::new(inputs, options, outputs.alias())?;
        match inputs.attn_mask {
            Some(_) => Err(no_mask()),
            None => Plan::on(self, &call),
        }
    }
}

fn no_mask() -> Error {
    Error::Unsupported {
        backend: "cuda",
        expected: "dense attention without attn_mask".to_string(),
        found: "one".to_string(),
    }
}

/// A prepared forward launch: everything but the addresses.
struct ForwardLaunch {
    plan: Plan,
    steps: Vec<LoadedStep>,
    arguments: Arguments,
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
        let steps = plan.steps().map(|step| step.load(cuda));
        Ok(Some(ForwardLaunch {
            steps: steps.collect::<std::result::Result<_, CudaError>>()?,
            arguments: Arguments::new(call, &plan),
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
        for step in &self.steps {
            // SAFETY: each kernel takes these arguments, laid out as it declares them; the rest as the caller promises.
            unsafe { step.launch(cuda, &mut [parameter(&arguments)]) }?;
        }
        Ok(())
    }
}
