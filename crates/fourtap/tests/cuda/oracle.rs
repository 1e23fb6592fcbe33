//! Random problems against the oracle, every element.

use std::sync::atomic::{AtomicU64, Ordering};

use fourtap::Error;
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

/// Forward of problems `seeds` with every kernel that can serve them, levels in host and device memory. Returns how
/// often each kernel was used.
pub fn check(seeds: std::ops::Range<u64>) -> Option<[u64; 2]> {
    let cuda = gpu::device()?;
    let used = [AtomicU64::new(0), AtomicU64::new(0)];
    // In parallel, because nearly every problem needs a kernel of its own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let case = Case::random(seed);
        for (used, wanted) in used.iter().zip([Wanted::Gather, Wanted::Channel]) {
            for levels in [LevelsIn::Host, LevelsIn::Device] {
                match check_forward_on_cuda(&case, &cuda.with_kernel(wanted), levels) {
                    Ok(()) => drop(used.fetch_add(1, Ordering::Relaxed)),
                    Err(Failure::Refused(Error::Unsupported { .. }))
                        if wanted == Wanted::Gather => {}
                    Err(failure) => {
                        panic!("seed {seed}, {wanted:?}, levels in {levels:?}: {failure}")
                    }
                }
            }
        }
    });
    Some(used.map(AtomicU64::into_inner))
}

#[test]
fn random_problems_match_the_oracle() {
    let Some([gather, channel]) = check(0..cases()) else {
        return;
    };
    println!("gather served {gather}, channel {channel}");
    // A kernel nobody chose has not been tested.
    assert!(gather * 20 > channel, "gather served only {gather}");
    let cuda = gpu::device().unwrap();
    for (kernel, count) in [
        ("msda_forward_gather", gather),
        ("msda_forward_channel", channel),
    ] {
        gpu::evidence(
            &cuda,
            "oracle",
            &[kernel],
            &format!("{count} results, every element, 0 mismatches"),
        );
    }
}
