//! A problem whose numbers can be changed one by one.

use fourtap::msda::Levels;
use fourtap::msda::projections::{
    self, BoxScale, Interpolation, Points, ProjectionGradients, Projections,
};
use fourtap::{Backend, BoolView, Element, View, ViewMut};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Images, queries, heads and channels.
#[derive(Clone, Copy)]
pub struct Size {
    pub n: usize,
    pub q: usize,
    pub m: usize,
    pub d: usize,
}

#[derive(Clone)]
pub struct Example<T> {
    pub size: Size,
    pub levels: Levels,
    pub points: Vec<usize>,
    pub reference_shape: Vec<usize>,
    pub box_scale: Option<f64>,
    pub interpolation: Interpolation,
    pub mask: Option<Vec<bool>>,
    /// Value, reference points, offsets and logits.
    pub inputs: [Vec<T>; 4],
    pub grad_out: Vec<T>,
}

/// What the inputs are called.
pub const NAMES: [&str; 4] = [
    "value",
    "reference_points",
    "sampling_offsets",
    "attention_logits",
];

/// Results: `out`, and the gradients of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Results<T> {
    pub out: Vec<T>,
    pub gradients: [Vec<T>; 4],
}

impl<T: Element> Example<T> {
    /// Points lie inside or near their levels, off the centres of pixels, where the derivative jumps.
    pub fn new(
        size: Size,
        shapes: &[(usize, usize)],
        points: &[usize],
        reference_shape: &[usize],
        seed: u64,
    ) -> Self {
        let Size { n, q, m, d } = size;
        let levels = Levels::packed(shapes).unwrap();
        let samples: usize = points.iter().sum();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut random = |count: usize, low: f64, high: f64| -> Vec<T> {
            (0..count)
                .map(|_| T::from_f64(rng.random_range(low..high)))
                .collect()
        };
        let value = random(n * levels.pixels() * m * d, -1.0, 1.0);
        let references = random(reference_shape.iter().product(), 0.3, 0.7);
        let logits = random(n * q * m * samples, -2.0, 2.0);
        let grad_out = random(n * q * m * d, -1.0, 1.0);
        let mut example = Example {
            size,
            levels,
            points: points.to_vec(),
            reference_shape: reference_shape.to_vec(),
            box_scale: None,
            interpolation: Interpolation::Bilinear,
            mask: None,
            inputs: [value, references, Vec::new(), logits],
            grad_out,
        };
        for row in 0..n * q * m {
            let (image, query) = (row / m / q, row / m % q);
            for (l, &(height, width)) in shapes.iter().enumerate() {
                for point in 0..points[l] {
                    for (xy, size) in [width, height].into_iter().enumerate() {
                        let place =
                            rng.random_range(-1..size as i32) as f64 + rng.random_range(0.1..0.9);
                        let [centre, step] = example.reference([image, query, l, point], xy);
                        let offset = (place + 0.5 - centre * size as f64) / step;
                        example.inputs[2].push(T::from_f64(offset));
                    }
                }
            }
        }
        example
    }

    pub fn boxes(&self) -> bool {
        *self.reference_shape.last().unwrap() == 4
    }

    /// x or y of a point's reference, and by how many pixels an offset of 1 moves it.
    pub fn reference(&self, [n, q, l, p]: [usize; 4], xy: usize) -> [f64; 2] {
        let shape = &self.reference_shape;
        let turns = if shape.len() == 5 { shape[3] } else { 1 };
        let mut first = 0;
        for (index, &size) in [n, q, l].iter().zip(shape) {
            first = first * size + index % size;
        }
        let first = (first * turns + p % turns) * shape.last().unwrap();
        let number = |coordinate: usize| self.inputs[1][first + coordinate].to_f64();
        let level = self.levels[l];
        let size = [level.width, level.height][xy] as f64;
        let factor = self.box_scale.unwrap_or(0.5 / self.points[l] as f64);
        let step = match self.boxes() {
            true => number(2 + xy) * size * factor,
            false => 1.0,
        };
        [number(xy), step]
    }

    pub fn samples(&self) -> usize {
        self.points.iter().sum()
    }

    /// The shapes of the inputs.
    pub fn shapes(&self) -> [Vec<usize>; 4] {
        let Size { n, q, m, d } = self.size;
        [
            vec![n, self.levels.pixels(), m, d],
            self.reference_shape.clone(),
            vec![n, q, m, self.samples(), 2],
            vec![n, q, m, self.samples()],
        ]
    }

    pub fn out_shape(&self) -> [usize; 3] {
        let Size { n, q, m, d } = self.size;
        [n, q, m * d]
    }

    pub fn call(&self) -> Projections<'_> {
        let shapes = self.shapes();
        let view = |input: usize| View::new(&self.inputs[input], &shapes[input]);
        let mask_shape = [self.size.n, self.levels.pixels()];
        Projections {
            value: view(0),
            levels: (&self.levels).into(),
            reference_points: view(1),
            sampling_offsets: view(2),
            attention_logits: view(3),
            points: Points::Listed(&self.points),
            value_mask: (self.mask.as_ref()).map(|mask| BoolView::new(mask, &mask_shape)),
            mask_is_applied: false,
            interpolation: self.interpolation,
            box_scale: self.box_scale.map_or(BoxScale::HalfBox, BoxScale::Each),
        }
    }

    pub fn grad_out(&self) -> View<'_> {
        View::new(&self.grad_out, &self.out_shape())
    }

    pub fn forward(&self, backend: &Backend) -> Vec<T> {
        let mut out = vec![T::from_f64(f64::NAN); self.grad_out.len()];
        let view = ViewMut::new(&mut out, &self.out_shape());
        projections::forward(backend, self.call(), view).unwrap();
        out
    }

    /// The gradients that are wanted; NaN for the others.
    pub fn backward(&self, backend: &Backend, wanted: [bool; 4]) -> [Vec<T>; 4] {
        let nan = T::from_f64(f64::NAN);
        let mut gradients = [0, 1, 2, 3].map(|input| vec![nan; self.inputs[input].len()]);
        let shapes = self.shapes();
        let [value, references, offsets, logits] = &mut gradients;
        let views = ProjectionGradients {
            value: wanted[0].then(|| ViewMut::new(value, &shapes[0])),
            reference_points: wanted[1].then(|| ViewMut::new(references, &shapes[1])),
            sampling_offsets: wanted[2].then(|| ViewMut::new(offsets, &shapes[2])),
            attention_logits: wanted[3].then(|| ViewMut::new(logits, &shapes[3])),
        };
        projections::backward(backend, self.call(), self.grad_out(), views).unwrap();
        gradients
    }

    pub fn run(&self, backend: &Backend) -> Results<T> {
        Results {
            out: self.forward(backend),
            gradients: self.backward(backend, [true; 4]),
        }
    }
}
