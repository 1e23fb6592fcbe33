//! From projections on: random problems against the oracle, every element of `out` and of every gradient.

use std::ops::Range;

use fourtap::Error;
use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::projections;
use fourtap::verify::{
    CudaProjectedCase, ExpectedProjectedResults, Failure, LevelsIn, ProjectedCase,
    ProjectedGradientSelection, ProjectedGradientTensors, Tensor,
};
use rayon::prelude::*;

use crate::gpu;
use crate::oracle::cases;

const KERNELS: [KernelChoice; 4] = [
    KernelChoice::Best,
    KernelChoice::Gather,
    KernelChoice::GatherMany,
    KernelChoice::Channel,
];

/// Whether a kernel that was asked for by name cannot serve the problem.
fn is_unsupported(failure: &Failure, wanted: KernelChoice) -> bool {
    let by_name = matches!(wanted, KernelChoice::Gather | KernelChoice::GatherMany);
    by_name && matches!(failure, Failure::Refused(Error::Unsupported { .. }))
}

/// The cases with every kernel that can serve them, in both modes, levels in host and device memory. Returns how many results
/// of forward and of backward were right.
fn check(cuda: &Cuda, seeds: Range<u64>, case_of: fn(u64) -> ProjectedCase) -> [usize; 2] {
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    let counts = seeds.into_par_iter().map(|seed| {
        let case = case_of(seed);
        let expected = ExpectedProjectedResults::new(&case).unwrap();
        let mut right = [0, 0];
        for wanted in KERNELS {
            for deterministic in [false, true] {
                for levels in [LevelsIn::Host, LevelsIn::Device] {
                    let cuda = cuda.with_msda(wanted).deterministic(deterministic);
                    let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
                    let all = ProjectedGradientSelection::ALL;
                    let forward = (on_device.forward(levels))
                        .and_then(|out| expected.compare_forward(&out));
                    let backward = (on_device.backward(levels, all))
                        .and_then(|found| expected.compare_backward(&found));
                    for (pass, result) in [forward, backward].into_iter().enumerate() {
                        match result {
                            Ok(()) => right[pass] += 1,
                            Err(failure) if is_unsupported(&failure, wanted) => {}
                            Err(failure) => panic!(
                                "seed {seed}, {wanted:?}, deterministic {deterministic}, levels in {levels:?}: {failure}"
                            ),
                        }
                    }
                }
            }
        }
        right
    });
    counts.reduce(
        || [0, 0],
        |one, other| [one[0] + other[0], one[1] + other[1]],
    )
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let cuda = gpu::device();
    for case_of in [ProjectedCase::random, ProjectedCase::aligned] {
        let cases = cases(500);
        let right = check(&cuda, 0..cases, case_of);
        // At least the kernels that serve everything, in both modes, levels in host and device memory.
        assert!(right.iter().all(|&right| right >= 8 * cases as usize));
    }
}

/// The bits of the selected gradients; none for the others.
fn bits(tensors: &ProjectedGradientTensors) -> [Option<Vec<u64>>; 4] {
    tensors
        .tensors
        .each_ref()
        .map(|tensor| tensor.as_ref().map(Tensor::bits))
}

#[test]
#[ignore = "needs a CUDA device"]
fn each_selection_of_gradients_is_bitwise_equal() {
    let cuda = gpu::device().deterministic(true);
    (0..cases(100)).into_par_iter().for_each(|seed| {
        for case in [ProjectedCase::random(seed), ProjectedCase::aligned(seed)] {
            let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
            let compute = |asked| bits(&on_device.backward(LevelsIn::Host, asked).unwrap());
            let all = compute(ProjectedGradientSelection::ALL);
            for asked in ProjectedGradientSelection::choices() {
                for (found, all) in compute(asked).iter().zip(&all) {
                    let equal = found
                        .as_ref()
                        .is_none_or(|found| Some(found) == all.as_ref());
                    assert!(equal, "seed {seed}: {asked:?}");
                }
            }
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn fifty_runs_are_bitwise_equal() {
    const RUNS: usize = 50;
    let cuda = gpu::device().deterministic(true);
    (0..cases(40)).into_par_iter().for_each(|seed| {
        for case in [ProjectedCase::random(seed), ProjectedCase::aligned(seed)] {
            for levels in [LevelsIn::Host, LevelsIn::Device] {
                let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
                let run = || {
                    let all = ProjectedGradientSelection::ALL;
                    let gradients = on_device.backward(levels, all).unwrap();
                    let out = on_device.forward(levels).unwrap();
                    (out.bits(), bits(&gradients))
                };
                let first = run();
                for number in 1..RUNS {
                    assert!(
                        run() == first,
                        "seed {seed}, levels in {levels:?}: run {number}"
                    );
                }
            }
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn calls_prepared_once_report_their_workspace_and_run() {
    let cuda = gpu::device();
    for seed in 0..cases(100) {
        let case = ProjectedCase::random(seed);
        let expected = ExpectedProjectedResults::new(&case).unwrap();
        let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
        for levels in [LevelsIn::Host, LevelsIn::Device] {
            let asked = ProjectedGradientSelection::ALL;
            let mut gradients = on_device.gradients(asked).unwrap();
            let call = projections::prepare_backward(
                &cuda,
                on_device.inputs(levels),
                on_device.grad_out(),
                gradients.views(),
            )
            .unwrap();
            // Samples of all levels, as if each had as many as the one that has most.
            let (inputs, most) = (
                case.inputs(),
                case.points.iter().max().copied().unwrap_or(0),
            );
            let shape = inputs.sampling_offsets.shape();
            let rows: usize = shape.sizes()[..3].iter().product();
            let samples = rows * case.points.len() * most;
            let numbers = case.value.len() + case.reference_points.len() * rows + 8 * samples;
            let bound = 16 * numbers + (1 << 16);
            assert!(
                call.workspace_bytes() <= bound,
                "seed {seed}: a workspace of {} bytes, at most {bound} allowed",
                call.workspace_bytes()
            );
            call.launch().unwrap();
            expected
                .compare_backward(&gradients.read(&cuda).unwrap())
                .unwrap_or_else(|failure| panic!("seed {seed}, levels in {levels:?}: {failure}"));
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn host_and_device_memory_are_not_mixed_up() {
    let cuda = gpu::device();
    let seeds = 0..200;
    let mut refused = 0;
    for case in seeds.map(ProjectedCase::random) {
        let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
        let (on_host, inputs) = (case.inputs(), on_device.inputs(LevelsIn::Host));
        let mixed = [
            projections::Projections {
                value: on_host.value,
                ..inputs
            },
            projections::Projections {
                reference_points: on_host.reference_points,
                ..inputs
            },
            projections::Projections {
                sampling_offsets: on_host.sampling_offsets,
                ..inputs
            },
            projections::Projections {
                attention_logits: on_host.attention_logits,
                ..inputs
            },
        ];
        for inputs in mixed {
            let error = projections::ProjectedProblem::new(&inputs).unwrap_err();
            assert!(
                matches!(error, Error::Place { .. }),
                "seed {}: {error}",
                case.seed
            );
            refused += 1;
        }
    }
    assert_eq!(refused, 800);
}
