//! Problems too large for the oracle, every element against the general kernels, which the oracle has checked.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Plain;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{DType, Element, bf16, f16};
use rayon::prelude::*;

use super::tensors::{BackwardProblem, NAMES};
use crate::gpu;

/// Compares the results of the fast kernels, by sorting and by atomic additions, with those of the general ones.
fn compare<T: Element + Plain>(
    cuda: &Cuda,
    name: &str,
    levels: &Levels,
    problem: &BackwardProblem,
) {
    let compute = |cuda: &Cuda| {
        let mut results = problem.results(cuda);
        problem
            .compute(cuda, levels, &mut results, GradientSelection::ALL)
            .unwrap();
        gpu::wait(cuda);
        results.numbers::<T>()
    };
    let plain = compute(&cuda.with_msda(KernelChoice::Channel));
    let mut wanted = vec![KernelChoice::GatherMany];
    if T::DTYPE == DType::F32 {
        wanted.push(KernelChoice::Gather);
    }
    for wanted in wanted {
        let fast = compute(&cuda.with_msda(wanted));
        for ((tensor, fast), plain) in NAMES.iter().zip(&fast).zip(&plain) {
            let largest = plain.par_iter().map(|x| x.abs()).reduce(|| 0.0, f64::max);
            assert!(largest > 0.0);
            // Both are rounded: grad_value to its type, coordinates to f32. Sums of thousands of terms differ a little
            // more, but less than any term is worth.
            let relative = match *tensor {
                "grad_value" => T::DTYPE.epsilon().max(1e-5),
                _ => 1e-5,
            };
            let near = |(fast, plain): (&f64, &f64)| {
                (fast - plain).abs() <= 1.5 * relative * plain.abs() + 1e-5 * largest
            };
            let apart = fast
                .par_iter()
                .zip(plain)
                .enumerate()
                .find_first(|&(_, pair)| !near(pair));
            assert!(
                apart.is_none(),
                "{name}, {}, {wanted:?}: {tensor}, largest {largest:e}: (index, (fast, plain)) {apart:?}",
                T::DTYPE
            );
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn large_problems_agree_with_the_general_kernels_in_every_element() {
    let cuda = gpu::device();
    let pyramid = Levels::packed(&[(50, 83), (25, 42), (13, 21), (7, 1)]).unwrap();
    let pixels = pyramid.pixels();
    let sizes = Sizes {
        images: 3,
        pixels,
        heads: 8,
        channels: 32,
        queries: pixels,
        levels: 4,
        points: 4,
    };
    let several = [
        ("queries are pixels", sizes),
        (
            "one head, many images",
            Sizes {
                images: 31,
                heads: 1,
                points: 8,
                queries: 3001,
                ..sizes
            },
        ),
        (
            "three heads",
            Sizes {
                heads: 3,
                points: 2,
                queries: pixels - 1,
                ..sizes
            },
        ),
        (
            "wide",
            Sizes {
                images: 2,
                channels: 64,
                points: 8,
                queries: 5_003,
                ..sizes
            },
        ),
        (
            "idle lanes",
            Sizes {
                channels: 48,
                points: 3,
                ..sizes
            },
        ),
        (
            "narrow",
            Sizes {
                channels: 8,
                points: 5,
                ..sizes
            },
        ),
    ];
    for (name, sizes) in several {
        let problem = BackwardProblem::new::<f16>(&cuda, sizes);
        compare::<f16>(&cuda, name, &pyramid, &problem);
        let problem = BackwardProblem::new::<f32>(&cuda, sizes);
        compare::<f32>(&cuda, name, &pyramid, &problem);
    }
    // Lists of samples so long that whole blocks share them.
    let problem = BackwardProblem::crowded::<f16>(&cuda, sizes, 0.1);
    compare::<f16>(&cuda, "crowded", &pyramid, &problem);
    let problem = BackwardProblem::crowded::<bf16>(&cuda, sizes, 0.1);
    compare::<bf16>(&cuda, "crowded", &pyramid, &problem);
    let problem = BackwardProblem::crowded::<f32>(&cuda, sizes, 0.1);
    compare::<f32>(&cuda, "crowded", &pyramid, &problem);
    let details = format!(
        "{} large problems, every element, f16 and f32",
        several.len() + 1
    );
    let fast = [
        "msda_backward_sort",
        "msda_backward_value_matrix",
        "msda_backward_samples_matrix",
    ];
    gpu::evidence(&cuda, "large", &fast, &details);
}
