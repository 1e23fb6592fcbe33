//! The inputs of a call as plans look at them, whichever way it says where and how much to sample.

use super::kind::Kind;
use super::specialised::{Projection, Sampling, Types};
use crate::layout::Layout;
use crate::msda::projections::{
    Interpolation, ProjectedBackward, ProjectedProblem, Projections, References,
};
use crate::msda::{Backward, Inputs, Levels, Problem, Sizes};
use crate::tensor::{View, ViewMut};

/// A tensor: its layout, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub layout: Layout,
    pub first: *const u8,
}

impl Operand {
    pub fn of(view: &View<'_>) -> Self {
        Operand {
            layout: *view.layout(),
            first: view.as_ptr(),
        }
    }

    pub fn of_output(view: &ViewMut<'_>) -> Self {
        Operand {
            layout: *view.layout(),
            first: view.as_mut_ptr().cast_const(),
        }
    }

    /// A row-major tensor in scratch memory, wherever that will be.
    pub fn scratch(layout: &Layout) -> Self {
        Operand {
            layout: Layout::contiguous(layout.dtype(), layout.shape().sizes()),
            first: std::ptr::without_provenance(1 << 20),
        }
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.layout.shape().elements().unwrap_or(0) * self.layout.dtype().size()
    }
}

/// The inputs of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a> {
    pub sizes: Sizes,
    pub kind: Kind,
    /// None if they are in device memory.
    pub levels: &'a Levels,
    pub levels_in_device_memory: bool,
    pub value: Operand,
    /// Sampling locations or offsets.
    pub locations: Operand,
    /// Attention weights or logits.
    pub weights: Operand,
    /// Reference points, and where they are, of a projected problem.
    pub references: Option<(References, *const u8)>,
}

impl<'a> Operands<'a> {
    pub fn given(problem: &'a Problem, inputs: &Inputs<'_>) -> Self {
        let sizes = *problem.sizes();
        Operands {
            sizes,
            kind: Kind {
                types: Types {
                    value: problem.value().dtype(),
                    locations: problem.sampling_locations().dtype(),
                    weights: problem.attention_weights().dtype(),
                },
                sampling: Sampling::Given,
                heads: sizes.heads,
                channels: sizes.channels,
                levels: sizes.levels,
                points: sizes.points,
            },
            levels: problem.levels(),
            levels_in_device_memory: problem.cuda_levels().is_some(),
            value: Operand::of(&inputs.value),
            locations: Operand::of(&inputs.sampling_locations),
            weights: Operand::of(&inputs.attention_weights),
            references: None,
        }
    }

    pub fn projected(problem: &'a ProjectedProblem, inputs: &Projections<'_>) -> Self {
        let sizes = *problem.sizes();
        let references = problem.references();
        let projection = Projection {
            references: references.dtype,
            boxes: references.boxes,
            nearest: problem.interpolation() == Interpolation::Nearest,
            turns: u32::try_from(references.turns).unwrap_or(u32::MAX),
            uneven: Projection::uneven(problem.first_samples()),
        };
        let value = Operand::of(&inputs.value);
        Operands {
            sizes,
            kind: Kind {
                types: Types {
                    value: problem.value().dtype(),
                    locations: problem.sampling_offsets().dtype(),
                    weights: problem.attention_logits().dtype(),
                },
                sampling: Sampling::Projected(projection),
                heads: sizes.heads,
                channels: sizes.channels,
                levels: sizes.levels,
                points: match projection.uneven {
                    None => sizes.points,
                    Some(_) => common_divisor(problem.first_samples()),
                },
            },
            levels: problem.levels(),
            levels_in_device_memory: problem.cuda_levels().is_some(),
            // With a mask that is yet to be applied, kernels read a copy.
            value: match inputs.value_mask {
                Some(_) if !inputs.mask_is_applied => Operand::scratch(problem.value()),
                _ => value,
            },
            locations: Operand::of(&inputs.sampling_offsets),
            weights: Operand::of(&inputs.attention_logits),
            references: Some((*references, inputs.reference_points.as_ptr())),
        }
    }

    /// Samples of a level of an image and head, of the level that has most.
    pub fn samples_of_level(&self) -> usize {
        self.sizes.queries * self.sizes.points
    }

    /// The axis of `locations` and `weights` that points of a level lie on.
    pub fn point_axis(&self) -> usize {
        match self.kind.sampling {
            Sampling::Given => 4,
            Sampling::Projected(_) => 3,
        }
    }
}

/// What backward reads and writes besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientOperands {
    pub grad_out: Operand,
    pub value: Option<Operand>,
    /// Of sampling locations or offsets.
    pub locations: Option<Operand>,
    /// Of attention weights or logits.
    pub weights: Option<Operand>,
    /// Whether gradients by places in pixels are wanted, in scratch memory.
    pub places: bool,
}

impl GradientOperands {
    pub fn given(call: &Backward<'_>) -> Self {
        let gradients = &call.gradients;
        let operand = |view: &Option<ViewMut<'_>>| view.as_ref().map(Operand::of_output);
        GradientOperands {
            grad_out: Operand::of(&call.grad_out),
            value: operand(&gradients.value),
            locations: operand(&gradients.sampling_locations),
            weights: operand(&gradients.attention_weights),
            places: false,
        }
    }

    pub fn projected(call: &ProjectedBackward<'_>) -> Self {
        let gradients = &call.gradients;
        let operand = |view: &Option<ViewMut<'_>>| view.as_ref().map(Operand::of_output);
        GradientOperands {
            grad_out: Operand::of(&call.grad_out),
            value: operand(&gradients.value),
            locations: operand(&gradients.sampling_offsets),
            weights: operand(&gradients.attention_logits),
            places: gradients.reference_points.is_some(),
        }
    }

    /// Whether any gradient of a sample is wanted.
    pub fn of_samples(&self) -> bool {
        self.locations.is_some() || self.weights.is_some() || self.places
    }
}

/// The largest number that divides the points of every level.
fn common_divisor(first_samples: &[usize]) -> usize {
    let points = first_samples.windows(2).map(|pair| pair[1] - pair[0]);
    points.fold(0, |mut divisor, mut points| {
        while points != 0 {
            (divisor, points) = (points, divisor % points);
        }
        divisor
    })
}
