//! The device, and what was proven on it.

use std::fs::OpenOptions;
use std::io::Write;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Driver;
use fourtap::cuda::jit::Nvrtc;
use fourtap::cuda::msda::shipped;

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

/// Waits for everything queued on the device's stream.
pub fn wait(cuda: &Cuda) {
    let _entered = cuda.context().enter().unwrap();
    cuda.stream().synchronize().unwrap();
}

/// Says in the file FOURTAP_EVIDENCE names, if any, that `kernels` passed `check`: one JSON record a kernel, with the
/// hash of the source that was compiled.
pub fn evidence(cuda: &Cuda, check: &str, kernels: &[&str], details: &str) {
    let Some(path) = std::env::var_os("FOURTAP_EVIDENCE") else {
        return;
    };
    let (major, minor) = Driver::get().unwrap().version();
    let (cc_major, cc_minor) = cuda.device().compute_capability();
    let nvrtc = Nvrtc::get().map_or("none".to_string(), |nvrtc| nvrtc.version().to_string());
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    for kernel in shipped()
        .iter()
        .filter(|kernel| kernels.contains(&kernel.entry))
    {
        let line = format!(
            "{{\"check\":\"{check}\",\"kernel\":\"{}\",\"source\":\"{}\",\"passed\":true,\"details\":\"{details}\",\
             \"device\":\"{}\",\"compute_capability\":\"{cc_major}.{cc_minor}\",\"driver\":\"{major}.{minor}\",\
             \"nvrtc\":\"{nvrtc}\"}}\n",
            kernel.entry,
            kernel.source_hash,
            cuda.device().name(),
        );
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// The names of all shipped kernels.
pub fn all() -> Vec<&'static str> {
    shipped().iter().map(|kernel| kernel.entry).collect()
}
