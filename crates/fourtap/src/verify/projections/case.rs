//! Random problems from a seed, as those of [`Case`](crate::verify::Case): also points and boxes, references that stand for
//! several points, levels with different numbers of points, the nearest pixel, masks, and hostile numbers everywhere.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::mask::PaddingMask;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::msda::projections::{BoxScale, Interpolation, Points, Projections};
use crate::msda::{Levels, Sizes};
use crate::tensor::View;
use crate::verify::case::{CaseKind, HOSTILE, crowd, pick, random_sizes, random_storage};
use crate::verify::points::QueryBox;
use crate::verify::tensor::{Storage, Tensor};

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct ProjectedCase {
    /// The seed it was made from.
    pub seed: u64,
    /// The levels.
    pub levels: Levels,
    /// Points of each level.
    pub points: Vec<usize>,
    /// Whether the call lists them, which it need not where all are equal.
    pub points_are_listed: bool,
    /// `[N, S, M, D]`.
    pub value: Tensor,
    /// `[N, Q, L, P, 2 or 4]`, axes of size 1, axis P left out or shorter than P.
    pub reference_points: Tensor,
    /// `[N, Q, M, K, 2]`.
    pub sampling_offsets: Tensor,
    /// `[N, Q, M, K]`.
    pub attention_logits: Tensor,
    /// `[N, Q, ..]`: if there is one, the call takes offsets and logits from it, as from one linear layer.
    pub merged: Option<Tensor>,
    /// `[N, S]`.
    pub value_mask: Option<PaddingMask>,
    /// How a point reads the pixels around it.
    pub interpolation: Interpolation,
    /// The factors of boxes, if not the usual ones: one, or one for each level.
    pub box_scale: Option<Vec<f64>>,
    /// Whether there is one factor for each level.
    pub box_scale_is_listed: bool,
    /// `[N, Q, M*D]`.
    pub grad_out: Tensor,
    /// Layout of the outputs: `out`, then the gradients of value, reference points, offsets and logits.
    pub outputs: [Storage; 5],
}

impl ProjectedCase {
    /// The problem of this seed, the same on every machine.
    pub fn random(seed: u64) -> Self {
        ProjectedCase::new(seed, CaseKind::Any)
    }

    /// The problem of this seed among those whose channels and rows fill multiples of 16 bytes.
    pub fn aligned(seed: u64) -> Self {
        ProjectedCase::new(seed, CaseKind::Aligned)
    }

    /// The problem of this seed among those whose small levels kernels may keep in shared memory.
    pub fn keepable(seed: u64) -> Self {
        ProjectedCase::new(seed, CaseKind::Keepable)
    }

    fn new(seed: u64, kind: CaseKind) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let (sizes, levels) = random_sizes(rng, kind);
        let dtype = pick(rng, &DType::ALL);
        let numbers = Numbers::new(rng);
        let points = random_points(rng, &sizes);
        let samples: usize = points.iter().sum();
        let boxes = rng.random_bool(0.5);
        let interpolation = match rng.random_bool(0.2) {
            true => Interpolation::Nearest,
            false => Interpolation::Bilinear,
        };
        let either = |rng: &mut Xoshiro256PlusPlus| match rng.random_bool(0.5) {
            true => DType::F32,
            false => dtype,
        };
        let (n, q, m) = (sizes.images, sizes.queries, sizes.heads);

        let storage = random_storage(rng, 4, true, kind);
        let value = Tensor::from_fn(dtype, &sizes.value(), &storage, || numbers.value(rng));
        let shape = random_reference_shape(rng, &sizes, &points, boxes);
        let reference_rank = shape.len();
        let storage = random_storage(rng, reference_rank, true, kind);
        let (coordinates, mut index) = (shape[reference_rank - 1], 0);
        let crowd = Crowd::of(seed, shape[0] * shape[1]);
        let of_query: usize = shape[2..].iter().product();
        let reference_points = Tensor::from_fn(either(rng), &shape, &storage, || {
            let (query, coordinate) = (index / of_query, index % coordinates);
            index += 1;
            let number = numbers.reference(rng, coordinate >= 2);
            let crowded = crowd
                .as_ref()
                .and_then(|it| it.reference(query, coordinate));
            crowded.unwrap_or(number)
        });
        let merges = rng.random_bool(0.3);
        let offset_dtype = either(rng);
        let logit_dtype = if merges { offset_dtype } else { either(rng) };
        let storage = random_storage(rng, 5, true, kind);
        let shape = [n, q, m, samples, 2];
        let sampling_offsets = Tensor::from_fn(offset_dtype, &shape, &storage, || {
            numbers.offset(rng, boxes) * crowd.as_ref().map_or(1.0, |it| it.spread)
        });
        let storage = random_storage(rng, 4, true, kind);
        let attention_logits =
            Tensor::from_fn(logit_dtype, &shape[..4], &storage, || numbers.logit(rng));
        let merged = merges.then(|| merge(&sampling_offsets, &attention_logits));
        let storage = random_storage(rng, 3, true, kind);
        let grad_out = Tensor::from_fn(dtype, &sizes.out(), &storage, || {
            rng.random_range(-1.0..1.0)
        });
        let box_scale_is_listed = rng.random_bool(0.5);
        let factors = if box_scale_is_listed { levels.len() } else { 1 };
        let box_scale = (boxes && rng.random_bool(0.4)).then(|| {
            let factor = |_| rng.random_range(-0.3..0.3);
            (0..factors).map(factor).collect()
        });
        let value_mask = rng
            .random_bool(0.3)
            .then(|| PaddingMask::random(rng, n, sizes.pixels));
        let even = points.iter().all(|count| count == &points[0]);
        ProjectedCase {
            seed,
            points_are_listed: !even || rng.random_bool(0.3),
            points,
            value,
            outputs: [3, 4, reference_rank, 5, 4]
                .map(|rank| random_storage(rng, rank, false, kind)),
            reference_points,
            sampling_offsets,
            attention_logits,
            merged,
            value_mask,
            interpolation,
            box_scale,
            box_scale_is_listed,
            grad_out,
            levels,
        }
    }

    /// The inputs of the operator.
    pub fn inputs(&self) -> Projections<'_> {
        let (sampling_offsets, attention_logits) = match &self.merged {
            Some(merged) => {
                let [offsets, logits] = self.parts(merged);
                (
                    merged.part(offsets.first, offsets.layout),
                    merged.part(logits.first, logits.layout),
                )
            }
            None => (self.sampling_offsets.view(), self.attention_logits.view()),
        };
        Projections {
            value: self.value.view(),
            levels: (&self.levels).into(),
            reference_points: self.reference_points.view(),
            sampling_offsets,
            attention_logits,
            points: self.points(),
            value_mask: self.value_mask.as_ref().map(PaddingMask::view),
            interpolation: self.interpolation,
            box_scale: self.box_scale(),
            mask_is_applied: false,
        }
    }

    /// The gradient of the output.
    pub fn grad_out(&self) -> View<'_> {
        self.grad_out.view()
    }

    /// How the points are distributed over the levels.
    pub fn points(&self) -> Points<'_> {
        match self.points_are_listed {
            true => Points::Listed(&self.points),
            false => Points::Each(self.points.first().copied().unwrap_or(0)),
        }
    }

    /// The factors of boxes.
    pub fn box_scale(&self) -> BoxScale<'_> {
        match &self.box_scale {
            None => BoxScale::HalfBox,
            Some(factors) if self.box_scale_is_listed => BoxScale::Listed(factors),
            Some(factors) => BoxScale::Each(factors[0]),
        }
    }

    /// Where offsets and logits lie in a tensor that has both.
    pub(super) fn parts(&self, merged: &Tensor) -> [Part; 2] {
        let layout = merged.layout();
        let [by_image, by_query] = [layout.strides()[0], layout.strides()[1]];
        let shape = self.sampling_offsets.shape();
        let sizes = shape.sizes();
        let k = sizes[3] as isize;
        [
            Part {
                first: 0,
                layout: Layout::strided(merged.dtype(), sizes, &[by_image, by_query, 2 * k, 2, 1]),
            },
            Part {
                first: first_logit(&self.sampling_offsets),
                layout: Layout::strided(merged.dtype(), &sizes[..4], &[by_image, by_query, k, 1]),
            },
        ]
    }
}

/// Part of a tensor.
pub(super) struct Part {
    /// Its first element, from that of the tensor.
    pub first: usize,
    pub layout: Layout,
}

/// Where the logits begin in a row that has offsets first: a multiple of 16 bytes.
fn first_logit(offsets: &Tensor) -> usize {
    let shape = offsets.shape();
    shape.sizes()[2..]
        .iter()
        .product::<usize>()
        .next_multiple_of(8)
}

/// Offsets and logits in one tensor, with a gap after each row.
fn merge(offsets: &Tensor, logits: &Tensor) -> Tensor {
    let shape = offsets.shape();
    let [n, q] = [shape.sizes()[0], shape.sizes()[1]];
    let of_row = |tensor: &Tensor| tensor.len() / (n * q).max(1);
    let (offset_count, logit_count) = (of_row(offsets), of_row(logits));
    let first_logit = first_logit(offsets);
    let length = (first_logit + logit_count).next_multiple_of(8) + 8;
    let dtype = logits.dtype();
    let (offsets, logits) = (offsets.to_f64(), logits.to_f64());
    let mut index = 0;
    Tensor::from_fn(dtype, &[n, q, length], &Storage::dense(3), || {
        let (row, column) = (index / length, index % length);
        index += 1;
        if column < offset_count {
            offsets[row * offset_count + column]
        } else if (first_logit..first_logit + logit_count).contains(&column) {
            logits[row * logit_count + column - first_logit]
        } else {
            f64::NAN
        }
    })
}

/// Points of each level: the same for all, or any number up to it.
fn random_points(rng: &mut Xoshiro256PlusPlus, sizes: &Sizes) -> Vec<usize> {
    let uneven = rng.random_bool(0.35);
    let points = |_| match uneven {
        true => rng.random_range(0..=sizes.points),
        false => sizes.points,
    };
    (0..sizes.levels).map(points).collect()
}

fn random_reference_shape(
    rng: &mut Xoshiro256PlusPlus,
    sizes: &Sizes,
    points: &[usize],
    boxes: bool,
) -> Vec<usize> {
    let mut shape: Vec<usize> = [sizes.images, sizes.queries, sizes.levels]
        .into_iter()
        .map(|size| if rng.random_bool(0.3) { 1 } else { size })
        .collect();
    let most = points.iter().copied().max().unwrap_or(0);
    let even = points.iter().all(|&count| count == most);
    let divisors: Vec<usize> = (1..=most)
        .filter(|turns| most.is_multiple_of(*turns))
        .collect();
    match rng.random_range(0..4) {
        0 | 1 => {}
        2 if even && most > 0 => shape.push(pick(rng, &divisors)),
        3 if even => shape.push(most),
        _ => shape.push(1),
    }
    shape.push(if boxes { 4 } else { 2 });
    shape
}

/// Queries that look at few pixels.
struct Crowd {
    /// Of each query of each image.
    boxes: Vec<QueryBox>,
    /// What offsets are multiplied by.
    spread: f64,
}

impl Crowd {
    /// That of a seed, if it has one.
    fn of(seed: u64, queries: usize) -> Option<Self> {
        let distribution = crowd(seed)?;
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let query_box = |query| {
            let reference = rng.random();
            distribution.query_box(rng, (query, reference))
        };
        Some(Crowd {
            boxes: (0..queries).map(query_box).collect(),
            spread: pick(rng, &[0.0, 0.01, 1.0]),
        })
    }

    /// x, y, width or height, where the distribution says it.
    fn reference(&self, query: usize, coordinate: usize) -> Option<f64> {
        let QueryBox { centre, extent } = self.boxes[query];
        match coordinate {
            0 | 1 => Some(centre[coordinate]),
            _ => extent.map(|extent| extent[coordinate - 2]),
        }
    }
}

/// What the tensors hold.
struct Numbers {
    /// Whether there are hostile numbers in value, reference points, offsets and logits.
    hostile: [bool; 4],
}

impl Numbers {
    fn new(rng: &mut Xoshiro256PlusPlus) -> Self {
        let any = rng.random_bool(0.25);
        Numbers {
            hostile: [0; 4].map(|_| any && rng.random_bool(0.4)),
        }
    }

    fn value(&self, rng: &mut Xoshiro256PlusPlus) -> f64 {
        match self.hostile[0] && rng.random_bool(0.02) {
            // Infinity times a weight that is 0 after rounding is not what it is before.
            true => pick(rng, &[f64::NAN, -0.0, 1e-40]),
            false => rng.random_range(-1.0..1.0),
        }
    }

    fn reference(&self, rng: &mut Xoshiro256PlusPlus, is_extent: bool) -> f64 {
        match rng.random_range(0..20) {
            0 if self.hostile[1] => pick(rng, &HOSTILE),
            1 => pick(rng, &[0.0, 0.25, 0.5, 1.0]),
            _ if is_extent => rng.random_range(-0.05..0.6),
            _ => rng.random_range(-0.2..1.2),
        }
    }

    fn offset(&self, rng: &mut Xoshiro256PlusPlus, boxes: bool) -> f64 {
        match rng.random_range(0..20) {
            0 if self.hostile[2] => pick(rng, &HOSTILE),
            // From pixel centres to others, and to the borders between them.
            1 | 2 => rng.random_range(-8..=8) as f64 * 0.5,
            _ if boxes => rng.random_range(-6.0..6.0),
            _ => rng.random_range(-4.0..4.0),
        }
    }

    fn logit(&self, rng: &mut Xoshiro256PlusPlus) -> f64 {
        match rng.random_range(0..100) {
            0 if self.hostile[3] => pick(rng, &HOSTILE),
            1..10 => rng.random_range(-40.0..40.0),
            10 => -300.0,
            11..15 => 0.0,
            _ => rng.random_range(-3.0..3.0),
        }
    }
}
