//! Random problems against the oracle, every element.

use std::ops::Range;

use fourtap::Error;
use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::verify::{Case, Failure, LevelsIn, check_forward_on_cuda};
use rayon::prelude::*;

use crate::gpu::{self, Tally};

/// How many random problems, if FOURTAP_CASES does not say otherwise.
pub fn cases(usual: u64) -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(usual)
}

/// Forward of the cases with every kernel that can serve them, levels in host and device memory.
pub fn check(cuda: &Cuda, seeds: Range<u64>, case_of: fn(u64) -> Case, tally: &Tally) {
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let case = case_of(seed);
        for (wanted, kernel) in [
            (KernelChoice::Gather, "msda_forward_gather"),
            (KernelChoice::GatherMany, "msda_forward_gather"),
            (KernelChoice::Matrix, "msda_forward_matrix"),
            (KernelChoice::Channel, "msda_forward_channel"),
        ] {
            for levels in [LevelsIn::Host, LevelsIn::Device] {
                match check_forward_on_cuda(&case, &cuda.with_msda(wanted), levels) {
                    Ok(()) => tally.add([kernel]),
                    Err(Failure::Refused(Error::Unsupported { .. }))
                        if wanted != KernelChoice::Channel => {}
                    Err(failure) => {
                        panic!("seed {seed}, {wanted:?}, levels in {levels:?}: {failure}")
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let cuda = gpu::device();
    let (tally, cases) = (Tally::default(), cases(2000));
    check(&cuda, 0..cases, Case::random, &tally);
    check(&cuda, 0..cases, Case::aligned, &tally);
    check(&cuda, 0..cases / 5, Case::keepable, &tally);
    assert!(tally.count("msda_forward_gather") > cases);
    assert!(tally.count("msda_forward_matrix") > cases / 20);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, "oracle", &gpu::kernels("msda_forward_"), details);
}
