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

use crate::gpu::{self, Tally};
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

/// Whether there are numbers among its inputs that break careless code.
fn is_hostile(case: &ProjectedCase) -> bool {
    let inputs = [
        &case.value,
        &case.reference_points,
        &case.sampling_offsets,
        &case.attention_logits,
    ];
    let mut numbers = inputs.iter().flat_map(|tensor| tensor.to_f64());
    numbers.any(|number| !number.is_finite() || number.abs() > 1e9)
}

/// All gradients, and that of `value` alone, for which other kernels come first.
const SELECTIONS: [ProjectedGradientSelection; 2] = [
    ProjectedGradientSelection::ALL,
    ProjectedGradientSelection {
        value: true,
        reference_points: false,
        sampling_offsets: false,
        attention_logits: false,
    },
];

/// The cases with every kernel that can serve them, in both modes, levels in host and device memory. Counts the kernels that
/// were right, and those that were right for hostile numbers.
pub fn check(
    cuda: &Cuda,
    seeds: Range<u64>,
    case_of: fn(u64) -> ProjectedCase,
    kernels: &[KernelChoice],
    tally: &Tally,
    of_hostile: &Tally,
) {
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let case = case_of(seed);
        let expected = ExpectedProjectedResults::new(&case).unwrap();
        let hostile = is_hostile(&case);
        for &wanted in kernels {
            for deterministic in [false, true] {
                for levels in [LevelsIn::Host, LevelsIn::Device] {
                    let cuda = cuda.with_msda(wanted).deterministic(deterministic);
                    let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
                    let right = |result: Result<(), Failure>| match result {
                        Ok(()) => true,
                        Err(failure) if is_unsupported(&failure, wanted) => false,
                        Err(failure) => panic!(
                            "seed {seed}, {wanted:?}, deterministic {deterministic}, levels in {levels:?}: {failure}"
                        ),
                    };
                    let out = on_device.forward(levels);
                    right(out.and_then(|out| expected.compare_forward(&out)));
                    for asked in SELECTIONS {
                        let found = on_device.backward(levels, asked);
                        if !right(found.and_then(|found| expected.compare_backward(&found))) {
                            continue;
                        }
                        let mut gradients = on_device.gradients(asked).unwrap();
                        let kernels = cuda
                            .projected_backward_kernels(
                                on_device.inputs(levels),
                                on_device.grad_out(),
                                &gradients.views(),
                            )
                            .unwrap();
                        if hostile {
                            of_hostile.add(kernels.iter().copied());
                        }
                        tally.add(kernels);
                    }
                }
            }
        }
    });
}

/// Forward of the cases that the kernel on tensor cores can serve, `runs` times each, which must be bitwise equal. Returns how many
/// there were, and how many of hostile numbers.
pub fn check_on_matrix(cuda: &Cuda, seeds: Range<u64>, runs: usize) -> [u64; 2] {
    let cuda = cuda.with_msda(KernelChoice::Matrix);
    let served = seeds.into_par_iter().map(|seed| {
        let case = ProjectedCase::keepable(seed);
        let expected = ExpectedProjectedResults::new(&case).unwrap();
        let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
        let mut served = 0;
        for levels in [LevelsIn::Host, LevelsIn::Device] {
            let out = match on_device.forward(levels) {
                Err(Failure::Refused(Error::Unsupported { .. })) => continue,
                out => out.unwrap(),
            };
            expected
                .compare_forward(&out)
                .unwrap_or_else(|failure| panic!("seed {seed}, levels in {levels:?}: {failure}"));
            let first = out.bits();
            for number in 1..runs {
                let again = on_device.forward(levels).unwrap();
                assert!(again.bits() == first, "seed {seed}: run {number}");
            }
            served += 1;
        }
        [served, if is_hostile(&case) { served } else { 0 }]
    });
    served.reduce(|| [0; 2], |[a, b], [c, d]| [a + c, b + d])
}

#[test]
#[ignore = "needs a CUDA device"]
fn forward_on_tensor_cores_matches_the_oracle_in_all_runs() {
    let [served, hostile] = check_on_matrix(&gpu::device(), 0..cases(1200), 20);
    println!("on tensor cores: {served}, of them {hostile} of hostile numbers");
    assert!(served >= 20 && hostile > 0, "{served}, {hostile}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let cuda = gpu::device();
    let (tally, of_hostile) = (Tally::default(), Tally::default());
    for case_of in [ProjectedCase::random, ProjectedCase::aligned] {
        check(&cuda, 0..cases(400), case_of, &KERNELS, &tally, &of_hostile);
    }
    let details = "results, every element, 0 mismatches";
    let kernels = gpu::kernels("msda_projected_");
    tally.evidence(&cuda, "oracle", &kernels, details);
    of_hostile.evidence(&cuda, "hostile", &kernels, details);
    // The kernels that given locations have, too, told otherwise where to sample.
    for kernel in gpu::kernels("msda_backward_") {
        assert!(tally.count(kernel) > 0, "{kernel}: not one result");
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
fn each_selection_of_gradients_matches_the_oracle() {
    let cuda = gpu::device();
    (0..cases(60)).into_par_iter().for_each(|seed| {
        for case in [ProjectedCase::random(seed), ProjectedCase::aligned(seed)] {
            let expected = ExpectedProjectedResults::new(&case).unwrap();
            let on_device = CudaProjectedCase::new(&case, cuda).unwrap();
            for asked in ProjectedGradientSelection::choices() {
                let found = on_device.backward(LevelsIn::Host, asked).unwrap();
                expected
                    .compare_backward(&found)
                    .unwrap_or_else(|failure| panic!("seed {seed}: {asked:?}: {failure}"));
            }
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn fifty_runs_are_bitwise_equal() {
    const RUNS: usize = 50;
    let cuda = gpu::device().deterministic(true);
    let tally = Tally::default();
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
                let mut gradients = on_device
                    .gradients(ProjectedGradientSelection::ALL)
                    .unwrap();
                let (inputs, grad_out) = (on_device.inputs(levels), on_device.grad_out());
                let views = gradients.views();
                tally.add(
                    cuda.projected_backward_kernels(inputs, grad_out, &views)
                        .unwrap(),
                );
                let on_its_own = compare_value_alone(&on_device, levels, RUNS);
                tally.add(on_its_own);
            }
        }
    });
    let kernels = gpu::kernels("msda_projected_");
    tally.evidence(&cuda, "reproducible", &kernels, "problems, 50 runs each");
}

/// Runs of the gradient of `value` alone, which must be bitwise equal. Returns the kernels.
fn compare_value_alone(
    on_device: &CudaProjectedCase<'_>,
    levels: LevelsIn,
    runs: usize,
) -> Vec<&'static str> {
    let cuda = gpu::device().deterministic(true);
    let run = || bits(&on_device.backward(levels, SELECTIONS[1]).unwrap());
    let first = run();
    assert!((1..runs).all(|_| run() == first), "gradient of value alone");
    let mut gradients = on_device.gradients(SELECTIONS[1]).unwrap();
    let (inputs, grad_out) = (on_device.inputs(levels), on_device.grad_out());
    cuda.projected_backward_kernels(inputs, grad_out, &gradients.views())
        .unwrap()
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
