//! NVRTC and a disassembler for machines without CUDA, so that the ordinary tests can compile every kernel.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{chore, root};

/// The versions kernels/table.txt was written with.
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

/// Finds them under target/, or makes a virtual environment there and installs them (about 60 MB).
pub fn installed() -> Result<Nvrtc, String> {
    let environment = root().join("target/nvrtc-venv");
    if let Some(found) = find(&environment) {
        return Ok(found);
    }
    eprintln!("installing NVRTC into {}", environment.display());
    let system = if cfg!(windows) { "python" } else { "python3" };
    chore(system, &["-m", "venv"])
        .arguments(&[&environment])
        .run()?;
    let python = environment.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    chore(&python, &["-m", "pip", "install", "--quiet"])
        .arguments(&PACKAGES)
        .run()?;
    find(&environment).ok_or_else(|| format!("no NVRTC in {}", environment.display()))
}

fn find(environment: &Path) -> Option<Nvrtc> {
    let packages = if cfg!(windows) {
        environment.join("Lib/site-packages")
    } else {
        let mut versions = fs::read_dir(environment.join("lib")).ok()?;
        versions.next()?.ok()?.path().join("site-packages")
    };
    let cuda = packages.join("nvidia/cu13");
    let found = Nvrtc {
        library: cuda.join(if cfg!(windows) {
            "bin/x86_64/nvrtc64_130_0.dll"
        } else {
            "lib/libnvrtc.so.13"
        }),
        cuobjdump: cuda.join(if cfg!(windows) {
            "bin/cuobjdump.exe"
        } else {
            "bin/cuobjdump"
        }),
    };
    (found.library.exists() && found.cuobjdump.exists()).then_some(found)
}
