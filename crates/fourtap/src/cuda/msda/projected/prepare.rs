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
use crate::cuda::plan_cache::{PlanCache, Tensors, optional};
use crate::error::{Error, Result};
use crate::msda::projections::{
    BoxScale, Interpolation, Points, ProjectedBackward, ProjectedForward, ProjectionGradients,
    Projections, ZeroPixels,
};
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

type MaskCache = PlanCache<2, (), Option<MaskLaunch>>;
type ForwardCache = PlanCache<6, CallKey, ForwardLaunch>;
type BackwardCache = PlanCache<10, CallKey, ProjectedBackwardLaunch>;

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
    mask_is_applied: bool,
}

enum PointsKey {
    Each(usize),
    Listed(Vec<usize>),
}

/// The bits of numbers: of zeros, those of gradients depend on the sign.
enum ScaleKey {
    HalfBox,
    Each(u64),
    Listed(Vec<u64>),
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
                BoxScale::Each(factor) => ScaleKey::Each(factor.to_bits()),
                BoxScale::Listed(factors) => {
                    ScaleKey::Listed(factors.iter().map(|factor| factor.to_bits()).collect())
                }
            },
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
            (ScaleKey::Each(known), BoxScale::Each(factor)) => *known == factor.to_bits(),
            (ScaleKey::Listed(known), BoxScale::Listed(factors)) => {
                (known.iter().copied()).eq(factors.iter().map(|factor| factor.to_bits()))
            }
            _ => false,
        };
        points
            && scale
            && self.interpolation == inputs.interpolation
            && self.mask_is_applied == inputs.mask_is_applied
            && self.levels.are(&inputs.levels)
    }
}

fn of_zero_pixels<'v>(value: &'v ViewMut<'v>, mask: &'v BoolView<'v>) -> Tensors<'v, 2> {
    Tensors {
        views: [Some(mask.into()), Some(value.into())],
        first_written: 1,
    }
}

fn of_forward<'v>(inputs: &'v Projections<'v>, out: &'v ViewMut<'v>) -> Tensors<'v, 6> {
    Tensors {
        views: [
            Some((&inputs.value).into()),
            Some((&inputs.reference_points).into()),
            Some((&inputs.sampling_offsets).into()),
            Some((&inputs.attention_logits).into()),
            optional(&inputs.value_mask),
            Some(out.into()),
        ],
        first_written: 5,
    }
}

fn of_backward<'v>(
    inputs: &'v Projections<'v>,
    grad_out: &'v View<'v>,
    gradients: &'v ProjectionGradients<'v>,
) -> Tensors<'v, 10> {
    Tensors {
        views: [
            Some((&inputs.value).into()),
            Some((&inputs.reference_points).into()),
            Some((&inputs.sampling_offsets).into()),
            Some((&inputs.attention_logits).into()),
            optional(&inputs.value_mask),
            Some(grad_out.into()),
            optional(&gradients.value),
            optional(&gradients.reference_points),
            optional(&gradients.sampling_offsets),
            optional(&gradients.attention_logits),
        ],
        first_written: 6,
    }
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
        let tensors = of_zero_pixels(&value, &mask);
        let plan = PlanCache::plan(
            cache,
            self,
            &tensors,
            |_| true,
            || {
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
                Ok((launch, ()))
            },
        )?;
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
        let tensors = of_forward(&inputs, &out);
        let is_same = |known: &CallKey| known.is(&inputs);
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
        let tensors = of_backward(&inputs, &grad_out, &gradients);
        let is_same = |known: &CallKey| known.is(&inputs);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan_cache::forged::{Forged, expect_each_decides};
    use crate::dtype::DType::F32;
    use crate::msda::Levels;

    /// Two images of six pixels, two heads of eight channels, five queries, one level, two points.
    fn inputs<'a>(tensors: &[Forged], levels: &'a Levels) -> Projections<'a> {
        Projections {
            value: tensors[0].view(),
            levels: levels.into(),
            reference_points: tensors[1].view(),
            sampling_offsets: tensors[2].view(),
            attention_logits: tensors[3].view(),
            points: Points::Each(2),
            value_mask: tensors[4].if_there(Forged::booleans),
            mask_is_applied: false,
            interpolation: Interpolation::default(),
            box_scale: BoxScale::default(),
        }
    }

    const INPUTS: [(&str, &[usize]); 5] = [
        ("value", &[2, 6, 2, 8]),
        ("reference_points", &[2, 5, 1, 4]),
        ("sampling_offsets", &[2, 5, 2, 2, 2]),
        ("attention_logits", &[2, 5, 2, 2]),
        ("value_mask", &[2, 6]),
    ];

    fn forged<const TENSORS: usize>(
        others: &[(&'static str, &'static [usize])],
    ) -> [Forged; TENSORS] {
        let all: Vec<_> = INPUTS.iter().chain(others).collect();
        std::array::from_fn(|number| Forged::new(all[number].0, number as u64, F32, all[number].1))
    }

    #[test]
    fn every_tensor_of_zero_pixels_is_in_its_key() {
        let known = [
            Forged::new("value_mask", 0, F32, &[2, 6]),
            Forged::new("value", 1, F32, &[2, 6, 2, 8]),
        ];
        expect_each_decides(known, &[], 1, |known, found| {
            let call = |tensors: &[Forged; 2]| (tensors[1].output(), tensors[0].booleans());
            let (known, found) = (call(known), call(found));
            of_zero_pixels(&found.0, &found.1).are_like_those(&of_zero_pixels(&known.0, &known.1))
        });
    }

    #[test]
    fn every_tensor_of_forward_is_in_its_key() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let known = forged(&[("out", &[2, 5, 16])]);
        expect_each_decides(known, &["value_mask"], 5, |known, found| {
            let call = |tensors: &[Forged; 6]| (inputs(tensors, &levels), tensors[5].output());
            let (known, found) = (call(known), call(found));
            of_forward(&found.0, &found.1).are_like_those(&of_forward(&known.0, &known.1))
        });
    }

    #[test]
    fn every_tensor_of_backward_is_in_its_key() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let known = forged(&[
            ("grad_out", &[2, 5, 16]),
            ("grad_value", &[2, 6, 2, 8]),
            ("grad_references", &[2, 5, 1, 4]),
            ("grad_offsets", &[2, 5, 2, 2, 2]),
            ("grad_logits", &[2, 5, 2, 2]),
        ]);
        let optional = [
            "value_mask",
            "grad_value",
            "grad_references",
            "grad_offsets",
            "grad_logits",
        ];
        expect_each_decides(known, &optional, 6, |known, found| {
            let call = |tensors: &[Forged; 10]| {
                let gradients = ProjectionGradients {
                    value: tensors[6].if_there(Forged::output),
                    reference_points: tensors[7].if_there(Forged::output),
                    sampling_offsets: tensors[8].if_there(Forged::output),
                    attention_logits: tensors[9].if_there(Forged::output),
                };
                (inputs(tensors, &levels), tensors[5].view(), gradients)
            };
            let (known, found) = (call(known), call(found));
            of_backward(&found.0, &found.1, &found.2)
                .are_like_those(&of_backward(&known.0, &known.1, &known.2))
        });
    }

    #[test]
    fn everything_else_of_a_call_is_in_its_key() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let others = Levels::packed(&[(3, 2)]).unwrap();
        let tensors: [Forged; 6] = forged(&[("out", &[2, 5, 16])]);
        let base = Projections {
            box_scale: BoxScale::Each(0.0),
            ..inputs(&tensors, &levels)
        };
        let known = CallKey::new(&base);
        assert!(known.is(&base));
        type Change = fn(&mut Projections<'_>);
        let changes: [(&str, Change); 6] = [
            ("points", |it| it.points = Points::Each(1)),
            ("points listed", |it| it.points = Points::Listed(&[2])),
            ("mask_is_applied", |it| it.mask_is_applied = true),
            ("interpolation", |it| {
                it.interpolation = Interpolation::Nearest
            }),
            ("box_scale", |it| it.box_scale = BoxScale::HalfBox),
            // Gradients of offsets are zeros of the other sign.
            ("sign of box_scale", |it| {
                it.box_scale = BoxScale::Each(-0.0)
            }),
        ];
        for (what, change) in changes {
            let mut changed = base;
            change(&mut changed);
            assert!(!known.is(&changed), "{what}");
        }
        let mut elsewhere = base;
        elsewhere.levels = (&others).into();
        assert!(!known.is(&elsewhere), "levels");
        let listed = |factors| Projections {
            box_scale: BoxScale::Listed(factors),
            ..base
        };
        let known = CallKey::new(&listed(&[0.0]));
        assert!(known.is(&listed(&[0.0])));
        for other in [&[-0.0][..], &[1.0], &[], &[0.0, 0.0]] {
            assert!(!known.is(&listed(other)), "{other:?}");
        }
        let unknown = CallKey::new(&listed(&[f64::NAN]));
        assert!(unknown.is(&listed(&[f64::NAN])), "a key equals itself");
    }
}
