//! Shapes to run under compute-sanitizer: small, many, every kernel. Which tool watches is in FOURTAP_SANITIZER.

use fourtap::verify::Case;

use crate::gpu;
use crate::oracle::{check, evidence};

/// Cases of each taste. Each is computed by up to three kernels, with levels in host and in device memory.
const CASES: u64 = 40;

/// From a seed the oracle test does not reach.
const FIRST: u64 = 1_000_000;

#[test]
fn shapes() {
    let (Ok(tool), Some(cuda)) = (std::env::var("FOURTAP_SANITIZER"), gpu::device()) else {
        return;
    };
    let served = check(&cuda, FIRST..FIRST + CASES, Case::random);
    let aligned = check(&cuda, FIRST..FIRST + CASES, Case::aligned);
    let more = aligned.gather.into_inner();
    served
        .gather
        .fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    evidence(&cuda, &tool, served);
}
