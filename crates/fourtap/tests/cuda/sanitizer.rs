//! Shapes to run under compute-sanitizer: small, many, every kernel. Which tool watches is in FOURTAP_SANITIZER.

use fourtap::cuda::msda::KernelChoice;
use fourtap::verify::{Case, ProjectedCase};

use crate::device_levels::{WATCHED, check_decided};
use crate::gpu::{self, Tally};
use crate::oracle::check;
use crate::projections;

/// Cases of each kind. Each is computed by up to three kernels, with levels in host and in device memory.
pub const CASES: u64 = 40;

/// From a seed the oracle test does not reach.
pub const FIRST: u64 = 1_000_000;

#[test]
#[ignore = "run under compute-sanitizer"]
fn shapes() {
    let (tool, cuda) = (gpu::sanitizer(), gpu::device());
    let tally = Tally::default();
    check(&cuda, FIRST..FIRST + CASES, Case::random, &tally);
    check(&cuda, FIRST..FIRST + CASES, Case::aligned, &tally);
    check(&cuda, FIRST..FIRST + CASES / 2, Case::keepable, &tally);
    check_decided(&cuda, FIRST, WATCHED, &tally);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, &tool, &gpu::kernels("msda_forward_"), details);
}

#[test]
#[ignore = "run under compute-sanitizer"]
fn shapes_of_projections() {
    let (tool, cuda) = (gpu::sanitizer(), gpu::device());
    let (tally, of_hostile) = (Tally::default(), Tally::default());
    for case_of in [ProjectedCase::random, ProjectedCase::aligned] {
        let seeds = FIRST..FIRST + CASES / 10;
        let kernels = [
            KernelChoice::Best,
            KernelChoice::GatherMany,
            KernelChoice::Channel,
        ];
        projections::check(&cuda, seeds, case_of, &kernels, &tally, &of_hostile);
    }
    let [on_matrix, _] = projections::check_on_matrix(&cuda, FIRST..FIRST + 10 * CASES, 1);
    assert!(on_matrix > 0, "not one result on tensor cores");
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, &tool, &gpu::kernels("msda_projected_"), details);
}
