//! Gradients nobody asked for, and problems with nothing in them.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Plain;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{Levels, Sizes};
use fourtap::verify::{
    Case, CudaCase, ExpectedGradients, GradientSelection, LevelsIn, Storage, Tensor,
};
use fourtap::{DType, Element, f16};
use rayon::prelude::*;

use super::tensors::{BackwardProblem, NAMES};
use crate::gpu;

#[test]
#[ignore = "needs a CUDA device"]
fn each_selection_of_gradients_is_bitwise_equal_and_writes_nothing_else() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(9, 20), (4, 7)]).unwrap();
    let sizes = Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 3,
        channels: 32,
        queries: 57,
        levels: levels.len(),
        points: 4,
    };
    fn of_type<T: Element + Plain>(cuda: &Cuda, levels: &Levels, sizes: Sizes) {
        let problem = BackwardProblem::new::<T>(cuda, sizes);
        for wanted in [KernelChoice::Best, KernelChoice::Channel] {
            let cuda = cuda.with_msda(wanted).deterministic(true);
            let compute = |asked| {
                let mut results = problem.results(&cuda);
                problem.compute(&cuda, levels, &mut results, asked).unwrap();
                gpu::wait(&cuda);
                results.bytes()
            };
            let all = compute(GradientSelection::ALL);
            for asked in GradientSelection::choices() {
                let found = compute(asked);
                for (i, wanted_one) in asked.each().into_iter().enumerate() {
                    let right = match wanted_one {
                        true => found[i] == all[i],
                        false => found[i].iter().all(|&byte| byte == 0xff),
                    };
                    assert!(right, "{}, {wanted:?}, {asked:?}: {}", T::DTYPE, NAMES[i]);
                }
            }
        }
    }
    for channels in [32, 30] {
        let sizes = Sizes { channels, ..sizes };
        of_type::<f16>(&cuda, &levels, sizes);
        of_type::<f32>(&cuda, &levels, sizes);
        of_type::<f64>(&cuda, &levels, sizes);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn each_selection_of_gradients_matches_the_oracle_in_the_fast_mode() {
    let cuda = gpu::device();
    // From seeds whose kernels the oracle test has compiled already.
    (0..24u64).into_par_iter().for_each(|seed| {
        for case in [Case::random(seed), Case::aligned(seed)] {
            let expected = ExpectedGradients::new(&case).unwrap();
            let on_device = CudaCase::new(&case, cuda).unwrap();
            for asked in GradientSelection::choices() {
                for levels in [LevelsIn::Host, LevelsIn::Device] {
                    let outcome = on_device
                        .backward(levels, asked)
                        .and_then(|found| expected.compare(&found));
                    if let Err(failure) = outcome {
                        panic!("seed {seed}, {asked:?}, levels in {levels:?}: {failure}");
                    }
                }
            }
        }
    });
}

/// Numbers that do not matter, in tensors of these sizes.
fn case_of(sizes: Sizes, dtype: DType, levels: Levels) -> Case {
    let tensor = |dtype, shape: &[usize]| {
        Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), || 0.5)
    };
    Case {
        seed: 0,
        levels,
        value: tensor(dtype, &sizes.value()),
        sampling_locations: tensor(DType::F32, &sizes.sampling_locations()),
        attention_weights: tensor(DType::F32, &sizes.attention_weights()),
        grad_out: tensor(dtype, &sizes.out()),
        outputs: [3, 4, 6, 5].map(Storage::dense),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn no_samples_give_zeros_and_nothing_to_do_is_no_error() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(3, 4)]).unwrap();
    let whole = Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 2,
        channels: 32,
        queries: 5,
        levels: 1,
        points: 4,
    };
    let both = &[LevelsIn::Host, LevelsIn::Device][..];
    let empty = [
        ("no images", Sizes { images: 0, ..whole }, both),
        ("no heads", Sizes { heads: 0, ..whole }, both),
        (
            "no queries",
            Sizes {
                queries: 0,
                ..whole
            },
            both,
        ),
        ("no points", Sizes { points: 0, ..whole }, both),
        // Without levels the host has no pixels; only device memory can say otherwise.
        (
            "no levels",
            Sizes { levels: 0, ..whole },
            &[LevelsIn::Device][..],
        ),
        (
            "no levels, no pixels",
            Sizes {
                levels: 0,
                pixels: 0,
                ..whole
            },
            both,
        ),
    ];
    for (name, sizes, tables) in empty {
        for dtype in [DType::F16, DType::F32, DType::F64] {
            let levels = match sizes.levels {
                0 => Levels::default(),
                _ => levels.clone(),
            };
            let case = case_of(sizes, dtype, levels);
            for (wanted, deterministic) in [
                (KernelChoice::Best, false),
                (KernelChoice::Best, true),
                (KernelChoice::Channel, true),
            ] {
                let cuda = cuda.with_msda(wanted).deterministic(deterministic);
                let on_device = CudaCase::new(&case, cuda).unwrap();
                for &levels in tables {
                    let found = on_device
                        .backward(levels, GradientSelection::ALL)
                        .unwrap_or_else(|failure| panic!("{name}, {dtype}, {wanted:?}: {failure}"));
                    let found = found.value.unwrap().to_f64();
                    assert_eq!(found.len(), sizes.value().iter().product::<usize>());
                    assert!(
                        found.iter().all(|&x| x == 0.0),
                        "{name}, {dtype}, {wanted:?}, levels in {levels:?}"
                    );
                }
            }
        }
    }
}
