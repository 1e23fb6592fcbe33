//! Shapes to run under compute-sanitizer: small, many, every form. Which tool watches is in FOURTAP_SANITIZER.

use super::forward_kernels;
use super::oracle::{Forms, check};
use crate::gpu::{self, Tally};
use crate::sanitizer::{CASES, FIRST};

#[test]
#[ignore = "run under compute-sanitizer"]
fn shapes() {
    let (tool, cuda) = (gpu::sanitizer(), gpu::device());
    let (tally, forms) = (Tally::default(), Forms::default());
    // Each case comes in five forms, most of them a kernel to compile.
    check(&cuda, FIRST..FIRST + CASES / 4, &tally, &forms);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, &tool, &forward_kernels(), details);
}
