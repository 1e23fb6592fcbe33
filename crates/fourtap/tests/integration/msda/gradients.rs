//! The gradients are the derivatives of forward: finite differences in f64, on every path.

use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, View, ViewMut};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const N: usize = 1;
const M: usize = 2;
const Q: usize = 3;
const P: usize = 2;
const LEVELS: [(usize, usize); 2] = [(4, 5), (2, 3)];
const STEP: f64 = 1e-6;

struct Point {
    levels: Levels,
    channels: usize,
    value: Vec<f64>,
    locations: Vec<f64>,
    weights: Vec<f64>,
    grad_out: Vec<f64>,
}

impl Point {
    fn new(channels: usize, seed: u64) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let levels = Levels::packed(&LEVELS).unwrap();
        let samples = N * Q * M * levels.len() * P;
        let mut random = |count: usize| -> Vec<f64> {
            (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
        };
        let value = random(N * levels.pixels() * M * channels);
        let weights = random(samples);
        let grad_out = random(N * Q * M * channels);
        let mut locations = Vec::new();
        for sample in 0..samples {
            let (height, width) = LEVELS[sample / P % LEVELS.len()];
            for size in [width, height] {
                // Off the pixels' centres, where the derivative jumps; from outside one edge to outside the other.
                let pixel = rng.random_range(-1..size as i32) as f64 + rng.random_range(0.1..0.9);
                locations.push((pixel + 0.5) / size as f64);
            }
        }
        Point {
            levels,
            channels,
            value,
            locations,
            weights,
            grad_out,
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let l = self.levels.len();
        Inputs {
            value: View::new(&self.value, &[N, self.levels.pixels(), M, self.channels]),
            levels: (&self.levels).into(),
            sampling_locations: View::new(&self.locations, &[N, Q, M, l, P, 2]),
            attention_weights: View::new(&self.weights, &[N, Q, M, l, P]),
        }
    }

    /// `grad_out` times the output: the number whose gradients backward computes.
    fn loss(&self, backend: &Backend) -> f64 {
        let mut out = vec![f64::NAN; self.grad_out.len()];
        let shape = [N, Q, M * self.channels];
        msda::forward(backend, self.inputs(), ViewMut::new(&mut out, &shape)).unwrap();
        out.iter()
            .zip(&self.grad_out)
            .map(|(out, grad)| out * grad)
            .sum()
    }

    fn gradients(&self, backend: &Backend) -> [Vec<f64>; 3] {
        let l = self.levels.len();
        let [mut value, mut locations, mut weights] =
            [&self.value, &self.locations, &self.weights].map(|like| vec![f64::NAN; like.len()]);
        let gradients = Gradients {
            value: Some(ViewMut::new(
                &mut value,
                &[N, self.levels.pixels(), M, self.channels],
            )),
            sampling_locations: Some(ViewMut::new(&mut locations, &[N, Q, M, l, P, 2])),
            attention_weights: Some(ViewMut::new(&mut weights, &[N, Q, M, l, P])),
        };
        let grad_out = View::new(&self.grad_out, &[N, Q, M * self.channels]);
        msda::backward(backend, self.inputs(), grad_out, gradients).unwrap();
        [value, locations, weights]
    }
}

#[test]
fn gradients_are_the_slopes_of_forward() {
    for channels in [1, 3, 30, 32, 64, 71, 1025] {
        let mut point = Point::new(channels, channels as u64);
        for simd in Simd::available() {
            let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
            let gradients = point.gradients(&backend);
            for (tensor, gradient) in gradients.iter().enumerate() {
                // Every entry of the small tensors, and about 200 of a large one.
                for index in (0..gradient.len()).step_by(gradient.len() / 200 + 1) {
                    let mut shifted = |by: f64| {
                        let number = match tensor {
                            0 => &mut point.value[index],
                            1 => &mut point.locations[index],
                            _ => &mut point.weights[index],
                        };
                        let before = *number;
                        *number += by;
                        let loss = point.loss(&backend);
                        match tensor {
                            0 => point.value[index] = before,
                            1 => point.locations[index] = before,
                            _ => point.weights[index] = before,
                        }
                        loss
                    };
                    let slope = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
                    let found = gradient[index];
                    let name = ["value", "locations", "weights"][tensor];
                    assert!(
                        (slope - found).abs() <= 1e-5 + 1e-6 * slope.abs(),
                        "D = {channels}, {simd}: gradient of {name}[{index}] is {found}, the slope {slope}"
                    );
                }
            }
        }
    }
}
