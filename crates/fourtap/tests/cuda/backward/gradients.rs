//! The gradients are the derivatives of forward: finite differences in f64, both computed on the device.

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::Levels;
use fourtap::verify::{Case, CudaCase, GradientSelection, LevelsIn, Storage, Tensor};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use super::tensors::NAMES;
use crate::gpu;

const STEP: f64 = 1e-6;

const SHAPES: [(usize, usize); 2] = [(4, 5), (2, 3)];

fn point(channels: usize) -> Case {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(channels as u64);
    let levels = Levels::packed(&SHAPES).unwrap();
    let (q, m, l, p) = (3, 2, SHAPES.len(), 2);
    let mut locations = Vec::new();
    for sample in 0..q * m * l * p {
        let (height, width) = SHAPES[sample / p % l];
        for size in [width, height] {
            // Off the pixels' centres, where the derivative jumps; from outside one edge to outside the other.
            let pixel = rng.random_range(-1..size as i32) as f64 + rng.random_range(0.1..0.9);
            locations.push((pixel + 0.5) / size as f64);
        }
    }
    let mut random = |shape: &[usize]| {
        let numbers: Vec<f64> = (0..shape.iter().product())
            .map(|_: usize| rng.random_range(-1.0..1.0))
            .collect();
        Tensor::dense(numbers, shape)
    };
    Case {
        seed: channels as u64,
        value: random(&[1, levels.pixels(), m, channels]),
        sampling_locations: Tensor::dense(locations, &[1, q, m, l, p, 2]),
        attention_weights: random(&[1, q, m, l, p]),
        grad_out: random(&[1, q, m * channels]),
        outputs: [3, 4, 6, 5].map(Storage::dense),
        levels,
    }
}

/// The case with one element of one tensor moved.
fn moved(case: &Case, tensor: usize, index: usize, by: f64) -> Case {
    let mut case = case.clone();
    let changed = match tensor {
        0 => &mut case.value,
        1 => &mut case.sampling_locations,
        _ => &mut case.attention_weights,
    };
    let mut numbers = changed.to_f64();
    numbers[index] += by;
    let shape = changed.shape();
    *changed = Tensor::dense(numbers, shape.sizes());
    case
}

/// `grad_out` times the output: the number whose gradients backward computes.
fn loss(case: &Case, cuda: Cuda) -> f64 {
    let out = CudaCase::new(case, cuda).unwrap().forward(LevelsIn::Host);
    let (out, grad_out) = (out.unwrap().to_f64(), case.grad_out.to_f64());
    out.iter()
        .zip(&grad_out)
        .map(|(out, grad)| out * grad)
        .sum()
}

#[test]
#[ignore = "needs a CUDA device"]
fn gradients_are_the_slopes_of_forward() {
    let cuda = gpu::device();
    [1, 3, 30, 32, 64, 71, 1025]
        .into_par_iter()
        .for_each(|channels| {
            let case = point(channels);
            let on_device = |cuda: Cuda| CudaCase::new(&case, cuda).unwrap();
            let settings = [
                (KernelChoice::Best, false),
                (KernelChoice::Best, true),
                (KernelChoice::Channel, true),
            ];
            let gradients = settings.map(|(wanted, deterministic)| {
                let cuda = cuda.with_msda(wanted).deterministic(deterministic);
                on_device(cuda)
                    .backward(LevelsIn::Host, GradientSelection::ALL)
                    .unwrap()
            });
            for (tensor, name) in NAMES.iter().enumerate() {
                let gradients = gradients
                    .each_ref()
                    .map(|all| all.named()[tensor].1.unwrap().to_f64());
                // Every entry of the small tensors, and about 100 of a large one.
                let count = gradients[0].len();
                for index in (0..count).step_by(count / 100 + 1) {
                    let shifted = |by: f64| loss(&moved(&case, tensor, index, by), cuda);
                    let slope = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
                    for (setting, gradient) in settings.iter().zip(&gradients) {
                        let found = gradient[index];
                        assert!(
                            (slope - found).abs() <= 1e-5 + 1e-6 * slope.abs(),
                            "D = {channels}, {setting:?}: {name}[{index}] is {found}, the slope {slope}"
                        );
                    }
                }
            }
        });
}
