//! Random problems against the oracle, every element.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use fourtap::Error;
use fourtap::cuda::Cuda;
use fourtap::cuda::msda::Wanted;
use fourtap::verify::{Case, Failure, LevelsIn, check_forward_on_cuda};
use rayon::prelude::*;

use crate::gpu;

/// How many random problems; another number with FOURTAP_CASES.
pub fn cases() -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(2000)
}

/// How often each kernel gave what the oracle gives.
#[derive(Debug, Default)]
pub struct Served {
    pub gather: AtomicU64,
    pub channel: AtomicU64,
}

/// Forward of the cases with every kernel that can serve them, levels in host and device memory.
pub fn check(cuda: &Cuda, seeds: Range<u64>, case_of: fn(u64) -> Case) -> Served {
    let served = Served::default();
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let case = case_of(seed);
        for (wanted, served) in [
            (Wanted::Gather, &served.gather),
            (Wanted::GatherMany, &served.gather),
            (Wanted::Channel, &served.channel),
        ] {
            for levels in [LevelsIn::Host, LevelsIn::Device] {
                match check_forward_on_cuda(&case, &cuda.with_kernel(wanted), levels) {
                    Ok(()) => drop(served.fetch_add(1, Ordering::Relaxed)),
                    Err(Failure::Refused(Error::Unsupported { .. }))
                        if wanted != Wanted::Channel => {}
                    Err(failure) => {
                        panic!("seed {seed}, {wanted:?}, levels in {levels:?}: {failure}")
                    }
                }
            }
        }
    });
    served
}

/// Says what was proven.
pub fn evidence(cuda: &Cuda, check: &str, served: Served) {
    for (kernel, count) in [
        ("msda_forward_gather", served.gather.into_inner()),
        ("msda_forward_channel", served.channel.into_inner()),
    ] {
        println!("{check}: {kernel} served {count}");
        // A kernel nobody chose has not been tested.
        assert!(count > 0, "{kernel}");
        let details = format!("{count} results, every element, 0 mismatches");
        gpu::evidence(cuda, check, &[kernel], &details);
    }
}

#[test]
fn random_problems_match_the_oracle() {
    let Some(cuda) = gpu::device() else { return };
    let served = check(&cuda, 0..cases(), Case::random);
    let aligned = check(&cuda, 0..cases(), Case::aligned);
    served
        .gather
        .fetch_add(aligned.gather.into_inner(), Ordering::Relaxed);
    assert!(served.gather.load(Ordering::Relaxed) > cases());
    evidence(&cuda, "oracle", served);
}
