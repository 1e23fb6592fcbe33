//! Shapes to run under compute-sanitizer: small, many, every kernel. Which tool watches is in FOURTAP_SANITIZER.

use fourtap::verify::Case;

use super::crowded;
use super::loose::{check_loose, many_levels};
use super::oracle::{BackwardSetting, EACH_KERNEL, check};
use crate::gpu::{self, Tally};
use crate::sanitizer::{CASES, FIRST};

#[test]
#[ignore = "run under compute-sanitizer"]
fn shapes_of_backward() {
    let (tool, cuda) = (gpu::sanitizer(), gpu::device());
    let (tally, settings) = (Tally::default(), BackwardSetting::all(&EACH_KERNEL));
    // Other shapes than forward's, so that the tools see more than 200 in all: 112 of forward, 96 here, 30 dense.
    let seeds = FIRST + CASES..FIRST + 2 * CASES;
    check(&cuda, seeds.clone(), Case::random, &settings, &tally);
    check(&cuda, seeds, Case::aligned, &settings, &tally);
    check(&cuda, FIRST..FIRST + 8, many_levels, &settings, &tally);
    check(&cuda, FIRST..FIRST + 4, crowded::small, &settings, &tally);
    check_loose(&cuda, FIRST..FIRST + 8, &EACH_KERNEL, &tally);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, &tool, &gpu::kernels("msda_backward_"), details);
}
