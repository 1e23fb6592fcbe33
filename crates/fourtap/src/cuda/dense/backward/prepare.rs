//! Backward calls: checked and planned once, then launched.

use std::ffi::c_void;
use std::thread::LocalKey;

use super::arguments::{Addresses, BackwardArguments};
use super::plan::{BackwardPlan, Given};
use crate::cuda::dense::prepare::{OptionsKey, of_attn_mask};
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors, optional};
use crate::cuda::step::{LoadedStep, load_together, parameter};
use crate::dense::{Backward, ForwardResults, Gradients, Inputs, Options};
use crate::dtype::DType;
use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::View;

type BackwardCache = PlanCache<11, OptionsKey, BackwardLaunch>;

thread_local! {
    static BACKWARD: BackwardCache = const { PlanCache::new() };
}

fn of_backward<'v>(
    inputs: &'v Inputs<'v>,
    results: &'v ForwardResults<'v>,
    grad_out: &'v View<'v>,
    gradients: &'v Gradients<'v>,
) -> Tensors<'v, 11> {
    Tensors {
        views: [
            Some((&inputs.query).into()),
            Some((&inputs.key).into()),
            Some((&inputs.value).into()),
            of_attn_mask(inputs),
            Some((&results.out).into()),
            Some((&results.lse).into()),
            Some(grad_out.into()),
            optional(&gradients.query),
            optional(&gradients.key),
            optional(&gradients.value),
            optional(&gradients.bias),
        ],
        first_written: 7,
    }
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
    let tensors = of_backward(&inputs, &results, &grad_out, &gradients);
    let key = OptionsKey::new(&options);
    let make = || {
        let call = Backward::new(inputs, options, results, grad_out, gradients.alias())?;
        call.problem.expect_in(cuda.place())?;
        Ok((BackwardLaunch::new(cuda, &call)?, key))
    };
    let plan = PlanCache::plan(cache, cuda, &tensors, |known| *known == key, make)?;
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
    steps: Vec<(LoadedStep, Given)>,
    arguments: BackwardArguments,
    dtype: DType,
}

impl BackwardLaunch {
    /// Prepares a checked call on this device. All kernels are loaded before any is queued, so that a failure leaves nothing
    /// half done.
    fn new(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let plan = BackwardPlan::on(cuda, call)?;
        load_together(cuda, plan.steps());
        let steps = plan.launches();
        let steps = steps.map(|(step, given)| Ok((step.load(cuda)?, given)));
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
        for (step, given) in &self.steps {
            // SAFETY: each kernel is given its arguments, laid out as it declares them; the rest as the caller promises.
            let launch = |parameters: &mut [*mut c_void]| unsafe { step.launch(cuda, parameters) };
            match given {
                Given::Statistics => launch(&mut [parameter(&arguments.of_statistics())]),
                Given::Mask { rows } => launch(&mut [parameter(&arguments.of_mask(*rows))]),
                Given::Hopper(hopper) => {
                    let maps = arguments.maps(cuda.context(), hopper, self.dtype);
                    let maps = maps.map_err(CudaError::from)?;
                    let of_hopper = arguments.of_hopper(hopper);
                    launch(&mut [parameter(&of_hopper), parameter(&maps)])
                }
                Given::Finish(hopper) => launch(&mut [parameter(&arguments.of_finish(hopper))]),
                Given::Gradient { own_keys, sums } => {
                    launch(&mut [parameter(&arguments.of_gradient(*own_keys, *sums))])
                }
                Given::Bias => launch(&mut [parameter(&arguments.of_bias())]),
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan_cache::forged::{Forged, expect_each_decides};
    use crate::dense::AttnMask;
    use crate::dtype::DType::F16;

    #[test]
    fn every_tensor_is_in_the_key() {
        let known = [
            Forged::new("query", 0, F16, &[2, 4, 5, 8]),
            Forged::new("key", 1, F16, &[2, 2, 7, 8]),
            Forged::new("value", 2, F16, &[2, 2, 7, 8]),
            Forged::new("attn_mask", 3, F16, &[2, 1, 5, 7]),
            Forged::new("out", 4, F16, &[2, 4, 5, 8]),
            Forged::new("lse", 5, F16, &[2, 4, 5]),
            Forged::new("grad_out", 6, F16, &[2, 4, 5, 8]),
            Forged::new("grad_query", 7, F16, &[2, 4, 5, 8]),
            Forged::new("grad_key", 8, F16, &[2, 2, 7, 8]),
            Forged::new("grad_value", 9, F16, &[2, 2, 7, 8]),
            Forged::new("grad_bias", 10, F16, &[2, 1, 5, 7]),
        ];
        let optional = [
            "attn_mask",
            "grad_query",
            "grad_key",
            "grad_value",
            "grad_bias",
        ];
        for booleans in [false, true] {
            let mask = |tensor: &Forged| match booleans {
                true => AttnMask::Seen(tensor.booleans()),
                false => AttnMask::Bias(tensor.view()),
            };
            let call = |tensors: &[Forged; 11]| {
                let inputs = Inputs {
                    query: tensors[0].view(),
                    key: tensors[1].view(),
                    value: tensors[2].view(),
                    attn_mask: tensors[3].if_there(mask),
                };
                let results = ForwardResults {
                    out: tensors[4].view(),
                    lse: tensors[5].view(),
                };
                let gradients = Gradients {
                    query: tensors[7].if_there(Forged::output),
                    key: tensors[8].if_there(Forged::output),
                    value: tensors[9].if_there(Forged::output),
                    bias: tensors[10].if_there(Forged::output),
                };
                (inputs, results, tensors[6].view(), gradients)
            };
            expect_each_decides(known, &optional, 7, |known, found| {
                let (known, found) = (call(known), call(found));
                of_backward(&found.0, &found.1, &found.2, &found.3)
                    .are_like_those(&of_backward(&known.0, &known.1, &known.2, &known.3))
            });
        }
    }
}
