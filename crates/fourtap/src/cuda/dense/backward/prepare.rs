//! Backward calls: checked and planned once, then launched.

use std::ffi::c_void;
use std::thread::LocalKey;

use super::arguments::{Addresses, BackwardArguments};
use super::plan::BackwardPlan;
use crate::cuda::dense::prepare::mask_meets;
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors};
use crate::cuda::step::{LoadedStep, load_together, parameter};
use crate::dense::{AttnMaskKey, Backward, ForwardResults, Gradients, Inputs, Options};
use crate::dtype::DType;
use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

type BackwardCache = PlanCache<10, (Options, Option<AttnMaskKey>), BackwardLaunch>;

thread_local! {
    static BACKWARD: BackwardCache = const { PlanCache::new() };
}

/// Checks and plans a call, unless one like it was.
pub(in crate::cuda::dense) fn prepare<'a>(
    cuda: &Cuda,
    inputs: Inputs<'a>,
    options: Options,
    results: ForwardResults<'a>,
    grad_out: View<'a>,
    gradients: Gradients<'a>,
) -> Result<Prepared<'a>> {
    let cache: &'static LocalKey<BackwardCache> = &BACKWARD;
    let addresses = Addresses::new(&inputs, &results, &grad_out, &gradients);
    let written = [
        gradients.query.as_ref(),
        gradients.key.as_ref(),
        gradients.value.as_ref(),
        gradients.bias.as_ref(),
    ];
    let [query, key, value, bias] = written.map(|view| view.map(ViewMut::as_view));
    let tensors = Tensors {
        views: [
            Some(&inputs.query),
            Some(&inputs.key),
            Some(&inputs.value),
            Some(&results.out),
            Some(&results.lse),
            Some(&grad_out),
            query,
            key,
            value,
            bias,
        ],
        first_written: 6,
    };
    let mask = inputs.attn_mask.as_ref().map(AttnMaskKey::new);
    let is_same = |(known, known_mask): &(Options, _)| {
        let is_written = || mask_meets(&inputs, [query, key, value, bias]);
        *known == options && *known_mask == mask && !is_written()
    };
    let make = || {
        let call = Backward::new(inputs, options, results, grad_out, gradients.alias())?;
        call.problem.expect_in(cuda.place())?;
        Ok((BackwardLaunch::new(cuda, &call)?, (options, mask)))
    };
    let plan = PlanCache::plan(cache, cuda, &tensors, is_same, make)?;
    let bytes = plan.plan.workspace_bytes();
    let cuda = *cuda;
    Ok(Prepared::new(bytes, move |lent| {
        let scratch = cuda.scratch(bytes, lent)?;
        // SAFETY: this call, or one that differs only in its addresses, was checked, and the creator of its views has
        // promised that their memory is valid; scratch memory is as large as the plan says.
        unsafe { plan.launch(&cuda, addresses, scratch.address()) }
    }))
}

impl Cuda {
    /// The plan that [`crate::dense::backward()`] would follow for these tensors.
    pub fn explain_dense_backward(
        &self,
        inputs: Inputs<'_>,
        options: Options,
        results: ForwardResults<'_>,
        grad_out: View<'_>,
        gradients: &Gradients<'_>,
    ) -> Result<BackwardPlan> {
        let gradients = gradients.alias();
        BackwardPlan::on(
            self,
            &Backward::new(inputs, options, results, grad_out, gradients)?,
        )
    }
}

/// A prepared launch: everything but the addresses.
struct BackwardLaunch {
    plan: BackwardPlan,
    steps: Vec<LoadedStep>,
    arguments: BackwardArguments,
    dtype: DType,
}

impl BackwardLaunch {
    /// Prepares a checked call on this device. All kernels are loaded before any is queued, so that a failure leaves nothing
    /// half done.
    fn new(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let plan = BackwardPlan::on(cuda, call)?;
        load_together(cuda, plan.steps());
        let steps = plan.steps().map(|step| step.load(cuda));
        Ok(BackwardLaunch {
            steps: steps.collect::<std::result::Result<_, CudaError>>()?,
            arguments: BackwardArguments::new(call, &plan),
            dtype: call.problem.dtype(),
            plan,
        })
    }

    /// Queues the kernels without allocating or waiting.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors and the scratch
    /// memory at `scratch` stay allocated until the stream has done the work.
    unsafe fn launch(&self, cuda: &Cuda, addresses: Addresses, scratch: u64) -> Result<()> {
        let plan = &self.plan;
        let arguments = self.arguments.at(addresses, plan, scratch);
        // In the order of `BackwardPlan::steps`.
        let mut steps = self.steps.iter();
        let mut launch = |parameters: &mut [*mut c_void]| match steps.next() {
            // SAFETY: each kernel is given its arguments, laid out as it declares them; the rest as the caller promises.
            Some(step) => unsafe { step.launch(cuda, parameters) },
            None => Ok(()),
        };
        if plan.statistics.is_some() {
            launch(&mut [parameter(&arguments.of_statistics())])?;
        }
        for (rows, _) in (plan.masks.iter().enumerate()).filter(|(_, mask)| mask.is_some()) {
            launch(&mut [parameter(&arguments.of_mask(rows))])?;
        }
        if let Some(hopper) = &plan.hopper {
            let (context, dtype) = (cuda.context(), self.dtype);
            let maps = (arguments.maps(context, hopper, dtype)).map_err(CudaError::from)?;
            let of_hopper = arguments.of_hopper(hopper);
            launch(&mut [parameter(&of_hopper), parameter(&maps)])?;
            if hopper.finish.is_some() {
                launch(&mut [parameter(&arguments.of_finish(hopper))])?;
            }
        }
        for gradient in &plan.gradients {
            let sums = [gradient.sum, gradient.value_sum];
            launch(&mut [parameter(&arguments.of_gradient(gradient.own_keys, sums))])?;
        }
        if let Some(bias) = &plan.bias {
            let of_bias = arguments.of_bias();
            for _ in [&bias.step, &bias.sum].into_iter().flatten() {
                launch(&mut [parameter(&of_bias)])?;
            }
        }
        Ok(())
    }
}
