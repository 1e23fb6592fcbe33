//! NaN, infinities and numbers near the end of the range, in every tensor; levels that are nonsense.

use fourtap::DType;
use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{CudaLevels, Levels, Sizes, oracle};
use fourtap::verify::{
    Case, CudaCase, ExpectedGradients, Failure, GradientSelection, HOSTILE, LevelsIn, Storage,
    Tensor,
};
use fourtap::{Error, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use super::oracle::{BackwardSetting, EACH_KERNEL, compute};
use super::tensors::{BackwardProblem, NAMES};
use crate::gpu::{self, Tally};
use crate::tensors::{OnDevice, Problem};

fn hostile_case(seed: u64) -> Case {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    // Wide enough for several runs of pixels to be summed side by side; every fourth has too many levels for that.
    let mut shapes = vec![(3, 17), (1, 1)];
    if seed.is_multiple_of(4) {
        shapes.resize(17, (1, 2));
    }
    let levels = Levels::packed(&shapes).unwrap();
    let (q, m, l, p) = (7, 2, levels.len(), 3);
    let d = *[8, 16, 32, 19, 48, 64].choose(rng).unwrap();
    let dtype = *DType::ALL.choose(rng).unwrap();
    let where_hostile = rng.random_range(1..16);
    // A sample meets hundreds of values: were one in ten hostile, hardly a gradient would be left to compare.
    let mut tensor = |dtype, shape: &[usize], bit: i32, share: f64| {
        Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), || {
            match where_hostile & bit != 0 && rng.random_bool(share) {
                true => *HOSTILE.choose(rng).unwrap(),
                false => rng.random_range(-0.01..1.01),
            }
        })
    };
    Case {
        seed,
        value: tensor(dtype, &[1, levels.pixels(), m, d], 1, 0.004),
        sampling_locations: tensor(DType::F32, &[1, q, m, l, p, 2], 2, 0.1),
        attention_weights: tensor(DType::F32, &[1, q, m, l, p], 4, 0.1),
        grad_out: tensor(dtype, &[1, q, m * d], 8, 0.02),
        outputs: [3, 4, 6, 5].map(Storage::dense),
        levels,
    }
}

/// The same with no weight below 1: the gradients of locations scale with weights, and what overflows before the weight is
/// multiplied to it stays infinite however small that is.
fn with_weights_of_one(case: &Case) -> Case {
    let weights = &case.attention_weights;
    let mut numbers = weights.to_f64().into_iter();
    let next = || match numbers.next().unwrap() {
        small if small.abs() < 1.0 => 1.0,
        large_or_nan => large_or_nan,
    };
    let shape = weights.shape();
    Case {
        attention_weights: Tensor::from_fn(
            weights.dtype(),
            shape.sizes(),
            &Storage::dense(5),
            next,
        ),
        ..case.clone()
    }
}

/// For each element of each gradient, whether it may come out as infinity or NaN in one order of terms or another.
fn may_overflow(case: &Case, exact: &ExpectedGradients) -> [Vec<bool>; 3] {
    let beyond = |sums: &[oracle::Sum<f64>], limit: f64| -> Vec<bool> {
        let beyond = |sum: &oracle::Sum<f64>| sum.mass.is_nan() || sum.mass >= limit;
        sums.iter().map(beyond).collect()
    };
    let of_value = match case.value.dtype() {
        DType::F16 => 6e4,
        _ => 1e37,
    };
    // Products with a neighbour are summed before they are multiplied by its share of the sample, which may be small.
    let of_samples = 1e30;
    let before_weights = ExpectedGradients::new(&with_weights_of_one(case)).unwrap();
    [
        beyond(&exact.exact.value, of_value),
        beyond(&before_weights.exact.sampling_locations, of_samples),
        beyond(&exact.exact.attention_weights, of_samples),
    ]
}

/// Each kernel's gradients of a case beside the oracle's, but for those that may overflow.
pub fn compare(cuda: &Cuda, case: &Case, tally: &Tally) {
    let (seed, dtype) = (case.seed, case.value.dtype());
    let expected = ExpectedGradients::new(case).unwrap();
    let excused = may_overflow(case, &expected);
    let on_device = CudaCase::new(case, *cuda).unwrap();
    for setting in BackwardSetting::all(&EACH_KERNEL) {
        let computed = match compute(&on_device, cuda, setting) {
            Ok(computed) => computed,
            Err(Failure::Refused(Error::Unsupported { .. }))
                if setting.wanted != KernelChoice::Channel =>
            {
                continue;
            }
            Err(failure) => panic!("seed {seed}, {setting:?}: {failure}"),
        };
        let found = computed.gradients.named().into_iter();
        for (((name, found), expected), excused) in found.zip(expected.each()).zip(&excused) {
            let found = found.unwrap().to_f64();
            for (index, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                let near = (found - expected.total).abs() <= 0.02 * (1.0 + expected.mass);
                assert!(
                    near || excused[index],
                    "seed {seed}, {dtype}, {setting:?}: {name}[{index}] is {found}, the oracle says {expected:?}"
                );
            }
        }
        if setting.levels == LevelsIn::Host {
            tally.add(computed.kernels);
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    let cuda = gpu::device();
    let tally = Tally::default();
    (0..1_000u64)
        .into_par_iter()
        .for_each(|seed| compare(&cuda, &hostile_case(seed), &tally));
    tally.evidence(
        &cuda,
        "hostile",
        &gpu::kernels("msda_backward_"),
        "results of problems of NaN, infinities and 1e38",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_sample_that_takes_no_part_gets_and_gives_nothing() {
    let cuda = gpu::device();
    // Pixels of NaN: whoever reads one shows it. Points at no number, at infinity and outside must not.
    let levels = Levels::packed(&[(1, 3)]).unwrap();
    let outside = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e38,
        -1e38,
        1.5,
        -0.5,
        3e9,
    ];
    let sizes = Sizes {
        images: 1,
        pixels: 3,
        heads: 1,
        channels: 32,
        queries: outside.len(),
        levels: 1,
        points: 1,
    };
    let locations: Vec<f32> = outside.iter().flat_map(|&x| [x, 0.5]).collect();
    let value = [f16::NAN; 3 * 32];
    let grad_out = [f16::INFINITY; 8 * 32];
    let problem = BackwardProblem {
        inputs: Problem {
            sizes,
            value: OnDevice::new(&cuda, &value, &sizes.value()),
            locations: OnDevice::new(&cuda, &locations, &sizes.sampling_locations()),
            weights: OnDevice::new(&cuda, &[f32::INFINITY; 8], &sizes.attention_weights()),
        },
        grad_out: OnDevice::new(&cuda, &grad_out, &sizes.out()),
    };
    for (wanted, deterministic) in EACH_KERNEL {
        let cuda = cuda.with_msda(wanted).deterministic(deterministic);
        let mut results = problem.results(&cuda);
        problem
            .compute(&cuda, &levels, &mut results, GradientSelection::ALL)
            .unwrap();
        gpu::wait(&cuda);
        for (name, found) in NAMES.iter().zip(results.numbers::<f16>()) {
            assert!(
                found.iter().all(|&x| x == 0.0),
                "{wanted:?}: {name} is {found:?}"
            );
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn levels_that_lie_outside_give_zeros_and_are_never_touched() {
    let cuda = gpu::device();
    let nonsense: [(i64, i64, i64); 9] = [
        (-1, 10, 0),
        (10, -10, 0),
        (i64::MAX, i64::MAX, 0),
        (1 << 32, 1, 0),
        (10, 11, 0),
        (10, 10, 1),
        (10, 10, -1),
        (10, 10, i64::MIN),
        (0, 0, 1 << 40),
    ];
    // As many as are sorted by, and more.
    for count in [1, 17] {
        let sizes = Sizes {
            images: 1,
            pixels: 100,
            heads: 2,
            channels: 32,
            queries: 64,
            levels: count,
            points: 4,
        };
        let problem = BackwardProblem::new::<f32>(&cuda, sizes);
        for (wanted, deterministic) in EACH_KERNEL {
            let cuda = cuda.with_msda(wanted).deterministic(deterministic);
            for (height, width, start) in nonsense {
                let shapes = [height, width].repeat(count);
                let shapes = Buffer::from_slice(cuda.context(), &shapes).unwrap();
                let starts = Buffer::from_slice(cuda.context(), &vec![start; count]).unwrap();
                // SAFETY: the buffers hold so many numbers, and outlive the call's work.
                let levels =
                    unsafe { CudaLevels::new(0, count, shapes.as_ptr(), Some(starts.as_ptr())) };
                let mut results = problem.results(&cuda);
                match problem.compute(&cuda, levels, &mut results, GradientSelection::ALL) {
                    Err(Error::Unsupported { .. }) if wanted != KernelChoice::Channel => continue,
                    computed => computed.unwrap(),
                }
                gpu::wait(&cuda);
                for (name, found) in NAMES.iter().zip(results.numbers::<f32>()) {
                    assert!(
                        found.iter().all(|&x| x == 0.0),
                        "{wanted:?}, {count} levels: ({height}, {width}) at {start} gave {name}"
                    );
                }
            }
        }
    }
}
