//! Calls of this operator: checked and planned once, then launched.

use std::thread::LocalKey;

use super::arguments::{Addresses, GradientAddresses};
use super::backward::{BackwardLaunch, BackwardPlan};
use super::forward::{ForwardLaunch, Plan};
use crate::bool_view::BoolView;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors, optional};
use crate::error::Result;
use crate::msda::projections::{ProjectionGradients, Projections};
use crate::msda::{Backward, Forward, Gradients, Implementation, Inputs, LevelTable, Levels};
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

type ForwardCache = PlanCache<4, LevelsKey, ForwardLaunch>;
type BackwardCache = PlanCache<7, LevelsKey, BackwardLaunch>;

thread_local! {
    static FORWARD: ForwardCache = const { PlanCache::new() };
    static BACKWARD: BackwardCache = const { PlanCache::new() };
}

fn of_forward<'v>(inputs: &'v Inputs<'v>, out: &'v ViewMut<'v>) -> Tensors<'v, 4> {
    Tensors {
        views: [
            Some((&inputs.value).into()),
            Some((&inputs.sampling_locations).into()),
            Some((&inputs.attention_weights).into()),
            Some(out.into()),
        ],
        first_written: 3,
    }
}

fn of_backward<'v>(
    inputs: &'v Inputs<'v>,
    grad_out: &'v View<'v>,
    gradients: &'v Gradients<'v>,
) -> Tensors<'v, 7> {
    Tensors {
        views: [
            Some((&inputs.value).into()),
            Some((&inputs.sampling_locations).into()),
            Some((&inputs.attention_weights).into()),
            Some(grad_out.into()),
            optional(&gradients.value),
            optional(&gradients.sampling_locations),
            optional(&gradients.attention_weights),
        ],
        first_written: 4,
    }
}

impl Implementation for Cuda {
    fn prepare_forward<'a>(&self, inputs: Inputs<'a>, out: ViewMut<'a>) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<ForwardCache> = &FORWARD;
        let addresses = Addresses::new(&inputs, Some(&out));
        let tensors = of_forward(&inputs, &out);
        let is_same = |known: &LevelsKey| known.are(&inputs.levels);
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = Forward::new(inputs, out.alias())?;
            call.problem.expect_in(self.place())?;
            let launch = ForwardLaunch::new(self, &call)?;
            Ok((launch, LevelsKey::new(&inputs.levels)))
        })?;
        let cuda = *self;
        // SAFETY: this call, or one that differs only in its addresses, was checked, and the creator of its views has
        // promised that their memory is valid.
        Ok(Prepared::new(0, move |_| unsafe {
            plan.launch(&cuda, addresses)
        }))
    }

    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<BackwardCache> = &BACKWARD;
        let addresses = (
            Addresses::new(&inputs, None),
            GradientAddresses::new(&grad_out, &gradients),
        );
        let tensors = of_backward(&inputs, &grad_out, &gradients);
        let is_same = |known: &LevelsKey| known.are(&inputs.levels);
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = Backward::new(inputs, grad_out, gradients.alias())?;
            call.problem.expect_in(self.place())?;
            let launch = BackwardLaunch::of_given(self, &call)?;
            Ok((launch, LevelsKey::new(&inputs.levels)))
        })?;
        let cuda = *self;
        Ok(Prepared::new(plan.workspace_bytes(), move |lent| {
            let scratch = cuda.scratch(plan.workspace_bytes(), lent)?;
            // SAFETY: as in `prepare_forward`, and scratch memory is as large as the plan says.
            unsafe { plan.launch(&cuda, addresses, scratch.address(), None) }
        }))
    }

    fn prepare_projected_forward<'a>(
        &self,
        inputs: Projections<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>> {
        self.projected_forward(inputs, out)
    }

    fn prepare_projected_backward<'a>(
        &self,
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Prepared<'a>> {
        self.projected_backward(inputs, grad_out, gradients)
    }

    fn prepare_zero_pixels<'a>(
        &self,
        value: ViewMut<'a>,
        mask: BoolView<'a>,
    ) -> Result<Prepared<'a>> {
        self.zero_pixels(value, mask)
    }
}

impl Cuda {
    /// The plan that [`crate::msda::forward`] would follow for these tensors.
    pub fn explain_forward(&self, inputs: Inputs<'_>, out: ViewMut<'_>) -> Result<Plan> {
        Plan::on(self, &Forward::new(inputs, out)?)
    }

    /// The plan that [`crate::msda::backward`] would follow for these tensors. Scratch memory is at most twice their size,
    /// `grad_out` included, or a few KiB; but at least 16 bytes (32 in f64) for each sample of one level of one image and
    /// head.
    pub fn explain_backward(
        &self,
        inputs: Inputs<'_>,
        grad_out: View<'_>,
        gradients: &Gradients<'_>,
    ) -> Result<BackwardPlan> {
        BackwardPlan::on(self, &Backward::new(inputs, grad_out, gradients.alias())?)
    }
}

/// The levels of a checked call, as far as checks and plans depend on them.
pub(super) enum LevelsKey {
    Host(Levels),
    Cuda {
        ordinal: usize,
        count: usize,
        has_starts: bool,
    },
}

impl LevelsKey {
    pub fn new(levels: &LevelTable<'_>) -> Self {
        match levels {
            LevelTable::Host(levels) => LevelsKey::Host((*levels).clone()),
            LevelTable::Cuda(levels) => LevelsKey::Cuda {
                ordinal: levels.ordinal,
                count: levels.count,
                has_starts: levels.starts.is_some(),
            },
        }
    }

    pub fn are(&self, levels: &LevelTable<'_>) -> bool {
        match (self, levels) {
            (LevelsKey::Host(known), LevelTable::Host(levels)) => known == *levels,
            (
                LevelsKey::Cuda {
                    ordinal,
                    count,
                    has_starts,
                },
                LevelTable::Cuda(levels),
            ) => {
                *ordinal == levels.ordinal
                    && *count == levels.count
                    && *has_starts == levels.starts.is_some()
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan_cache::forged::{Forged, expect_each_decides};
    use crate::dtype::DType::F32;
    use crate::msda::CudaLevels;

    /// One image of six pixels, two heads of eight channels, five queries, one level, two points.
    fn inputs<'a>(tensors: &[Forged], levels: &'a Levels) -> Inputs<'a> {
        Inputs {
            value: tensors[0].view(),
            levels: levels.into(),
            sampling_locations: tensors[1].view(),
            attention_weights: tensors[2].view(),
        }
    }

    #[test]
    fn every_tensor_of_forward_is_in_its_key() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let known = [
            Forged::new("value", 0, F32, &[2, 6, 2, 8]),
            Forged::new("sampling_locations", 1, F32, &[2, 5, 2, 1, 2, 2]),
            Forged::new("attention_weights", 2, F32, &[2, 5, 2, 1, 2]),
            Forged::new("out", 3, F32, &[2, 5, 16]),
        ];
        expect_each_decides(known, &[], 3, |known, found| {
            let call = |tensors: &[Forged; 4]| (inputs(tensors, &levels), tensors[3].output());
            let ((known, known_out), (found, out)) = (call(known), call(found));
            of_forward(&found, &out).are_like_those(&of_forward(&known, &known_out))
        });
    }

    #[test]
    fn every_tensor_of_backward_is_in_its_key() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let known = [
            Forged::new("value", 0, F32, &[2, 6, 2, 8]),
            Forged::new("sampling_locations", 1, F32, &[2, 5, 2, 1, 2, 2]),
            Forged::new("attention_weights", 2, F32, &[2, 5, 2, 1, 2]),
            Forged::new("grad_out", 3, F32, &[2, 5, 16]),
            Forged::new("grad_value", 4, F32, &[2, 6, 2, 8]),
            Forged::new("grad_locations", 5, F32, &[2, 5, 2, 1, 2, 2]),
            Forged::new("grad_weights", 6, F32, &[2, 5, 2, 1, 2]),
        ];
        let optional = ["grad_value", "grad_locations", "grad_weights"];
        expect_each_decides(known, &optional, 4, |known, found| {
            let call = |tensors: &[Forged; 7]| {
                let gradients = Gradients {
                    value: tensors[4].if_there(Forged::output),
                    sampling_locations: tensors[5].if_there(Forged::output),
                    attention_weights: tensors[6].if_there(Forged::output),
                };
                (inputs(tensors, &levels), tensors[3].view(), gradients)
            };
            let (known, found) = (call(known), call(found));
            of_backward(&found.0, &found.1, &found.2)
                .are_like_those(&of_backward(&known.0, &known.1, &known.2))
        });
    }

    #[test]
    fn other_levels_are_another_call() {
        let [some, others] = [(2, 3), (3, 2)].map(|size| Levels::packed(&[size]).unwrap());
        // SAFETY: never read.
        let on_device = |starts| LevelTable::Cuda(unsafe { CudaLevels::new(0, 1, 0x9000, starts) });
        let known = LevelsKey::new(&(&some).into());
        assert!(known.are(&(&some).into()));
        assert!(!known.are(&(&others).into()));
        assert!(!known.are(&on_device(None)));
        let known = LevelsKey::new(&on_device(None));
        assert!(known.are(&on_device(None)));
        assert!(!known.are(&on_device(Some(0xa000))), "starts");
        assert!(!known.are(&(&some).into()));
    }
}
