//! The device the tests that need one use.

use fourtap::cuda::Cuda;

/// The first device; without one the test that asks is skipped, or fails if FOURTAP_REQUIRE_CUDA is set.
pub fn device() -> Option<Cuda> {
    match Cuda::new(0) {
        Ok(cuda) => Some(cuda),
        Err(error) => {
            let required = std::env::var_os("FOURTAP_REQUIRE_CUDA").is_some();
            assert!(!required, "a GPU is required: {error}");
            eprintln!("skipped, no GPU: {error}");
            None
        }
    }
}
