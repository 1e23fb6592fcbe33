//! Tuning parameters change the speed of a kernel, never its result; and its rounding only where that is declared.

use fourtap::cuda::Cuda;
use fourtap::msda::{Levels, Sizes};
use fourtap::tuning::{Choice, Parameter, Space};
use fourtap::verify::{
    Case, CudaCase, DenseCase, ExpectedDenseResults, ExpectedGradients, Failure, GradientSelection,
    LevelsIn, check_dense_on_cuda, check_forward_on_cuda,
};
use fourtap::{Backend, DType, Error, bf16, f16, msda};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use crate::backward::tensors::BackwardProblem;
use crate::gpu;
use crate::oracle::cases;
use crate::tensors::OnDevice;

fn space(kernel: &str) -> &'static Space {
    Space::named(kernel).unwrap()
}

/// Some other values than the defaults, by chance.
fn random_choice(space: &Space, seed: u64) -> Choice {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut choice = space.defaults();
    for parameter in space.parameters {
        if rng.random::<f64>() < 0.4 {
            let index = rng.random_range(0..parameter.values.len());
            choice = choice.with(parameter.name, parameter.values[index]);
        }
    }
    choice
}

/// Every value of every parameter, the others at their defaults.
fn single_changes(space: &Space) -> impl Iterator<Item = Choice> {
    let changed = |parameter: &Parameter| {
        let (name, defaults) = (parameter.name, space.defaults());
        let values = parameter.values.iter();
        let choices: Vec<_> = values
            .map(|&value| defaults.clone().with(name, value))
            .collect();
        choices
    };
    space.parameters.iter().flat_map(changed)
}

/// Checks random problems of each kind, each with several random choices; all that can be computed must be right.
/// Returns how many could.
fn check_random(kernel: &str, check: impl Fn(u64, &Choice) -> Result<(), Failure> + Sync) -> usize {
    let space = space(kernel);
    let right = (0..cases(40)).into_par_iter().map(|seed| {
        let mut right = 0;
        for turn in 0..4 {
            let choice = random_choice(space, 4 * seed + turn);
            match check(seed, &choice) {
                Ok(()) => right += 1,
                Err(Failure::Refused(Error::Unsupported { .. })) => {}
                Err(failure) => panic!("{kernel}, seed {seed}, {choice}: {failure}"),
            }
        }
        right
    });
    right.sum()
}

fn msda_case(seed: u64) -> Case {
    match seed % 4 {
        0 => Case::keepable(seed),
        _ => Case::aligned(seed),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_choice_gives_right_results() {
    let cuda = gpu::device();
    let chosen = |kernel: &str, choice: &Choice| cuda.with_choice(space(kernel), choice).unwrap();
    let kernel = "cuda-msda-forward";
    let right = check_random(kernel, |seed, choice| {
        let cuda = chosen(kernel, choice);
        let levels = [LevelsIn::Host, LevelsIn::Device][seed as usize / 4 % 2];
        check_forward_on_cuda(&msda_case(seed), &cuda, levels)
    });
    println!("{kernel}: {right} right");
    assert!(right > 0);
    let kernel = "cuda-msda-backward";
    let right = check_random(kernel, |seed, choice| {
        let (case, cuda) = (msda_case(seed), chosen(kernel, choice));
        let on_device = CudaCase::new(&case, cuda)?;
        let gradients = on_device.backward(LevelsIn::Host, GradientSelection::ALL)?;
        ExpectedGradients::new(&case)?.compare(&gradients)
    });
    println!("{kernel}: {right} right");
    assert!(right > 0);
    let kernel = "cuda-dense-forward";
    let right = check_random(kernel, |seed, choice| {
        let case = DenseCase::aligned(seed, &[DType::F16, DType::BF16]);
        let expected = ExpectedDenseResults::new(&case)?;
        check_dense_on_cuda(&case, &expected, &chosen(kernel, choice), seed % 2 == 0)
    });
    println!("{kernel}: {right} right");
    assert!(right > 0);
}

/// Large enough to be cut in every way.
#[test]
#[ignore = "needs a CUDA device"]
fn bits_change_only_where_it_is_declared() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(64, 96), (32, 48), (16, 24), (8, 12)]).unwrap();
    for (heads, queries, points) in [(8, 300, 4), (8, 8160, 4), (1, 40_000, 8)] {
        let sizes = Sizes {
            images: 2,
            pixels: levels.pixels(),
            heads,
            channels: 32,
            queries,
            levels: levels.len(),
            points,
        };
        check_bits(&cuda, &levels, &BackwardProblem::new::<f16>(&cuda, sizes));
        check_bits(&cuda, &levels, &BackwardProblem::new::<bf16>(&cuda, sizes));
        check_bits(&cuda, &levels, &BackwardProblem::new::<f32>(&cuda, sizes));
    }
}

/// Both passes over a problem; how many choices gave the bits of the defaults.
fn check_bits(cuda: &Cuda, levels: &Levels, problem: &BackwardProblem) {
    let cuda = &cuda.deterministic(true);
    let out_shape = problem.grad_out.view().shape();
    let dtype = problem.grad_out.view().dtype();
    expect_bits(cuda, "cuda-msda-forward", &|cuda| {
        let mut out = OnDevice::poisoned(cuda, dtype, out_shape.sizes());
        let inputs = problem.inputs.inputs(levels);
        msda::forward(&Backend::Cuda(*cuda), inputs, out.view_mut())?;
        gpu::wait(cuda);
        Ok(vec![out.buffer.to_vec::<u8>().unwrap()])
    });
    expect_bits(cuda, "cuda-msda-backward", &|cuda| {
        let mut results = problem.results(cuda);
        problem.compute(cuda, levels, &mut results, GradientSelection::ALL)?;
        gpu::wait(cuda);
        Ok(results.bytes().into_iter().collect())
    });
}

fn expect_bits<T: PartialEq>(
    cuda: &Cuda,
    kernel: &str,
    compute: &dyn Fn(&Cuda) -> Result<Vec<T>, Error>,
) {
    let space = space(kernel);
    let chosen = |choice: &Choice| cuda.with_choice(space, choice).unwrap();
    let usual = compute(&chosen(&space.defaults())).unwrap();
    let mut same = 0;
    for choice in single_changes(space).filter(|choice| space.keeps_bits(choice)) {
        match compute(&chosen(&choice)) {
            Ok(found) => {
                assert!(found == usual, "{kernel} with {choice}");
                same += 1;
            }
            Err(Error::Unsupported { .. }) => {}
            Err(error) => panic!("{kernel} with {choice}: {error}"),
        }
    }
    println!("{kernel}: {same} choices gave the same bits");
    assert!(same > 1);
}
