//! Calls of this operator: checked and planned once, then launched.

use std::ffi::c_void;
use std::thread::LocalKey;

use super::arguments::{Addresses, Arguments};
use super::backward;
use super::maps::{LoadedTensors, Maps};
use super::plan::{Given, Plan};
use super::specialised::KernelVariant;
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensor, Tensors, optional};
use crate::cuda::step::{LoadedStep, load_together, parameter};
use crate::dense::{
    AttnMask, Forward, ForwardResults, Gradients, Implementation, Inputs, Mask, Options, Outputs,
};
use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::View;

type ForwardCache = PlanCache<6, OptionsKey, Option<ForwardLaunch>>;

thread_local! {
    static FORWARD: ForwardCache = const { PlanCache::new() };
}

/// The options of a call as part of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OptionsKey {
    /// The bits of the number: of zeros, those of gradients depend on the sign.
    scale: Option<u64>,
    mask: Mask,
}

impl OptionsKey {
    pub fn new(options: &Options) -> Self {
        let Options { scale, mask } = *options;
        OptionsKey {
            scale: scale.map(f64::to_bits),
            mask,
        }
    }
}

/// The tensor that hides keys or is added to logits.
pub(super) fn of_attn_mask<'v>(inputs: &'v Inputs<'v>) -> Option<Tensor<'v>> {
    inputs.attn_mask.as_ref().map(|mask| match mask {
        AttnMask::Seen(view) => view.into(),
        AttnMask::Bias(view) => view.into(),
    })
}

fn of_forward<'v>(inputs: &'v Inputs<'v>, outputs: &'v Outputs<'v>) -> Tensors<'v, 6> {
    Tensors {
        views: [
            Some((&inputs.query).into()),
            Some((&inputs.key).into()),
            Some((&inputs.value).into()),
            of_attn_mask(inputs),
            Some((&outputs.out).into()),
            optional(&outputs.lse),
        ],
        first_written: 4,
    }
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
        let tensors = of_forward(&inputs, &outputs);
        let key = OptionsKey::new(&options);
        let make = || {
            let call = Forward::new(inputs, options, outputs.alias())?;
            call.problem.expect_in(self.place())?;
            Ok((ForwardLaunch::new(self, &call)?, key))
        };
        let plan = PlanCache::plan(cache, self, &tensors, |known| *known == key, make)?;
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
    steps: Vec<(LoadedStep, Given)>,
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
        let steps = plan.launches();
        let steps = steps.map(|(step, given)| Ok((step.load(cuda)?, given)));
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
        for (step, given) in &self.steps {
            // SAFETY: each kernel takes these arguments, laid out as it declares them; the rest as the caller promises. What
            // TMA loads are tensors that stay allocated as long.
            let launch = |parameters: &mut [*mut c_void]| unsafe { step.launch(cuda, parameters) };
            match (given, &self.tensors) {
                (Given::Mask, _) => {
                    launch(&mut [parameter(&arguments.of_mask(addresses, &self.plan))])
                }
                (Given::Conversion, _) => {
                    launch(&mut [parameter(&arguments.of_conversion(&self.plan))])
                }
                (Given::Problem, Some(tensors)) => {
                    let maps = Maps::new(cuda.context(), tensors, &arguments);
                    let maps = maps.map_err(CudaError::from)?;
                    launch(&mut [parameter(&arguments), parameter(&maps)])
                }
                (Given::Problem, None) | (Given::Results, _) => {
                    launch(&mut [parameter(&arguments)])
                }
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan_cache::forged::{Forged, expect_each_decides};
    use crate::dtype::DType::F16;

    fn call(tensors: &[Forged; 6], booleans: bool) -> (Inputs<'static>, Outputs<'static>) {
        let mask = |tensor: &Forged| match booleans {
            true => AttnMask::Seen(tensor.booleans()),
            false => AttnMask::Bias(tensor.view()),
        };
        let inputs = Inputs {
            query: tensors[0].view(),
            key: tensors[1].view(),
            value: tensors[2].view(),
            attn_mask: tensors[3].if_there(mask),
        };
        let outputs = Outputs {
            out: tensors[4].output(),
            lse: tensors[5].if_there(Forged::output),
        };
        (inputs, outputs)
    }

    #[test]
    fn every_tensor_of_forward_is_in_its_key() {
        let known = [
            Forged::new("query", 0, F16, &[2, 4, 5, 8]),
            Forged::new("key", 1, F16, &[2, 2, 7, 8]),
            Forged::new("value", 2, F16, &[2, 2, 7, 8]),
            Forged::new("attn_mask", 3, F16, &[2, 1, 5, 7]),
            Forged::new("out", 4, F16, &[2, 4, 5, 8]),
            Forged::new("lse", 5, F16, &[2, 4, 5]),
        ];
        for booleans in [false, true] {
            expect_each_decides(known, &["attn_mask", "lse"], 4, |known, found| {
                let (known, found) = (call(known, booleans), call(found, booleans));
                of_forward(&found.0, &found.1).are_like_those(&of_forward(&known.0, &known.1))
            });
        }
        let (booleans, bias) = (call(&known, true), call(&known, false));
        let bias = of_forward(&bias.0, &bias.1);
        assert!(!bias.are_like_those(&of_forward(&booleans.0, &booleans.1)));
    }

    #[test]
    fn options_are_in_the_key() {
        let scaled = |scale| {
            OptionsKey::new(&Options {
                scale,
                ..Options::default()
            })
        };
        assert!(scaled(Some(0.5)) == scaled(Some(0.5)));
        for (one, other) in [
            (None, Some(0.0)),
            (Some(0.5), Some(0.25)),
            // Gradients are zeros of the other sign.
            (Some(0.0), Some(-0.0)),
        ] {
            assert!(scaled(one) != scaled(other), "{one:?} {other:?}");
        }
        let causal = Options {
            mask: Mask::causal(crate::dense::Alignment::TopLeft),
            ..Options::default()
        };
        assert!(OptionsKey::new(&causal) != scaled(None));
    }
}
