//! In deterministic mode, results are bitwise reproducible from run to run.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{OwnedStream, Plain};
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{Element, bf16, f16};

use super::tensors::{BackwardProblem, NAMES};
use crate::gpu::{self, Tally};

const RUNS: usize = 250;

fn runs<T: Element + Plain>(
    cuda: &Cuda,
    levels: &Levels,
    problem: &BackwardProblem,
    tally: &Tally,
) {
    let streams: Vec<_> = (0..4)
        .map(|_| OwnedStream::new(cuda.context(), true).unwrap())
        .collect();
    let mut results = problem.results(cuda);
    gpu::wait(cuda);
    let mut first = None;
    for number in 0..RUNS {
        let stream = &streams[number % streams.len()];
        // SAFETY: the stream lives until the end of this function.
        let cuda = unsafe { cuda.on_stream(stream.stream().as_raw()) };
        results.poison(stream.stream());
        problem
            .compute(&cuda, levels, &mut results, GradientSelection::ALL)
            .unwrap();
        stream.synchronize().unwrap();
        let found = results.bytes();
        let first = first.get_or_insert_with(|| found.clone());
        for ((name, found), first) in NAMES.iter().zip(&found).zip(first) {
            assert!(
                found == first,
                "run {number} of {}: {name} differs",
                T::DTYPE
            );
        }
    }
    tally.add(problem.kernels(cuda, levels, &mut results));
}

fn runs_of_all_types(
    cuda: &Cuda,
    levels: &Levels,
    sizes: Sizes,
    window: Option<f64>,
    tally: &Tally,
) {
    fn of_type<T: Element + Plain>(
        cuda: &Cuda,
        levels: &Levels,
        sizes: Sizes,
        window: Option<f64>,
        tally: &Tally,
    ) {
        let problem = match window {
            Some(window) => BackwardProblem::crowded::<T>(cuda, sizes, window),
            None => BackwardProblem::new::<T>(cuda, sizes),
        };
        let mut choices = vec![KernelChoice::Best, KernelChoice::Channel];
        // Problems so small that samples would not be sorted.
        if sizes.queries * sizes.points <= 2048 && levels.len() <= 16 {
            choices.push(KernelChoice::GatherMany);
        }
        for wanted in choices {
            let cuda = cuda.with_msda(wanted).deterministic(true);
            runs::<T>(&cuda, levels, &problem, tally);
        }
    }
    of_type::<f16>(cuda, levels, sizes, window, tally);
    of_type::<bf16>(cuda, levels, sizes, window, tally);
    of_type::<f32>(cuda, levels, sizes, window, tally);
}

#[test]
#[ignore = "needs a CUDA device"]
fn two_hundred_and_fifty_deterministic_runs_are_bitwise_equal() {
    let cuda = gpu::device();
    let tally = Tally::default();
    let levels = Levels::packed(&[(20, 30), (10, 15), (1, 1)]).unwrap();
    let sizes = Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 4,
        channels: 32,
        queries: 1009,
        levels: levels.len(),
        points: 4,
    };
    runs_of_all_types(&cuda, &levels, sizes, None, &tally);
    // All of them on a few pixels, where threads meet.
    runs_of_all_types(&cuda, &levels, sizes, Some(0.05), &tally);
    let few = Sizes {
        queries: 301,
        ..sizes
    };
    runs_of_all_types(&cuda, &levels, few, None, &tally);
    runs_of_all_types(&cuda, &levels, few, Some(0.05), &tally);
    let many = Levels::packed(&[(3, 5); 17]).unwrap();
    let sizes = Sizes {
        pixels: many.pixels(),
        levels: many.len(),
        queries: 101,
        ..sizes
    };
    runs_of_all_types(&cuda, &many, sizes, None, &tally);
    tally.evidence(
        &cuda,
        "reproducible",
        &gpu::kernels("msda_backward_"),
        "problems, 250 of 250 deterministic runs equal, f16, bf16, f32",
    );
}
