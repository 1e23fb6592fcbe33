//! Results are bitwise equal for any number of threads, and from run to run.

use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::verify::{Storage, Tensor};
use fourtap::{Backend, DType};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// A problem large enough to be split, with many points on few pixels, where the order of sums would show.
struct CrowdedProblem {
    levels: Levels,
    tensors: [Tensor; 4],
}

const SHAPE: [usize; 7] = [2, 2, 24, 700, 3, 5, 1]; // N, M, D, Q, L, P, one level of a single pixel

impl CrowdedProblem {
    fn new(dtype: DType) -> Self {
        let [n, m, d, q, l, p, one] = SHAPE;
        let levels = Levels::packed(&[(40, 50), (20, 25), (one, one)]).unwrap();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(7);
        let mut tensor = |dtype, shape: &[usize], low: f64, high: f64| {
            Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), || {
                rng.random_range(low..high)
            })
        };
        let tensors = [
            tensor(dtype, &[n, levels.pixels(), m, d], -1.0, 1.0),
            tensor(DType::F32, &[n, q, m, l, p, 2], 0.3, 0.6),
            tensor(DType::F32, &[n, q, m, l, p], 0.0, 1.0),
            tensor(dtype, &[n, q, m * d], -1.0, 1.0),
        ];
        CrowdedProblem { levels, tensors }
    }

    /// The bits of `out` and the three gradients.
    fn run(&self, simd: Simd) -> [Vec<u64>; 4] {
        let [value, locations, weights, grad_out] = &self.tensors;
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        let inputs = Inputs {
            value: value.view(),
            levels: (&self.levels).into(),
            sampling_locations: locations.view(),
            attention_weights: weights.view(),
        };
        let poisoned = |like: &Tensor| {
            let shape = like.shape();
            Tensor::poisoned(like.dtype(), shape.sizes(), &Storage::dense(shape.rank()))
        };
        let mut out = poisoned(grad_out);
        msda::forward(&backend, inputs, out.view_mut()).unwrap();
        let mut gradients = [poisoned(value), poisoned(locations), poisoned(weights)];
        let [of_value, of_locations, of_weights] = &mut gradients;
        let wanted = Gradients {
            value: Some(of_value.view_mut()),
            sampling_locations: Some(of_locations.view_mut()),
            attention_weights: Some(of_weights.view_mut()),
        };
        msda::backward(&backend, inputs, grad_out.view(), wanted).unwrap();
        [
            out.bits(),
            gradients[0].bits(),
            gradients[1].bits(),
            gradients[2].bits(),
        ]
    }
}

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

#[test]
fn results_are_bitwise_equal_for_any_number_of_threads() {
    for dtype in DType::ALL {
        let problem = CrowdedProblem::new(dtype);
        for simd in Simd::available() {
            let one = with_threads(1, || problem.run(simd));
            for threads in [2, 3, 8, 37] {
                let many = with_threads(threads, || problem.run(simd));
                for (tensor, (one, many)) in ["out", "grad_value", "grad_locations", "grad_weights"]
                    .iter()
                    .zip(one.iter().zip(&many))
                {
                    assert!(
                        one == many,
                        "{tensor} of {dtype} on {simd} differs between 1 and {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn two_hundred_and_fifty_runs_are_bitwise_equal() {
    let problem = CrowdedProblem::new(DType::F32);
    let first = with_threads(4, || problem.run(Simd::best()));
    with_threads(4, || {
        for run in 1..250 {
            assert!(
                problem.run(Simd::best()) == first,
                "run {run} differs from the first"
            );
        }
    });
}

#[test]
fn a_gradient_does_not_depend_on_which_others_are_wanted() {
    let problem = CrowdedProblem::new(DType::F32);
    let all = problem.run(Simd::best());
    let [value, locations, weights, grad_out] = &problem.tensors;
    let inputs = Inputs {
        value: value.view(),
        levels: (&problem.levels).into(),
        sampling_locations: locations.view(),
        attention_weights: weights.view(),
    };
    for wanted in 0..8 {
        let mut alone = [value.clone(), locations.clone(), weights.clone()];
        let before = [alone[0].bits(), alone[1].bits(), alone[2].bits()];
        let [of_value, of_locations, of_weights] = &mut alone;
        let gradients = Gradients {
            value: (wanted & 1 != 0).then(|| of_value.view_mut()),
            sampling_locations: (wanted & 2 != 0).then(|| of_locations.view_mut()),
            attention_weights: (wanted & 4 != 0).then(|| of_weights.view_mut()),
        };
        msda::backward(&Backend::default(), inputs, grad_out.view(), gradients).unwrap();
        for i in 0..3 {
            let expected = if wanted >> i & 1 != 0 {
                &all[i + 1]
            } else {
                &before[i]
            };
            assert!(
                alone[i].bits() == *expected,
                "gradient {i} with set {wanted:#b}"
            );
        }
    }
}
