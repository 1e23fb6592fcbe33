//! The device, and what was proven on it.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Driver;
use fourtap::cuda::jit::Nvrtc;
use fourtap::cuda::shipped;
use fourtap::{Error, Prepared};

/// The first device, which every test here needs but those that are not ignored.
pub fn device() -> Cuda {
    Cuda::new(0).expect("a CUDA device")
}

/// The tool of compute-sanitizer that watches.
pub fn sanitizer() -> String {
    std::env::var("FOURTAP_SANITIZER").expect("FOURTAP_SANITIZER names the tool, or is \"none\"")
}

/// A device, and a workspace for calls on it.
#[derive(Clone, Copy)]
pub struct DeviceWithWorkspace {
    pub cuda: Cuda,
    /// Address and size; `None` allocates on the stream.
    memory: Option<(u64, usize)>,
}

impl DeviceWithWorkspace {
    /// This much, from this address on.
    ///
    /// # Safety
    /// It is the device's, and nothing but one call after another uses it.
    pub unsafe fn new(cuda: &Cuda, address: u64, bytes: usize) -> Self {
        DeviceWithWorkspace {
            cuda: *cuda,
            memory: Some((address, bytes)),
        }
    }

    pub fn launch(&self, call: Prepared<'_>) -> Result<(), Error> {
        match self.memory {
            // SAFETY: as whoever made this promised.
            Some((address, bytes)) => unsafe { call.launch_in(address, bytes) },
            None => call.launch(),
        }
    }
}

impl From<&Cuda> for DeviceWithWorkspace {
    fn from(cuda: &Cuda) -> Self {
        DeviceWithWorkspace {
            cuda: *cuda,
            memory: None,
        }
    }
}

/// Waits for everything queued on the device's stream.
pub fn wait(cuda: &Cuda) {
    let _entered = cuda.context().enter().unwrap();
    cuda.stream().synchronize().unwrap();
}

/// Records in the file that FOURTAP_EVIDENCE names, if any, that `kernels` passed `check`: one JSON record per kernel, with the
/// hash of the source that was compiled.
pub fn evidence(cuda: &Cuda, check: &str, kernels: &[&str], details: &str) {
    let Some(path) = std::env::var_os("FOURTAP_EVIDENCE").filter(|path| !path.is_empty()) else {
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

/// The shipped kernels whose names begin so.
pub fn kernels(prefix: &str) -> Vec<&'static str> {
    let names = shipped().into_iter().map(|kernel| kernel.entry);
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// How many results of each kernel were right.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<&'static str, u64>>);

impl Tally {
    /// One more result of these kernels.
    pub fn add(&self, kernels: impl IntoIterator<Item = &'static str>) {
        let mut counts = self.0.lock().unwrap();
        for kernel in kernels {
            *counts.entry(kernel).or_default() += 1;
        }
    }

    /// How many results of a kernel there were.
    pub fn count(&self, kernel: &str) -> u64 {
        self.0.lock().unwrap().get(kernel).copied().unwrap_or(0)
    }

    /// Records that `kernels` passed `check`. A kernel that no problem used has not been tested: that is a failure.
    pub fn evidence(&self, cuda: &Cuda, check: &str, kernels: &[&str], details: &str) {
        for kernel in kernels {
            let count = self.count(kernel);
            println!("{check}: {kernel} served {count}");
            assert!(count > 0, "{kernel}: not one result for {check}");
            evidence(cuda, check, &[kernel], &format!("{count} {details}"));
        }
    }
}
