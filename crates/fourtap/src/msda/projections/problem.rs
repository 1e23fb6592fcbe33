//! A validated call, so that a backend need not check again.

use std::ops::Range;

use super::{BoxScale, Interpolation, Points, ProjectionGradients, Projections};
use crate::checks::{
    claim, expect_countable, expect_dtype, expect_place, expect_rank, expect_shape,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::msda::{CudaLevels, LevelTable, Levels, Sizes};
use crate::place::Place;
use crate::shape::Shape;
use crate::tensor::{View, ViewMut};

/// Everything about a problem but its data: sizes, levels, element types and strides, checked against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectedProblem {
    sizes: Sizes,
    first_samples: Vec<usize>,
    factors: Vec<f64>,
    interpolation: Interpolation,
    place: Place,
    levels: Levels,
    cuda_levels: Option<CudaLevels>,
    value: Layout,
    references: References,
    sampling_offsets: Layout,
    attention_logits: Layout,
}

/// `reference_points` with all five axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct References {
    /// Element type.
    pub dtype: DType,
    /// Whether they are boxes (x, y, width, height).
    pub boxes: bool,
    /// How many a level has: point p uses number `p % turns`.
    pub turns: usize,
    /// In elements, on axes N, Q, L, P and that of the coordinates; 0 where one stands for every index.
    pub strides: [isize; 5],
}

impl References {
    /// Coordinates of each: 2 or 4.
    pub fn coordinates(&self) -> usize {
        if self.boxes { 4 } else { 2 }
    }
}

type Occupied = Vec<(&'static str, Range<usize>)>;

impl ProjectedProblem {
    /// Checks `inputs` without any outputs.
    pub fn new(inputs: &Projections<'_>) -> Result<Self> {
        ProjectedProblem::checked(inputs).map(|(problem, _)| problem)
    }

    /// As `new`; also returns the address ranges of the inputs.
    fn checked(inputs: &Projections<'_>) -> Result<(Self, Occupied)> {
        let Projections {
            value,
            levels,
            reference_points,
            sampling_offsets,
            attention_logits,
            points,
            value_mask,
            mask_is_applied: _,
            interpolation,
            box_scale,
        } = *inputs;
        expect_rank("value", value.shape(), 4, "[N, S, M, D]")?;
        expect_rank(
            "sampling_offsets",
            sampling_offsets.shape(),
            5,
            "[N, Q, M, K, 2]",
        )?;
        expect_rank(
            "attention_logits",
            attention_logits.shape(),
            4,
            "[N, Q, M, K]",
        )?;
        let points = listed(points, levels.len())?;
        let first_samples = running_sum(&points)?;
        let samples = first_samples[points.len()];
        let (value_shape, offset_shape) = (value.shape(), sampling_offsets.shape());
        let of_value = value_shape.sizes();
        let sizes = Sizes {
            images: of_value[0],
            pixels: of_value[1],
            heads: of_value[2],
            channels: of_value[3],
            queries: offset_shape.sizes()[1],
            levels: levels.len(),
            points: points.iter().copied().max().unwrap_or(0),
        };
        if sizes.channels == 0 {
            return Err(Error::NoChannels {
                tensor: "value",
                found: value.shape(),
            });
        }
        let (host_levels, cuda_levels) = match levels {
            LevelTable::Host(levels) if sizes.pixels != levels.pixels() => {
                return Err(Error::LevelSum {
                    expected: levels.pixels(),
                    found: sizes.pixels,
                });
            }
            LevelTable::Host(levels) => (levels.clone(), None),
            LevelTable::Cuda(levels) => (Levels::default(), Some(levels)),
        };
        let (n, s, m, q) = (sizes.images, sizes.pixels, sizes.heads, sizes.queries);
        if offset_shape != Shape::new(&[n, q, m, samples, 2]) {
            return Err(Error::Shape {
                tensor: "sampling_offsets",
                expected: format!("[{n}, Q, {m}, {samples}, 2]"),
                found: offset_shape,
            });
        }
        expect_shape(
            "attention_logits",
            attention_logits.shape(),
            &[n, q, m, samples],
        )?;
        let references = references(&reference_points, &sizes, &points)?;
        expect_countable("value", &[n, s, m, sizes.channels])?;
        expect_countable("sampling_offsets", &[n, q, m, samples, 2])?;
        // Some backends go through all levels as if they had as many points as the one that has most.
        expect_countable(
            "sampling_offsets",
            &[n, q, m, sizes.levels, sizes.points, 2],
        )?;
        expect_countable("out", &[n, q, m, sizes.channels])?;
        let factors = factors(box_scale, &points, references.boxes)?;

        for (tensor, dtype) in [
            ("reference_points", reference_points.dtype()),
            ("sampling_offsets", sampling_offsets.dtype()),
            ("attention_logits", attention_logits.dtype()),
        ] {
            if dtype != DType::F32 && dtype != value.dtype() {
                let expected = match value.dtype() {
                    DType::F32 => "f32".to_string(),
                    other => format!("f32 or {other} (that of value)"),
                };
                return Err(Error::DType {
                    tensor,
                    expected,
                    found: dtype,
                });
            }
        }
        let place = value.place();
        let mut occupied = vec![("value", value.check("value")?)];
        for (tensor, view) in [
            ("reference_points", &reference_points),
            ("sampling_offsets", &sampling_offsets),
            ("attention_logits", &attention_logits),
        ] {
            occupied.push((tensor, view.check(tensor)?));
            expect_place(tensor, view.place(), "value", place)?;
        }
        if let Some(mask) = &value_mask {
            expect_rank("value_mask", mask.shape(), 2, "[N, S]")?;
            expect_shape("value_mask", mask.shape(), &[n, s])?;
            occupied.push(("value_mask", mask.check("value_mask")?));
            expect_place("value_mask", mask.place(), "value", place)?;
        }
        if let Some(CudaLevels { ordinal, .. }) = cuda_levels {
            expect_place("spatial_shapes", Place::Cuda { ordinal }, "value", place)?;
        }
        let problem = ProjectedProblem {
            sizes,
            first_samples,
            factors,
            interpolation,
            place,
            levels: host_levels,
            cuda_levels,
            value: *value.layout(),
            references,
            sampling_offsets: *sampling_offsets.layout(),
            attention_logits: *attention_logits.layout(),
        };
        Ok((problem, occupied))
    }

    /// The sizes. `points` is the largest number of any level.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Points of all levels of a head (K).
    pub fn samples(&self) -> usize {
        self.first_samples[self.sizes.levels]
    }

    /// Points of a level.
    pub fn points(&self, level: usize) -> usize {
        self.first_samples[level + 1] - self.first_samples[level]
    }

    /// On axis K: the first point of each level, and after them K.
    pub fn first_samples(&self) -> &[usize] {
        &self.first_samples
    }

    /// Whether all levels have the same number of points.
    pub fn is_even(&self) -> bool {
        (0..self.sizes.levels).all(|level| self.points(level) == self.sizes.points)
    }

    /// For boxes: the part of width and height that an offset of 1 stands for, on each level.
    pub fn factors(&self) -> &[f64] {
        &self.factors
    }

    /// How a point reads the pixels around it.
    pub fn interpolation(&self) -> Interpolation {
        self.interpolation
    }

    /// The memory its tensors are in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Refuses tensors that are not in `expected`, the memory that a backend works in.
    pub(crate) fn expect_in(&self, expected: Place) -> Result<()> {
        if self.place == expected {
            return Ok(());
        }
        Err(Error::Place {
            tensor: "value",
            expected: expected.to_string(),
            found: self.place,
        })
    }

    /// The levels; none if they are in device memory.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The levels, if they are in device memory.
    pub fn cuda_levels(&self) -> Option<&CudaLevels> {
        self.cuda_levels.as_ref()
    }

    /// Layout of `value`.
    pub fn value(&self) -> &Layout {
        &self.value
    }

    /// Layout of `reference_points`.
    pub fn references(&self) -> &References {
        &self.references
    }

    /// Layout of `sampling_offsets`.
    pub fn sampling_offsets(&self) -> &Layout {
        &self.sampling_offsets
    }

    /// Layout of `attention_logits`.
    pub fn attention_logits(&self) -> &Layout {
        &self.attention_logits
    }
}

/// One number of points for each level.
fn listed(points: Points<'_>, levels: usize) -> Result<Vec<usize>> {
    match points {
        Points::Each(points) => Ok(vec![points; levels]),
        Points::Listed(points) if points.len() == levels => Ok(points.to_vec()),
        Points::Listed(points) => Err(Error::Argument {
            argument: "points_per_level",
            expected: format!("{levels} numbers, one per level"),
            found: points.len().to_string(),
        }),
    }
}

/// The sums of what comes before, and of all.
fn running_sum(points: &[usize]) -> Result<Vec<usize>> {
    let mut sums = vec![0usize];
    let mut sum = 0usize;
    for &points in points {
        sum = sum.checked_add(points).ok_or_else(|| Error::Overflow {
            tensor: "sampling_offsets",
            what: "a sum of points_per_level".to_string(),
        })?;
        sums.push(sum);
    }
    Ok(sums)
}

fn references(view: &View<'_>, sizes: &Sizes, points: &[usize]) -> Result<References> {
    let (shape, layout) = (view.shape(), view.layout());
    let axes = "[N, Q, L, P, 2 or 4], or without axis P";
    let found = shape.sizes();
    let rank = shape.rank();
    if rank != 4 && rank != 5 {
        return Err(Error::Rank {
            tensor: "reference_points",
            expected: 5,
            axes,
            found: rank,
        });
    }
    let turns = if rank == 5 { found[3] } else { 1 };
    let coordinates = found[rank - 1];
    let even = points.iter().all(|&count| count == sizes.points);
    let fits = |axis: usize, size: usize| found[axis] == size || found[axis] == 1;
    let take_turns = turns == 1
        || even && (turns == sizes.points || turns > 0 && sizes.points.is_multiple_of(turns));
    let sound = fits(0, sizes.images)
        && fits(1, sizes.queries)
        && fits(2, sizes.levels)
        && take_turns
        && matches!(coordinates, 2 | 4);
    if !sound {
        let (n, q, l) = (sizes.images, sizes.queries, sizes.levels);
        let of_points = match (even, rank) {
            (true, 5) => format!("{}, ", sizes.points),
            (false, 5) => "1, ".to_string(),
            _ => String::new(),
        };
        return Err(Error::Shape {
            tensor: "reference_points",
            expected: format!("[{n}, {q}, {l}, {of_points}2 or 4] (1 stands for every size)"),
            found: shape,
        });
    }
    if layout.stride_count() != rank {
        return Err(Error::StrideCount {
            tensor: "reference_points",
            expected: rank,
            found: layout.stride_count(),
        });
    }
    let given = layout.strides();
    let mut strides = [0; 5];
    for axis in 0..rank - 1 {
        // One stands for every index, whatever its stride.
        strides[axis] = if found[axis] == 1 { 0 } else { given[axis] };
    }
    strides[4] = given[rank - 1];
    Ok(References {
        dtype: view.dtype(),
        boxes: coordinates == 4,
        turns: turns.max(1),
        strides,
    })
}

/// The factor of each level; without boxes nobody reads them.
fn factors(scale: BoxScale<'_>, points: &[usize], boxes: bool) -> Result<Vec<f64>> {
    let wrong = |expected: String, found: String| Error::Argument {
        argument: "box_scale",
        expected,
        found,
    };
    if !boxes && scale != BoxScale::HalfBox {
        return Err(wrong(
            "none, as reference_points are points".to_string(),
            "some".to_string(),
        ));
    }
    let factors: Vec<f64> = match scale {
        BoxScale::HalfBox => points.iter().map(|&count| 0.5 / count as f64).collect(),
        BoxScale::Each(factor) => vec![factor; points.len()],
        BoxScale::Listed(factors) if factors.len() == points.len() => factors.to_vec(),
        BoxScale::Listed(factors) => {
            return Err(wrong(
                format!("{} numbers, one per level", points.len()),
                factors.len().to_string(),
            ));
        }
    };
    match factors.iter().find(|factor| !factor.is_finite()) {
        // A level without points has no factor.
        Some(factor) if scale != BoxScale::HalfBox => {
            Err(wrong("finite numbers".to_string(), factor.to_string()))
        }
        _ => Ok(factors),
    }
}

/// A validated forward call.
#[derive(Debug)]
pub struct ProjectedForward<'a> {
    pub(crate) problem: ProjectedProblem,
    pub(crate) inputs: Projections<'a>,
    pub(crate) out: ViewMut<'a>,
}

impl<'a> ProjectedForward<'a> {
    /// Checks `inputs` and `out` against each other.
    pub fn new(inputs: Projections<'a>, out: ViewMut<'a>) -> Result<Self> {
        let (problem, occupied) = ProjectedProblem::checked(&inputs)?;
        expect_rank("out", out.shape(), 3, "[N, Q, M*D]")?;
        expect_shape("out", out.shape(), &problem.sizes.out())?;
        expect_dtype("out", out.dtype(), "value", problem.value.dtype())?;
        expect_place("out", out.place(), "value", problem.place)?;
        claim("out", &out, &occupied)?;
        Ok(ProjectedForward {
            problem,
            inputs,
            out,
        })
    }
}

/// A validated backward call.
#[derive(Debug)]
pub struct ProjectedBackward<'a> {
    pub(crate) problem: ProjectedProblem,
    pub(crate) inputs: Projections<'a>,
    pub(crate) grad_out: View<'a>,
    pub(crate) gradients: ProjectionGradients<'a>,
}

impl<'a> ProjectedBackward<'a> {
    /// Checks `inputs`, `grad_out` and the requested gradients against each other.
    pub fn new(
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Self> {
        let (problem, mut occupied) = ProjectedProblem::checked(&inputs)?;
        expect_rank("grad_out", grad_out.shape(), 3, "[N, Q, M*D]")?;
        expect_shape("grad_out", grad_out.shape(), &problem.sizes.out())?;
        expect_dtype("grad_out", grad_out.dtype(), "value", problem.value.dtype())?;
        expect_place("grad_out", grad_out.place(), "value", problem.place)?;
        occupied.push(("grad_out", grad_out.check("grad_out")?));
        let wanted = [
            ("grad_value", &gradients.value, "value", inputs.value),
            (
                "grad_references",
                &gradients.reference_points,
                "reference_points",
                inputs.reference_points,
            ),
            (
                "grad_offsets",
                &gradients.sampling_offsets,
                "sampling_offsets",
                inputs.sampling_offsets,
            ),
            (
                "grad_logits",
                &gradients.attention_logits,
                "attention_logits",
                inputs.attention_logits,
            ),
        ];
        for (tensor, gradient, source, input) in wanted {
            let Some(gradient) = gradient else { continue };
            expect_shape(tensor, gradient.shape(), input.shape().sizes())?;
            expect_dtype(tensor, gradient.dtype(), source, input.dtype())?;
            expect_place(tensor, gradient.place(), "value", problem.place)?;
            let offsets = gradients.sampling_offsets.as_ref();
            if tensor == "grad_logits"
                && offsets.is_some_and(|offsets| take_turns(offsets, gradient))
            {
                // The range of the offsets', in which the others lie, too.
                occupied.pop();
            }
            let range = claim(tensor, gradient, &occupied)?;
            occupied.push((tensor, range));
        }
        Ok(ProjectedBackward {
            problem,
            inputs,
            grad_out,
            gradients,
        })
    }
}

/// Whether both are parts of the rows of one tensor, like what one linear layer puts out.
fn take_turns(one: &ViewMut<'_>, other: &ViewMut<'_>) -> bool {
    let bytes_apart = (other.as_mut_ptr() as isize).wrapping_sub(one.as_mut_ptr() as isize);
    one.layout().takes_turns_with(other.layout(), bytes_apart)
}
