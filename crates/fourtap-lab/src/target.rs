//! The device to compute on.

use fourtap::Backend;
use fourtap::cpu::{Cpu, Simd};
use fourtap::cuda::driver::{self, Driver};
use fourtap::cuda::jit::Nvrtc;
use fourtap::cuda::{Cuda, CudaError};
use serde::{Deserialize, Serialize};

use crate::cli::{DeviceChoice, TargetArgs};
use crate::error::{Error, Result};
use crate::machine;
use crate::table;

pub use fourtap_admin::units::dotted;

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
    /// "cpu" or "cuda".
    pub kind: String,
    /// Its name, if it tells.
    pub model: Option<String>,
    /// The vector instructions in use; of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simd: Option<String>,
    /// Threads in use; of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// What only a CUDA device has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaDevice>,
}

/// What a record says about a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// Its number.
    pub ordinal: usize,
    /// As in "9.0".
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u32,
    /// Bytes of memory.
    pub memory_bytes: usize,
    /// The newest CUDA version the driver runs.
    pub driver_cuda: String,
    /// The driver's own version, if the system tells.
    pub driver: Option<String>,
    /// The version of the compiler; none if kernels come from a pack.
    pub nvrtc: Option<String>,
}

/// The numbers of "13.0".
pub fn parse_dotted(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What `arguments` ask for, before it is known what there is to compute.
#[derive(Clone, Debug)]
pub enum RequestedTarget {
    /// These vector paths, best first.
    Cpu(Vec<Simd>),
    /// This device, with the kernel and the mode asked for.
    Cuda(Cuda),
}

impl RequestedTarget {
    /// Resolves `auto`.
    pub fn new(arguments: &TargetArgs) -> Result<Self> {
        let found = |requested| {
            let cuda = Cuda::new(requested as usize)?.deterministic(arguments.deterministic);
            Ok(match arguments.kernel {
                Some(kernel) => cuda.with_msda(kernel),
                None => cuda,
            })
        };
        let cuda = match arguments.device {
            DeviceChoice::Cpu => None,
            // Naming a path of the processor is asking for it.
            DeviceChoice::Auto if arguments.simd.is_some() => None,
            DeviceChoice::Auto => found(0).ok(),
            DeviceChoice::Cuda(ordinal) => {
                Some(found(ordinal).map_err(|source: CudaError| Error::NoCuda {
                    requested: arguments.device.to_string(),
                    source: Box::new(source),
                })?)
            }
        };
        match cuda {
            Some(cuda) if arguments.simd.is_some() => Err(Error::Misplaced {
                option: "--simd",
                expected: "the CPU",
                found: format!("cuda:{}", cuda.ordinal()),
            }),
            None if arguments.kernel.is_some() => Err(Error::Misplaced {
                option: "--kernel",
                expected: "a CUDA device",
                found: "the CPU".to_string(),
            }),
            Some(cuda) => Ok(RequestedTarget::Cuda(cuda)),
            None => Ok(RequestedTarget::Cpu(match arguments.simd {
                Some(simd) => vec![Cpu::with_simd(simd.into())?.simd()],
                None => Simd::available().collect(),
            })),
        }
    }
}

impl Target {
    /// The one `arguments` ask for.
    pub fn new(arguments: &TargetArgs) -> Result<Self> {
        match RequestedTarget::new(arguments)? {
            RequestedTarget::Cuda(cuda) => Ok(Target {
                device: Device::of_cuda(&cuda.device()),
                backend: Backend::Cuda(cuda),
            }),
            RequestedTarget::Cpu(paths) => {
                let simd = paths.first().copied().unwrap_or(Simd::Portable);
                Ok(Target {
                    backend: Backend::Cpu(Cpu::with_simd(simd)?),
                    device: Device::of_cpu(simd),
                })
            }
        }
    }

    /// The device, if it is one.
    pub fn cuda(&self) -> Option<Cuda> {
        match self.backend {
            Backend::Cuda(cuda) => Some(cuda),
            _ => None,
        }
    }
}

impl Device {
    /// This processor, with these vector instructions.
    pub fn of_cpu(simd: Simd) -> Self {
        Device {
            kind: "cpu".to_string(),
            model: machine::cpu_model(),
            simd: Some(simd.name().to_string()),
            threads: Some(rayon::current_num_threads()),
            cuda: None,
        }
    }

    /// A CUDA device.
    pub fn of_cuda(device: &driver::Device) -> Self {
        let facts = device.facts();
        Device {
            kind: "cuda".to_string(),
            model: Some(facts.name.clone()),
            simd: None,
            threads: None,
            cuda: Some(CudaDevice {
                ordinal: facts.ordinal,
                compute_capability: dotted(facts.compute_capability),
                multiprocessors: facts.multiprocessors,
                l2_bytes: facts.l2_bytes,
                memory_bytes: facts.memory_bytes,
                driver_cuda: Driver::get().map_or(String::new(), |driver| dotted(driver.version())),
                driver: machine::nvidia_driver(),
                nvrtc: Nvrtc::get().ok().map(|nvrtc| nvrtc.version().to_string()),
            }),
        }
    }

    /// In a few words.
    pub fn in_words(&self) -> String {
        let model = self.model.as_deref().unwrap_or("unknown processor");
        let mut words = vec![];
        words.extend(self.simd.clone());
        words.extend(self.threads.map(table::threads));
        if let Some(cuda) = &self.cuda {
            words.push(format!("CUDA {} driver", cuda.driver_cuda));
            words.extend(
                cuda.nvrtc
                    .as_ref()
                    .map(|version| format!("NVRTC {version}")),
            );
        }
        format!("{model}: {}", words.join(", "))
    }
}
