//! Where to compute.

use fourtap::Backend;
use fourtap::cpu::{Cpu, Simd};
use serde::{Deserialize, Serialize};

use crate::cli::{DeviceChoice, TargetArgs};
use crate::error::{Error, Result};
use crate::machine;

/// A backend, and what a record says about it.
#[derive(Clone, Debug)]
pub struct Target {
    /// To call the library with.
    pub backend: Backend,
    /// For the record.
    pub device: Device,
}

/// What a result was computed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// "cpu".
    pub kind: String,
    /// Its name, if it tells.
    pub model: Option<String>,
    /// The vector instructions in use.
    pub simd: String,
    /// Threads in use.
    pub threads: usize,
}

/// The vector paths `arguments` ask for: the one named, else all there are, best first.
pub fn paths(arguments: &TargetArgs) -> Result<Vec<Simd>> {
    if let DeviceChoice::Cuda(number) = arguments.device {
        return Err(Error::NoCuda {
            requested: format!("cuda:{number}"),
        });
    }
    match arguments.simd {
        Some(simd) => Ok(vec![Cpu::with_simd(simd.into())?.simd()]),
        None => Ok(Simd::available().collect()),
    }
}

impl Target {
    /// The one `arguments` ask for.
    pub fn new(arguments: &TargetArgs) -> Result<Self> {
        let simd = paths(arguments)?.first().copied().unwrap_or(Simd::Portable);
        let cpu = Cpu::with_simd(simd)?;
        let device = Device {
            kind: "cpu".to_string(),
            model: machine::cpu_model(),
            simd: simd.name().to_string(),
            threads: rayon::current_num_threads(),
        };
        Ok(Target {
            backend: Backend::Cpu(cpu),
            device,
        })
    }
}
