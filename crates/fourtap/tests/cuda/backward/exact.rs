//! Small integers on pixel centres: sums without rounding, the same in any order, so that every kernel in every mode must
//! give what the CPU gives.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Plain;
use fourtap::msda::{self, Gradients, Inputs, Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{Backend, Element, Error, View, ViewMut, bf16, f16};

use super::oracle::SETTINGS;
use super::tensors::{BackwardProblem, NAMES};
use crate::gpu;
use crate::tensors::{OnDevice, Problem};

/// Such a problem, in host memory.
pub struct Integers<T> {
    pub levels: Levels,
    pub sizes: Sizes,
    value: Vec<T>,
    locations: Vec<f32>,
    weights: Vec<f32>,
    grad_out: Vec<T>,
}

impl<T: Element + Plain> Integers<T> {
    pub fn new() -> Self {
        let (height, width) = (8, 16);
        let levels = Levels::packed(&[(height, width)]).unwrap();
        let sizes = Sizes {
            images: 2,
            pixels: levels.pixels(),
            heads: 2,
            channels: 32,
            queries: 128,
            levels: 1,
            points: 4,
        };
        let samples = sizes.samples();
        let integers = |shape: &[usize], step: usize, size: usize| -> Vec<T> {
            (0..shape.iter().product())
                .map(|i: usize| T::from_f64((i * step % size) as f64 - (size / 2) as f64))
                .collect()
        };
        let centre =
            |i: usize, step: usize, size: usize| ((i * step % size) as f32 + 0.5) / size as f32;
        Integers {
            value: integers(&sizes.value(), 7, 31),
            locations: (0..samples)
                .flat_map(|i| [centre(i, 5, width), centre(i / 3, 3, height)])
                .collect(),
            weights: (0..samples).map(|i| (i % 5) as f32 - 2.0).collect(),
            grad_out: integers(&sizes.out(), 5, 13),
            levels,
            sizes,
        }
    }

    pub fn on_device(&self, cuda: &Cuda) -> BackwardProblem {
        let sizes = self.sizes;
        BackwardProblem {
            inputs: Problem {
                sizes,
                value: OnDevice::new(cuda, &self.value, &sizes.value()),
                locations: OnDevice::new(cuda, &self.locations, &sizes.sampling_locations()),
                weights: OnDevice::new(cuda, &self.weights, &sizes.attention_weights()),
            },
            grad_out: OnDevice::new(cuda, &self.grad_out, &sizes.out()),
        }
    }

    /// The gradients as the CPU computes them.
    pub fn expected(&self) -> [Vec<f64>; 3] {
        let sizes = self.sizes;
        let mut value = vec![T::default(); self.value.len()];
        let mut locations = vec![f32::NAN; self.locations.len()];
        let mut weights = vec![f32::NAN; self.weights.len()];
        let inputs = Inputs {
            value: View::new(&self.value, &sizes.value()),
            levels: (&self.levels).into(),
            sampling_locations: View::new(&self.locations, &sizes.sampling_locations()),
            attention_weights: View::new(&self.weights, &sizes.attention_weights()),
        };
        let gradients = Gradients {
            value: Some(ViewMut::new(&mut value, &sizes.value())),
            sampling_locations: Some(ViewMut::new(&mut locations, &sizes.sampling_locations())),
            attention_weights: Some(ViewMut::new(&mut weights, &sizes.attention_weights())),
        };
        let grad_out = View::new(&self.grad_out, &sizes.out());
        msda::backward(&Backend::Auto, inputs, grad_out, gradients).unwrap();
        [
            value.into_iter().map(Element::to_f64).collect(),
            locations.into_iter().map(f64::from).collect(),
            weights.into_iter().map(f64::from).collect(),
        ]
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn small_integers_on_pixel_centres_are_the_same_as_on_the_cpu() {
    let cuda = gpu::device();
    fn of_type<T: Element + Plain>(cuda: &Cuda) {
        let integers = Integers::<T>::new();
        let (problem, expected) = (integers.on_device(cuda), integers.expected());
        assert!(expected.iter().all(|all| all.iter().any(|&x| x != 0.0)));
        for (wanted, deterministic) in SETTINGS {
            let cuda = cuda.with_msda(wanted).deterministic(deterministic);
            let mut results = problem.results(&cuda);
            match problem.compute(
                &cuda,
                &integers.levels,
                &mut results,
                GradientSelection::ALL,
            ) {
                Err(Error::Unsupported { .. }) if T::DTYPE == fourtap::DType::F64 => continue,
                computed => computed.unwrap(),
            }
            gpu::wait(&cuda);
            let found = results.numbers::<T>();
            for ((name, found), expected) in NAMES.iter().zip(&found).zip(&expected) {
                assert!(
                    found == expected,
                    "{}, {wanted:?}, deterministic: {deterministic}: {name} is not what the CPU says",
                    T::DTYPE
                );
            }
        }
    }
    of_type::<f16>(&cuda);
    of_type::<bf16>(&cuda);
    of_type::<f32>(&cuda);
    of_type::<f64>(&cuda);
}
