//! The reference implementation of [the operator](super), which every backend is checked against.
//!
//! With `R = f64` this is the reference. With `R = f32` the same code is the naive implementation whose error sets the
//! error tolerance. For both, coordinates rounded as the operator says decide which cell a point falls in and whether it
//! takes part; everything continuous is computed in `R`.

use super::{Interpolation, ProjectedBackward, ProjectedProblem, Projections};
use crate::dtype::{DType, Real};
use crate::error::Result;
use crate::msda::Level;
use crate::msda::oracle::{Corner, corners_around};
pub use crate::oracle::Sum;
use crate::oracle::read;
use crate::place::Place;
use crate::tensor::View;

/// The four gradients, each in its tensor's own row-major order.
#[derive(Clone, Debug)]
pub struct Gradients<R> {
    /// `[N, S, M, D]`.
    pub value: Vec<Sum<R>>,
    /// In the shape of `reference_points`.
    pub reference_points: Vec<Sum<R>>,
    /// `[N, Q, M, K, 2]`.
    pub sampling_offsets: Vec<Sum<R>>,
    /// `[N, Q, M, K]`.
    pub attention_logits: Vec<Sum<R>>,
}

/// The output, `[N, Q, M*D]`.
pub fn forward<R: Real>(inputs: &Projections<'_>) -> Result<Vec<Sum<R>>> {
    let reader = Reader::new(inputs)?;
    Ok(reader
        .rows()
        .flat_map(|row| reader.forward_row(row))
        .collect())
}

/// All gradients.
pub fn backward<R: Real>(inputs: &Projections<'_>, grad_out: &View<'_>) -> Result<Gradients<R>> {
    let gradient_reader = GradientReader::new(inputs, grad_out)?;
    let reader = &gradient_reader.reader;
    let sizes = *reader.problem.sizes();
    let references = inputs.reference_points.shape().elements().unwrap_or(0);
    let mut value = vec![Sum::default(); sizes.value().iter().product()];
    let mut reference_points = vec![Sum::default(); references];
    let (mut sampling_offsets, mut attention_logits) = (Vec::new(), Vec::new());
    for [n, q, m] in reader.rows() {
        let row = gradient_reader.row([n, q, m]);
        for (pixel, d, term) in row.by_value {
            let at = ((n * sizes.pixels + pixel) * sizes.heads + m) * sizes.channels + d;
            value[at].add(term);
        }
        for (index, sum) in row.by_reference {
            add(&mut reference_points[reader.flat(&index)], sum);
        }
        sampling_offsets.extend(row.sampling_offsets);
        attention_logits.extend(row.attention_logits);
    }
    Ok(Gradients {
        value,
        reference_points,
        sampling_offsets,
        attention_logits,
    })
}

/// One sampling point.
struct Sample<R> {
    level: usize,
    point: usize,
    /// The neighbours that take part; slopes are by the place in pixels.
    corners: Vec<Corner<R>>,
    /// By x and y: how far the point moves, in pixels, with its offset.
    by_offset: [R; 2],
    /// With the width and height of its box.
    by_size: [R; 2],
    /// With its reference point.
    by_reference: [R; 2],
}

/// Checked inputs that can be read one element at a time.
pub struct Reader<'a> {
    problem: ProjectedProblem,
    inputs: Projections<'a>,
}

impl<'a> Reader<'a> {
    /// Checks the inputs.
    pub fn new(inputs: &Projections<'a>) -> Result<Self> {
        let problem = ProjectedProblem::new(inputs)?;
        problem.expect_in(Place::Host)?;
        Ok(Reader {
            problem,
            inputs: *inputs,
        })
    }

    /// The checked problem.
    pub fn problem(&self) -> &ProjectedProblem {
        &self.problem
    }

    /// The pixels, on axis S, that one (image, query, head) reads.
    pub fn pixels(&self, row: [usize; 3]) -> Vec<usize> {
        let samples = self.samples::<f64>(row);
        let corners = samples.iter().flat_map(|sample| &sample.corners);
        corners.map(|corner| corner.pixel).collect()
    }

    /// Every (image, query, head), in the order of `out`.
    pub fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let sizes = *self.problem.sizes();
        let (queries, heads) = (sizes.queries, sizes.heads);
        (0..sizes.images * queries * heads)
            .map(move |i| [i / heads / queries, i / heads % queries, i % heads])
    }

    /// The index of a point's coordinate in `reference_points`.
    fn reference_index(
        &self,
        [n, q]: [usize; 2],
        [level, point]: [usize; 2],
        coordinate: usize,
    ) -> Vec<usize> {
        let shape = self.inputs.reference_points.shape();
        let mut index = vec![n, q, level];
        if shape.rank() == 5 {
            index.push(point % self.problem.references().turns);
        }
        for (index, &size) in index.iter_mut().zip(shape.sizes()) {
            *index = if size == 1 { 0 } else { *index };
        }
        index.push(coordinate);
        index
    }

    fn reference(&self, row: [usize; 2], place: [usize; 2], coordinate: usize) -> f64 {
        let index = self.reference_index(row, place, coordinate);
        match *index.as_slice() {
            [a, b, c, d] => read(&self.inputs.reference_points, [a, b, c, d]),
            [a, b, c, d, e] => read(&self.inputs.reference_points, [a, b, c, d, e]),
            _ => unreachable!("checked with the call"),
        }
    }

    /// The softmax of the logits of a row.
    fn weights<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<R> {
        let logits: Vec<R> = (0..self.problem.samples())
            .map(|k| R::from_f64(read(&self.inputs.attention_logits, [n, q, m, k])))
            .collect();
        let mut most = R::NEG_INFINITY;
        for &logit in &logits {
            most = if logit > most { logit } else { most };
        }
        let powers: Vec<R> = logits.iter().map(|&logit| (logit - most).exp()).collect();
        let mut sum = R::ZERO;
        for &power in &powers {
            sum += power;
        }
        powers.into_iter().map(|power| power / sum).collect()
    }

    /// The samples of one (image, query, head), by level, then by point.
    fn samples<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<Sample<R>> {
        let problem = &self.problem;
        let boxes = problem.references().boxes;
        let mut samples = Vec::with_capacity(problem.samples());
        for (l, level) in problem.levels().iter().enumerate() {
            let size = [level.width, level.height];
            for point in 0..problem.points(l) {
                let k = problem.first_samples()[l] + point;
                let factor = problem.factors()[l];
                let mut sample = Sample {
                    level: l,
                    point,
                    corners: Vec::new(),
                    by_offset: [R::ONE; 2],
                    by_size: [R::ZERO; 2],
                    by_reference: [R::ZERO; 2],
                };
                let (mut exact, mut rounded) = ([R::ZERO; 2], [0.0; 2]);
                for xy in 0..2 {
                    let offset = read(&self.inputs.sampling_offsets, [n, q, m, k, xy]);
                    let reference = self.reference([n, q], [l, point], xy);
                    let extent = boxes.then(|| self.reference([n, q], [l, point], 2 + xy));
                    let (offset_r, size_r) = (R::from_f64(offset), R::from_f64(size[xy] as f64));
                    if let Some(extent) = extent {
                        let step = size_r * R::from_f64(factor);
                        sample.by_offset[xy] = R::from_f64(extent) * step;
                        sample.by_size[xy] = offset_r * step;
                    }
                    sample.by_reference[xy] = size_r;
                    let moved = offset_r * sample.by_offset[xy];
                    exact[xy] = R::from_f64(reference).fused(size_r, moved - R::HALF);
                    rounded[xy] = match self.inputs.value.dtype() {
                        DType::F64 => {
                            self.rounded::<f64>(offset, reference, extent, size[xy], factor)
                        }
                        _ => self.rounded::<f32>(offset, reference, extent, size[xy], factor),
                    };
                }
                sample.corners = match problem.interpolation() {
                    Interpolation::Bilinear => corners_around(level, exact, rounded)
                        .into_iter()
                        .flatten()
                        .collect(),
                    Interpolation::Nearest => nearest(level, rounded).into_iter().collect(),
                };
                samples.push(sample);
            }
        }
        samples
    }

    /// The place in pixels, or for the nearest pixel the number that is cut off, rounded as the operator says.
    fn rounded<R: Real>(
        &self,
        offset: f64,
        reference: f64,
        extent: Option<f64>,
        size: usize,
        factor: f64,
    ) -> f64 {
        let (offset, size) = (R::from_f64(offset), R::from_f64(size as f64));
        let moved = match extent {
            Some(extent) => offset * (R::from_f64(extent) * (size * R::from_f64(factor))),
            None => offset,
        };
        let addend = match self.problem.interpolation() {
            Interpolation::Bilinear => moved - R::HALF,
            Interpolation::Nearest => moved + R::HALF,
        };
        R::from_f64(reference).fused(size, addend).to_f64()
    }

    fn is_masked(&self, n: usize, pixel: usize) -> bool {
        // SAFETY: the mask was checked with the call to be in host memory and of shape [N, S].
        (self.inputs.value_mask.as_ref()).is_some_and(|mask| unsafe { mask.get([n, pixel]) })
    }

    /// The D outputs of one (image, query, head).
    pub fn forward_row<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<Sum<R>> {
        let mut out = vec![Sum::default(); self.problem.sizes().channels];
        let weights: Vec<R> = self.weights([n, q, m]);
        for (sample, weight) in self.samples::<R>([n, q, m]).iter().zip(weights) {
            for corner in &sample.corners {
                for (d, sum) in out.iter_mut().enumerate() {
                    sum.add(weight * corner.share * self.value([n, corner.pixel, m, d]));
                }
            }
        }
        out
    }

    /// An index of `reference_points` in row-major order.
    fn flat(&self, index: &[usize]) -> usize {
        let shape = self.inputs.reference_points.shape();
        index
            .iter()
            .zip(shape.sizes())
            .fold(0, |flat, (&index, &size)| flat * size + index)
    }

    fn value<R: Real>(&self, index: [usize; 4]) -> R {
        match !self.inputs.mask_is_applied && self.is_masked(index[0], index[1]) {
            true => R::ZERO,
            false => R::from_f64(read(&self.inputs.value, index)),
        }
    }
}

/// Checked inputs and `grad_out`.
pub struct GradientReader<'a> {
    reader: Reader<'a>,
    grad_out: View<'a>,
}

/// What one (image, query, head) adds to the gradients.
pub struct RowGradients<R> {
    /// Of its K points, x and y each.
    pub sampling_offsets: Vec<Sum<R>>,
    /// Of its K logits.
    pub attention_logits: Vec<Sum<R>>,
    /// Pixel on axis S, channel, and what is added there.
    by_value: Vec<(usize, usize, R)>,
    /// Index in `reference_points`, and what is added there.
    by_reference: Vec<(Vec<usize>, Sum<R>)>,
}

impl<'a> GradientReader<'a> {
    /// Checks the inputs and `grad_out`.
    pub fn new(inputs: &Projections<'a>, grad_out: &View<'a>) -> Result<Self> {
        let call = ProjectedBackward::new(*inputs, *grad_out, Default::default())?;
        call.problem.expect_in(Place::Host)?;
        Ok(GradientReader {
            reader: Reader {
                problem: call.problem,
                inputs: *inputs,
            },
            grad_out: *grad_out,
        })
    }

    /// The D gradients of one (image, pixel, head) of `value`.
    pub fn grad_value_at<R: Real>(&self, [n, s, m]: [usize; 3]) -> Vec<Sum<R>> {
        let sizes = self.reader.problem.sizes();
        let mut sums = vec![Sum::default(); sizes.channels];
        if self.reader.is_masked(n, s) {
            return sums;
        }
        for q in 0..sizes.queries {
            let weights: Vec<R> = self.reader.weights([n, q, m]);
            for (sample, weight) in self.reader.samples([n, q, m]).iter().zip(weights) {
                for corner in sample.corners.iter().filter(|corner| corner.pixel == s) {
                    for (sum, grad) in sums.iter_mut().zip(self.grad_out_row([n, q, m])) {
                        sum.add(weight * corner.share * grad);
                    }
                }
            }
        }
        sums
    }

    /// The gradients of all levels, points and coordinates of one (image, query) of `reference_points`, where an axis of size
    /// 1 has index 0 and stands for every image or query.
    pub fn grad_references_at<R: Real>(&self, [n, q]: [usize; 2]) -> Vec<Sum<R>> {
        let sizes = self.reader.problem.sizes();
        let shape = self.reader.inputs.reference_points.shape();
        let of_axis = |axis: usize, index: usize, size: usize| match shape.sizes()[axis] {
            1 => 0..size,
            _ => index..index + 1,
        };
        let length = shape.sizes()[2..].iter().product();
        let mut sums = vec![Sum::default(); length];
        for n in of_axis(0, n, sizes.images) {
            for q in of_axis(1, q, sizes.queries) {
                for m in 0..sizes.heads {
                    for (index, sum) in self.row::<R>([n, q, m]).by_reference {
                        add(&mut sums[self.reader.flat(&index) % length], sum);
                    }
                }
            }
        }
        sums
    }

    /// What one (image, query, head) adds to the gradients.
    pub fn row<R: Real>(&self, [n, q, m]: [usize; 3]) -> RowGradients<R> {
        let reader = &self.reader;
        let grad: Vec<R> = self.grad_out_row([n, q, m]);
        let weights: Vec<R> = reader.weights([n, q, m]);
        let samples = reader.samples::<R>([n, q, m]);
        let mut by_weight = vec![Sum::<R>::default(); samples.len()];
        let mut row = RowGradients {
            sampling_offsets: Vec::new(),
            attention_logits: Vec::new(),
            by_value: Vec::new(),
            by_reference: Vec::new(),
        };
        for (k, (sample, &weight)) in samples.iter().zip(&weights).enumerate() {
            let mut by_place = [Sum::<R>::default(); 2];
            for corner in &sample.corners {
                let masked = reader.is_masked(n, corner.pixel);
                for (d, &grad) in grad.iter().enumerate() {
                    if !masked {
                        let term = weight * corner.share * grad;
                        row.by_value.push((corner.pixel, d, term));
                    }
                    let value: R = reader.value([n, corner.pixel, m, d]);
                    by_weight[k].add(corner.share * value * grad);
                    for (sum, slope) in by_place.iter_mut().zip(corner.slope) {
                        sum.add(weight * slope * value * grad);
                    }
                }
            }
            // A point that takes no part, or reads the nearest pixel, moves nothing: be the numbers what they may.
            let moves = !sample.corners.is_empty()
                && reader.problem.interpolation() == Interpolation::Bilinear;
            for xy in 0..2 {
                let by = |factor: R| match moves {
                    true => scaled(by_place[xy], factor),
                    false => Sum::default(),
                };
                row.sampling_offsets.push(by(sample.by_offset[xy]));
                let place = [sample.level, sample.point];
                let mut add_at = |coordinate: usize, factor: R| {
                    let index = reader.reference_index([n, q], place, coordinate);
                    row.by_reference.push((index, by(factor)));
                };
                add_at(xy, sample.by_reference[xy]);
                if reader.problem.references().boxes {
                    add_at(2 + xy, sample.by_size[xy]);
                }
            }
        }
        // The logits move all weights, whose sum stays 1.
        let mut mean = Sum::<R>::default();
        for (by_weight, &weight) in by_weight.iter().zip(&weights) {
            add(&mut mean, scaled(*by_weight, weight));
        }
        for (by_weight, &weight) in by_weight.iter().zip(&weights) {
            row.attention_logits.push(Sum {
                total: weight * (by_weight.total - mean.total),
                mass: weight * (by_weight.mass + mean.mass),
            });
        }
        row
    }

    fn grad_out_row<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<R> {
        let channels = self.reader.problem.sizes().channels;
        (0..channels)
            .map(|d| R::from_f64(read(&self.grad_out, [n, q, m * channels + d])))
            .collect()
    }
}

/// The one pixel that is read: the one that `number` is cut off to, moved to the border. NaN reads none.
fn nearest<R: Real>(level: &Level, number: [f64; 2]) -> Option<Corner<R>> {
    let size = [level.width, level.height];
    if number.iter().any(|number| number.is_nan()) || level.pixels() == 0 {
        return None;
    }
    let [x, y] = [0, 1].map(|xy| number[xy].clamp(0.0, (size[xy] - 1) as f64).trunc() as usize);
    Some(Corner {
        pixel: level.start + y * level.width + x,
        share: R::ONE,
        slope: [R::ZERO; 2],
    })
}

fn scaled<R: Real>(sum: Sum<R>, factor: R) -> Sum<R> {
    Sum {
        total: sum.total * factor,
        mass: sum.mass * factor.magnitude(),
    }
}

fn add<R: Real>(sum: &mut Sum<R>, other: Sum<R>) {
    sum.total += other.total;
    sum.mass += other.mass;
}
