//! The reference implementation of the operator, which every backend is checked against.
//!
//! With `R = f64` this is the reference. With `R = f32` the same code is the naive implementation whose error
//! sets the error tolerance. For both, coordinates rounded as [the operator](crate::msda) says decide which cell a point
//! falls in and whether it takes part; everything continuous is computed in `R`.

use crate::dtype::{DType, Real};
use crate::error::Result;
use crate::msda::{Backward, Inputs, Level, Problem};
pub use crate::oracle::Sum;
use crate::oracle::read;
use crate::place::Place;
use crate::tensor::View;

/// One neighbour of a sample that lies inside the level.
#[derive(Clone, Copy, Debug)]
pub struct Corner<R> {
    /// Index on axis S.
    pub pixel: usize,
    /// Bilinear weight of this neighbour.
    pub share: R,
    /// Derivative of that weight by the sampling location (x, y).
    pub slope: [R; 2],
}

/// One sampling point; all corners are `None` if it does not take part.
#[derive(Clone, Copy, Debug)]
pub struct Sample<R> {
    /// Index on axes L and P.
    pub place: [usize; 2],
    /// Its attention weight.
    pub weight: R,
    /// The four neighbours.
    pub corners: [Option<Corner<R>>; 4],
}

/// The neighbours of a point that lie inside the level; none if it does not take part. `rounded`, the place in pixels rounded
/// as the operator says, decides the cell; shares follow from the `exact` one. Slopes are by the place in pixels.
pub(crate) fn corners_around<R: Real>(
    level: &Level,
    exact: [R; 2],
    rounded: [f64; 2],
) -> [Option<Corner<R>>; 4] {
    let size = [level.width, level.height];
    let mut corners = [None; 4];
    if !(0..2).all(|xy| -1.0 < rounded[xy] && rounded[xy] < size[xy] as f64) {
        return corners;
    }
    let cell = rounded.map(f64::floor);
    for (i, corner) in corners.iter_mut().enumerate() {
        let side = [i % 2, i / 2];
        let at = [0, 1].map(|xy| cell[xy] as i64 + side[xy] as i64);
        if (0..2).any(|xy| at[xy] < 0 || at[xy] >= size[xy] as i64) {
            continue;
        }
        let share = [0, 1].map(|xy| {
            let past = exact[xy] - R::from_f64(cell[xy]);
            if side[xy] == 1 { past } else { R::ONE - past }
        });
        let slope = [0, 1].map(|xy| {
            if side[xy] == 1 {
                R::ONE
            } else {
                R::ZERO - R::ONE
            }
        });
        *corner = Some(Corner {
            pixel: level.start + at[1] as usize * level.width + at[0] as usize,
            share: share[0] * share[1],
            slope: [slope[0] * share[1], share[0] * slope[1]],
        });
    }
    corners
}

/// The three gradients, each in its tensor's own row-major order.
#[derive(Clone, Debug)]
pub struct Gradients<R> {
    /// `[N, S, M, D]`.
    pub value: Vec<Sum<R>>,
    /// `[N, Q, M, L, P, 2]`.
    pub sampling_locations: Vec<Sum<R>>,
    /// `[N, Q, M, L, P]`.
    pub attention_weights: Vec<Sum<R>>,
}

/// The output, `[N, Q, M*D]`.
pub fn forward<R: Real>(inputs: &Inputs<'_>) -> Result<Vec<Sum<R>>> {
    let reader = Reader::new(inputs)?;
    Ok(reader
        .rows()
        .flat_map(|row| reader.forward_row(row))
        .collect())
}

/// All gradients.
pub fn backward<R: Real>(inputs: &Inputs<'_>, grad_out: &View<'_>) -> Result<Gradients<R>> {
    let gradient_reader = GradientReader::new(inputs, grad_out)?;
    let reader = &gradient_reader.reader;
    let sizes = *reader.problem.sizes();
    let mut gradients = Gradients {
        value: vec![Sum::default(); sizes.value().iter().product()],
        sampling_locations: Vec::new(),
        attention_weights: Vec::new(),
    };
    for [n, q, m] in reader.rows() {
        let grad = gradient_reader.grad_out_row([n, q, m]);
        reader.each_sample([n, q, m], |sample: Sample<R>| {
            for corner in sample.corners.iter().flatten() {
                let first = ((n * sizes.pixels + corner.pixel) * sizes.heads + m) * sizes.channels;
                for (sum, &grad) in gradients.value[first..].iter_mut().zip(&grad) {
                    sum.add(sample.weight * corner.share * grad);
                }
            }
        });
        let (locations, weights) = gradient_reader.sample_gradients_row([n, q, m]);
        gradients
            .sampling_locations
            .extend(locations.into_iter().flatten());
        gradients.attention_weights.extend(weights);
    }
    Ok(gradients)
}

/// Checked inputs that can be read one element at a time.
pub struct Reader<'a> {
    problem: Problem,
    inputs: Inputs<'a>,
}

impl<'a> Reader<'a> {
    /// Checks the inputs.
    pub fn new(inputs: &Inputs<'a>) -> Result<Self> {
        let problem = Problem::new(inputs)?;
        problem.expect_in(Place::Host)?;
        Ok(Reader {
            problem,
            inputs: *inputs,
        })
    }

    /// The checked problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Every (image, query, head), in the order of `out`.
    pub fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let sizes = *self.problem.sizes();
        let (queries, heads) = (sizes.queries, sizes.heads);
        (0..sizes.images * queries * heads)
            .map(move |i| [i / heads / queries, i / heads % queries, i % heads])
    }

    /// Calls `visit` with the samples of one (image, query, head), by level, then by point.
    pub fn each_sample<R: Real>(&self, [n, q, m]: [usize; 3], mut visit: impl FnMut(Sample<R>)) {
        let points = self.problem.sizes().points;
        for (l, level) in self.problem.levels().iter().enumerate() {
            let size = [level.width, level.height];
            for p in 0..points {
                let location =
                    [0, 1].map(|xy| read(&self.inputs.sampling_locations, [n, q, m, l, p, xy]));
                let weight = R::from_f64(read(&self.inputs.attention_weights, [n, q, m, l, p]));
                let rounded = [0, 1].map(|xy| self.rounded_coordinate(location[xy], size[xy]));
                let exact = [0, 1].map(|xy| {
                    R::from_f64(location[xy]).fused(R::from_f64(size[xy] as f64), R::ZERO - R::HALF)
                });
                let mut corners = corners_around(level, exact, rounded);
                for corner in corners.iter_mut().flatten() {
                    // By the location, not by pixels.
                    for (slope, size) in corner.slope.iter_mut().zip(size) {
                        *slope = *slope * R::from_f64(size as f64);
                    }
                }
                visit(Sample {
                    place: [l, p],
                    weight,
                    corners,
                });
            }
        }
    }

    /// The D outputs of one (image, query, head).
    pub fn forward_row<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<Sum<R>> {
        let mut out = vec![Sum::default(); self.problem.sizes().channels];
        self.each_sample([n, q, m], |sample: Sample<R>| {
            for corner in sample.corners.iter().flatten() {
                for (d, sum) in out.iter_mut().enumerate() {
                    sum.add(sample.weight * corner.share * self.value([n, corner.pixel, m, d]));
                }
            }
        });
        out
    }

    /// `x * W - 0.5`, rounded once to the type coordinates are computed in.
    fn rounded_coordinate(&self, location: f64, size: usize) -> f64 {
        match self.inputs.value.dtype() {
            DType::F64 => location.mul_add(size as f64, -0.5),
            _ => (location as f32).mul_add(size as f32, -0.5) as f64,
        }
    }

    fn value<R: Real>(&self, index: [usize; 4]) -> R {
        R::from_f64(read(&self.inputs.value, index))
    }
}

/// Checked inputs and `grad_out`.
pub struct GradientReader<'a> {
    reader: Reader<'a>,
    grad_out: View<'a>,
}

impl<'a> GradientReader<'a> {
    /// Checks the inputs and `grad_out`.
    pub fn new(inputs: &Inputs<'a>, grad_out: &View<'a>) -> Result<Self> {
        let call = Backward::new(*inputs, *grad_out, Default::default())?;
        call.problem.expect_in(Place::Host)?;
        Ok(GradientReader {
            reader: Reader {
                problem: call.problem,
                inputs: *inputs,
            },
            grad_out: *grad_out,
        })
    }

    /// Gradients of the locations (x, y) and weights of one (image, query, head).
    pub fn sample_gradients_row<R: Real>(
        &self,
        [n, q, m]: [usize; 3],
    ) -> (Vec<[Sum<R>; 2]>, Vec<Sum<R>>) {
        let grad = self.grad_out_row([n, q, m]);
        let (mut locations, mut weights) = (Vec::new(), Vec::new());
        self.reader.each_sample([n, q, m], |sample: Sample<R>| {
            let (mut location, mut weight) = ([Sum::default(); 2], Sum::default());
            for corner in sample.corners.iter().flatten() {
                for (d, &grad) in grad.iter().enumerate() {
                    let value = self.reader.value([n, corner.pixel, m, d]);
                    weight.add(corner.share * value * grad);
                    for (sum, slope) in location.iter_mut().zip(corner.slope) {
                        sum.add(sample.weight * slope * value * grad);
                    }
                }
            }
            locations.push(location);
            weights.push(weight);
        });
        (locations, weights)
    }

    /// The D gradients of one (image, pixel, head) of `value`.
    pub fn grad_value_at<R: Real>(&self, [n, s, m]: [usize; 3]) -> Vec<Sum<R>> {
        let mut sums = vec![Sum::default(); self.reader.problem.sizes().channels];
        for q in 0..self.reader.problem.sizes().queries {
            self.reader.each_sample([n, q, m], |sample: Sample<R>| {
                for corner in sample
                    .corners
                    .iter()
                    .flatten()
                    .filter(|corner| corner.pixel == s)
                {
                    for (sum, grad) in sums.iter_mut().zip(self.grad_out_row([n, q, m])) {
                        sum.add(sample.weight * corner.share * grad);
                    }
                }
            });
        }
        sums
    }

    fn grad_out_row<R: Real>(&self, [n, q, m]: [usize; 3]) -> Vec<R> {
        let channels = self.reader.problem.sizes().channels;
        (0..channels)
            .map(|d| R::from_f64(read(&self.grad_out, [n, q, m * channels + d])))
            .collect()
    }
}
