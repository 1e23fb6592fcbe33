//! Shapes to run under compute-sanitizer: small, many, every kernel. Which tool watches is in FOURTAP_SANITIZER.

use crate::gpu;
use crate::oracle;

#[test]
fn shapes() {
    let Ok(tool) = std::env::var("FOURTAP_SANITIZER") else {
        return;
    };
    // From a seed the oracle test does not reach.
    let cases = 60;
    let Some([gather, channel]) = oracle::check(1_000_000..1_000_000 + cases) else {
        return;
    };
    let cuda = gpu::device().unwrap();
    assert!(gather > 0 && channel > 0);
    for (kernel, count) in [
        ("msda_forward_gather", gather),
        ("msda_forward_channel", channel),
    ] {
        gpu::evidence(&cuda, &tool, &[kernel], &format!("{count} launches"));
    }
}
