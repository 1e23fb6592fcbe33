//! NVRTC and a disassembler for machines without CUDA, so that the ordinary tests can compile every kernel.

use std::path::PathBuf;

use crate::environment;

/// The versions kernels/table.txt was written with; about 60 MB.
const PACKAGES: [&str; 3] = [
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-cuobjdump==13.4.92",
    "nvidia-cuda-nvdisasm==13.4.92",
];

/// Where things are.
pub struct Nvrtc {
    /// The library.
    pub library: PathBuf,
    /// The disassembler.
    pub cuobjdump: PathBuf,
}

/// Installs them, or finds them as they were installed.
pub fn installed() -> Result<Nvrtc, String> {
    let environment = environment::of_packages("nvrtc", &PACKAGES)?;
    let packages = environment.packages().unwrap_or_default();
    let cuda = packages.join("nvidia/cu13");
    let (library, cuobjdump) = match cfg!(windows) {
        true => ("bin/x86_64/nvrtc64_130_0.dll", "bin/cuobjdump.exe"),
        false => ("lib/libnvrtc.so.13", "bin/cuobjdump"),
    };
    let (library, cuobjdump) = (cuda.join(library), cuda.join(cuobjdump));
    match library.exists() && cuobjdump.exists() {
        true => Ok(Nvrtc { library, cuobjdump }),
        false => Err(format!("no NVRTC in {}", packages.display())),
    }
}
