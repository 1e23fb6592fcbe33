//! Calls from projections: checked and planned once, then launched.

use std::thread::LocalKey;

use super::backward::ProjectedBackwardLaunch;
use super::forward::ForwardLaunch;
use super::mask::MaskLaunch;
use crate::bool_view::BoolView;
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::{Addresses, GradientAddresses};
use crate::cuda::msda::operands::Operand;
use crate::cuda::msda::prepare::LevelsKey;
use crate::cuda::plan_cache::{PlanCache, Tensors};
use crate::error::{Error, Result};
use crate::msda::projections::{
    BoxScale, Interpolation, Points, ProjectedBackward, ProjectedForward, ProjectionGradients,
    Projections, ZeroPixels,
};
use crate::prepared::Prepared;
use crate::shape::Shape;
use crate::tensor::{View, ViewMut};

type MaskCache = PlanCache<1, (Shape, [isize; 2]), Option<MaskLaunch>>;
type ForwardCache = PlanCache<5, CallKey, ForwardLaunch>;
type BackwardCache = PlanCache<9, CallKey, ProjectedBackwardLaunch>;

thread_local! {
    static MASK: MaskCache = const { PlanCache::new() };
    static FORWARD: ForwardCache = const { PlanCache::new() };
    static BACKWARD: BackwardCache = const { PlanCache::new() };
}

/// What differs between calls that share a plan, besides the gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProjectedAddresses {
    pub inputs: Addresses,
    pub references: u64,
    pub mask: u64,
}

impl ProjectedAddresses {
    fn new(inputs: &Projections<'_>, out: Option<&ViewMut<'_>>) -> Self {
        ProjectedAddresses {
            inputs: Addresses {
                value: inputs.value.as_ptr() as u64,
                locations: inputs.sampling_offsets.as_ptr() as u64,
                weights: inputs.attention_logits.as_ptr() as u64,
                out: out.map_or(0, |out| out.as_mut_ptr() as u64),
                ..Addresses::of_levels(&inputs.levels)
            },
            references: inputs.reference_points.as_ptr() as u64,
            mask: (inputs.value_mask.as_ref()).map_or(0, |mask| mask.as_ptr() as u64),
        }
    }
}

/// Everything about a checked call that checks and plans depend on besides its tensors.
struct CallKey {
    levels: LevelsKey,
    points: PointsKey,
    interpolation: Interpolation,
    box_scale: ScaleKey,
    mask: Option<(Shape, [isize; 2])>,
    mask_is_applied: bool,
}

enum PointsKey {
    Each(usize),
    Listed(Vec<usize>),
}

enum ScaleKey {
    HalfBox,
    Each(f64),
    Listed(Vec<f64>),
}

impl CallKey {
    fn new(inputs: &Projections<'_>) -> Self {
        CallKey {
            levels: LevelsKey::new(&inputs.levels),
            points: match inputs.points {
                Points::Each(points) => PointsKey::Each(points),
                Points::Listed(points) => PointsKey::Listed(points.to_vec()),
            },
            interpolation: inputs.interpolation,
            box_scale: match inputs.box_scale {
                BoxScale::HalfBox => ScaleKey::HalfBox,
                BoxScale::Each(factor) => ScaleKey::Each(factor),
                BoxScale::Listed(factors) => ScaleKey::Listed(factors.to_vec()),
            },
            mask: inputs.value_mask.as_ref().map(of_mask),
            mask_is_applied: inputs.mask_is_applied,
        }
    }

    fn is(&self, inputs: &Projections<'_>) -> bool {
        let points = match (&self.points, inputs.points) {
            (PointsKey::Each(known), Points::Each(points)) => *known == points,
            (PointsKey::Listed(known), Points::Listed(points)) => known == points,
            _ => false,
        };
        let scale = match (&self.box_scale, inputs.box_scale) {
            (ScaleKey::HalfBox, BoxScale::HalfBox) => true,
            (ScaleKey::Each(known), BoxScale::Each(factor)) => *known == factor,
            (ScaleKey::Listed(known), BoxScale::Listed(factors)) => known == factors,
            _ => false,
        };
        points
            && scale
            && self.interpolation == inputs.interpolation
            && self.mask_is_applied == inputs.mask_is_applied
            && self.mask == inputs.value_mask.as_ref().map(of_mask)
            && self.levels.are(&inputs.levels)
    }
}

fn of_mask(mask: &BoolView<'_>) -> (Shape, [isize; 2]) {
    let strides = mask.strides();
    let stride = |axis: usize| strides.get(axis).copied().unwrap_or(0);
    (mask.shape(), [stride(0), stride(1)])
}

/// Whether a mask may be in memory that is to be written: then a call is checked anew.
fn meets(mask: &Option<BoolView<'_>>, written: &[Option<&View<'_>>]) -> bool {
    let Some(mask) = mask else { return false };
    let Ok(mask) = mask.check("value_mask") else {
        return true;
    };
    written.iter().flatten().any(|view| {
        view.check("out").map_or(true, |range| {
            mask.start < range.end && range.start < mask.end
        })
    })
}

impl Cuda {
    /// The kernels that [`crate::msda::projections::forward`] would launch for these tensors, in order.
    pub fn projected_forward_kernels(
        &self,
        inputs: Projections<'_>,
        out: ViewMut<'_>,
    ) -> Result<Vec<&'static str>> {
        let launch = ForwardLaunch::new(self, &ProjectedForward::new(inputs, out)?)?;
        Ok(launch.kernels().to_vec())
    }

    /// The kernels that [`crate::msda::projections::backward`] would launch for these tensors, in order; those that sort and
    /// sum, once for each part of the work. Scratch memory is at most that of [`Cuda::explain_backward`], 8 bytes (16 in f64)
    /// for each row, a copy of `value` if a mask is yet to be applied, and 8 bytes (16) for each sample if gradients of
    /// reference points are wanted.
    pub fn projected_backward_kernels(
        &self,
        inputs: Projections<'_>,
        grad_out: View<'_>,
        gradients: &ProjectionGradients<'_>,
    ) -> Result<Vec<&'static str>> {
        let call = ProjectedBackward::new(inputs, grad_out, gradients.alias())?;
        Ok(ProjectedBackwardLaunch::new(self, &call)?
            .kernels()
            .to_vec())
    }

    pub(in crate::cuda::msda) fn zero_pixels<'a>(
        &self,
        value: ViewMut<'a>,
        mask: BoolView<'a>,
    ) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<MaskCache> = &MASK;
        let views = [Some(value.as_view())];
        let tensors = Tensors {
            views,
            first_written: 0,
        };
        let is_same = |known: &(Shape, [isize; 2])| {
            *known == of_mask(&mask) && !meets(&Some(mask), &views) && mask.place() == self.place()
        };
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = ZeroPixels::new(value.alias(), mask)?;
            if call.value.place() != self.place() {
                return Err(Error::Place {
                    tensor: "value",
                    expected: self.place().to_string(),
                    found: call.value.place(),
                });
            }
            let to = Operand::of_output(&call.value);
            let launch = match to.bytes() {
                0 => None,
                _ => Some(MaskLaunch::new(self, None, &to, &mask)?),
            };
            Ok((launch, of_mask(&mask)))
        })?;
        let cuda = *self;
        let (to, mask) = (value.as_mut_ptr() as u64, mask.as_ptr() as u64);
        Ok(Prepared::new(0, move |_| match &*plan {
            // SAFETY: this call, or one that differs only in its addresses, was checked, and the creator of its views has
            // promised that their memory is valid.
            Some(launch) => unsafe { launch.launch(&cuda, 0, to, mask) },
            None => Ok(()),
        }))
    }

    pub(in crate::cuda::msda) fn projected_forward<'a>(
        &self,
        inputs: Projections<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<ForwardCache> = &FORWARD;
        let addresses = ProjectedAddresses::new(&inputs, Some(&out));
        let views = [
            Some(&inputs.value),
            Some(&inputs.reference_points),
            Some(&inputs.sampling_offsets),
            Some(&inputs.attention_logits),
            Some(out.as_view()),
        ];
        let tensors = Tensors {
            views,
            first_written: 4,
        };
        let is_same =
            |known: &CallKey| known.is(&inputs) && !meets(&inputs.value_mask, &views[4..]);
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = ProjectedForward::new(inputs, out.alias())?;
            call.problem.expect_in(self.place())?;
            Ok((ForwardLaunch::new(self, &call)?, CallKey::new(&inputs)))
        })?;
        let cuda = *self;
        Ok(Prepared::new(plan.workspace_bytes(), move |lent| {
            let scratch = cuda.scratch(plan.workspace_bytes(), lent)?;
            // SAFETY: this call, or one that differs only in its addresses, was checked, the creator of its views has
            // promised that their memory is valid, and scratch memory is as large as the plan says.
            unsafe { plan.launch(&cuda, addresses, scratch.address()) }
        }))
    }

    pub(in crate::cuda::msda) fn projected_backward<'a>(
        &self,
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Prepared<'a>> {
        let cache: &'static LocalKey<BackwardCache> = &BACKWARD;
        let address = |gradient: &Option<ViewMut<'_>>| {
            (gradient.as_ref()).map_or(0, |gradient| gradient.as_mut_ptr() as u64)
        };
        let addresses = ProjectedAddresses::new(&inputs, None);
        let of_gradients = GradientAddresses {
            grad_out: grad_out.as_ptr() as u64,
            value: address(&gradients.value),
            locations: address(&gradients.sampling_offsets),
            weights: address(&gradients.attention_logits),
        };
        let of_references = address(&gradients.reference_points);
        let views = [
            Some(&inputs.value),
            Some(&inputs.reference_points),
            Some(&inputs.sampling_offsets),
            Some(&inputs.attention_logits),
            Some(&grad_out),
            gradients.value.as_ref().map(ViewMut::as_view),
            gradients.reference_points.as_ref().map(ViewMut::as_view),
            gradients.sampling_offsets.as_ref().map(ViewMut::as_view),
            gradients.attention_logits.as_ref().map(ViewMut::as_view),
        ];
        let tensors = Tensors {
            views,
            first_written: 5,
        };
        let is_same =
            |known: &CallKey| known.is(&inputs) && !meets(&inputs.value_mask, &views[5..]);
        let plan = PlanCache::plan(cache, self, &tensors, is_same, || {
            let call = ProjectedBackward::new(inputs, grad_out, gradients.alias())?;
            call.problem.expect_in(self.place())?;
            let launch = ProjectedBackwardLaunch::new(self, &call)?;
            Ok((launch, CallKey::new(&inputs)))
        })?;
        let cuda = *self;
        Ok(Prepared::new(plan.workspace_bytes(), move |lent| {
            let scratch = cuda.scratch(plan.workspace_bytes(), lent)?;
            let gradients = (of_gradients, of_references);
            // SAFETY: as in `projected_forward`.
            unsafe { plan.launch(&cuda, addresses, gradients, scratch.address()) }
        }))
    }
}
