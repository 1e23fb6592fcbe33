//! The CUDA backend against the oracle. Needs a GPU; without one the tests say so and pass, unless
//! FOURTAP_REQUIRE_CUDA is set.

#[path = "common/gpu.rs"]
mod gpu;

use fourtap::cuda::msda::Wanted;
use fourtap::verify::{Case, LevelsIn, check_forward_on_cuda};

/// How many random problems; more with FOURTAP_CASES.
fn cases() -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(2000)
}

#[test]
fn random_problems_match_the_oracle() {
    let Some(cuda) = gpu::device() else { return };
    for seed in 0..cases() {
        let case = Case::random(seed);
        let levels = if seed % 3 == 0 {
            LevelsIn::Device
        } else {
            LevelsIn::Host
        };
        let channel = cuda.with_kernel(Wanted::Channel);
        for cuda in [cuda, channel] {
            if let Err(failure) = check_forward_on_cuda(&case, &cuda, levels) {
                panic!("{failure}\nrepeat: fourtap check --device cuda --seed {seed} --cases 1");
            }
        }
    }
}
