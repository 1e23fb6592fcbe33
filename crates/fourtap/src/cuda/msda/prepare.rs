//! Calls of this operator: checked and planned once, then launched.

use std::thread::LocalKey;

use super::arguments::{Addresses, GradientAddresses};
use super::backward::{BackwardLaunch, BackwardPlan};
use super::forward::{ForwardLaunch, Plan};
use crate::bool_view::BoolView;
use crate::cuda::handle::Cuda;
use crate::cuda::plan_cache::{PlanCache, Tensors};
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

impl Implementation for Cuda {
    fn prepare_forward<'a>(&self, inputs: Inputs<'a>, out: ViewMut<'a>) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<ForwardCache> = &FORWARD;
        let addresses = Addresses::new(&inputs, Some(&out));
        let views = [
            Some(&inputs.value),
            Some(&inputs.sampling_locations),
            Some(&inputs.attention_weights),
            Some(out.as_view()),
        ];
        let tensors = Tensors {
            views,
            first_written: 3,
        };
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
        let views = [
            Some(&inputs.value),
            Some(&inputs.sampling_locations),
            Some(&inputs.attention_weights),
            Some(&grad_out),
            gradients.value.as_ref().map(ViewMut::as_view),
            gradients.sampling_locations.as_ref().map(ViewMut::as_view),
            gradients.attention_weights.as_ref().map(ViewMut::as_view),
        ];
        let tensors = Tensors {
            views,
            first_written: 4,
        };
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
    use crate::msda::CudaLevels;

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
