//! What this machine has of CUDA, and what is missing.

use std::path::{Path, PathBuf};

use fourtap::cuda::driver::{DeviceFacts, Driver};
use fourtap::cuda::jit::{self, Architecture, Cache, JitError, Nvrtc, Pack, PackFolder};
use serde::Serialize;

use crate::machine;
use crate::units::{bytes, dotted, gib, kernels};

/// The CUDA part of the diagnosis.
#[derive(Debug, Serialize)]
pub struct CudaDiagnosis {
    driver: Finding<DriverInfo>,
    devices: Vec<Finding<DeviceInfo>>,
    nvrtc: Finding<NvrtcInfo>,
    /// Where NVRTC was searched for, if it was not found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nvrtc_tried: Vec<String>,
    cache: Finding<CacheInfo>,
    /// `None` if no pack is named.
    pack: Option<Finding<PackInfo>>,
    /// `None` if no folder of packs is named or installed.
    kernels: Option<Finding<FolderInfo>>,
}

/// Something, or the reason why it is missing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Finding<T> {
    Found(T),
    Missing(String),
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Finding<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(found) => Finding::Found(found),
            Err(error) => Finding::Missing(error.to_string()),
        }
    }
}

#[derive(Debug, Serialize)]
struct DriverInfo {
    cuda_version: String,
    driver_version: Option<String>,
    devices: usize,
}

#[derive(Debug, Serialize)]
struct DeviceInfo {
    ordinal: usize,
    name: String,
    compute_capability: String,
    multiprocessors: u32,
    memory_bytes: usize,
    l2_bytes: u32,
}

#[derive(Debug, Serialize)]
struct NvrtcInfo {
    version: String,
    path: PathBuf,
    found: String,
}

#[derive(Debug, Serialize)]
struct CacheInfo {
    directory: PathBuf,
    kernels: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct PackInfo {
    path: PathBuf,
    kernels: usize,
}

/// The package fourtap-kernels, or a folder like it.
#[derive(Debug, Serialize)]
struct FolderInfo {
    path: PathBuf,
    version: String,
    packs: Vec<ArchitectureInfo>,
}

#[derive(Debug, Serialize)]
struct ArchitectureInfo {
    architecture: String,
    kernels: usize,
}

impl CudaDiagnosis {
    /// Runs the diagnosis.
    pub fn new() -> Self {
        let driver = Driver::get();
        let devices = match &driver {
            Ok(driver) => driver
                .devices()
                .map(|device| device.map(|device| DeviceInfo::new(device.facts())).into())
                .collect(),
            Err(_) => Vec::new(),
        };
        let nvrtc = Nvrtc::get();
        let tried = match &nvrtc {
            Err(JitError::NvrtcNotFound { tried }) => tried.clone(),
            _ => Vec::new(),
        };
        let nvrtc = match (nvrtc, tried.len()) {
            (Err(_), places @ 1..) => Finding::Missing(format!(
                "not in any of {places} places; install it (pip install nvidia-cuda-nvrtc, or a CUDA toolkit), or set \
                 FOURTAP_NVRTC to its path"
            )),
            (nvrtc, _) => nvrtc.map(NvrtcInfo::new).into(),
        };
        CudaDiagnosis {
            driver: driver
                .map(|driver| DriverInfo {
                    cuda_version: dotted(driver.version()),
                    driver_version: machine::nvidia_driver(),
                    devices: driver.device_count(),
                })
                .into(),
            devices,
            nvrtc,
            nvrtc_tried: tried,
            cache: cache(),
            pack: std::env::var_os("FOURTAP_PACK")
                .map(PathBuf::from)
                .filter(|path| *path != Path::new("") && *path != Path::new("off"))
                .filter(|path| !path.is_dir())
                .map(|path| PackInfo::open(path).into()),
            kernels: jit::pack_folder().map(|path| FolderInfo::open(&path).into()),
        }
    }

    /// The GPU `--device auto` computes on.
    pub fn used(&self) -> String {
        match (&self.driver, self.devices.first()) {
            (_, Some(Finding::Found(device))) => format!("cuda:0, {}", device.name),
            (_, Some(Finding::Missing(reason))) | (Finding::Missing(reason), None) => {
                format!("none used: {reason}")
            }
            (Finding::Found(_), None) => "none used: the driver sees no device".to_string(),
        }
    }

    /// One line each.
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = vec![(
            "driver".to_string(),
            self.driver.in_words(|driver| {
                let own = driver.driver_version.as_deref();
                let own = own.map_or(String::new(), |version| format!("{version}, "));
                format!("{own}for CUDA up to {}", driver.cuda_version)
            }),
        )];
        for (ordinal, device) in self.devices.iter().enumerate() {
            let words = device.in_words(|device| {
                format!(
                    "{}, compute capability {}, {} multiprocessors, {}, L2 cache {}",
                    device.name,
                    device.compute_capability,
                    device.multiprocessors,
                    gib(device.memory_bytes as u64),
                    bytes(device.l2_bytes.into()),
                )
            });
            lines.push((format!("cuda:{ordinal}"), words));
        }
        let nvrtc = self.nvrtc.in_words(|nvrtc| {
            let NvrtcInfo {
                version,
                path,
                found,
            } = nvrtc;
            format!("{version}, {found}: {}", path.display())
        });
        lines.push(("nvrtc".to_string(), nvrtc));
        lines.extend(
            self.nvrtc_tried
                .iter()
                .map(|place| (String::new(), place.clone())),
        );
        let cache = self.cache.in_words(|cache| {
            let (count, size) = (kernels(cache.kernels), bytes(cache.bytes));
            format!("{count}, {size} in {}", cache.directory.display())
        });
        lines.push(("cache".to_string(), cache));
        let pack = self
            .pack
            .as_ref()
            .map_or("none named by FOURTAP_PACK".to_string(), |pack| {
                pack.in_words(|pack| {
                    format!("{} in {}", kernels(pack.kernels), pack.path.display())
                })
            });
        lines.push(("pack".to_string(), pack));
        let none = "none installed (fourtap-kernels, which `cargo xtask packs` builds)".to_string();
        let folder = self.kernels.as_ref().map_or(none, |folder| {
            folder.in_words(|folder| {
                let packs = folder.packs.iter();
                let packs: Vec<_> = packs
                    .map(|pack| format!("{} {}", pack.architecture, pack.kernels))
                    .collect();
                let FolderInfo { path, version, .. } = folder;
                format!("{version} in {}: {}", path.display(), packs.join(", "))
            })
        });
        lines.push(("kernels".to_string(), folder));
        lines
    }
}

impl<T> Finding<T> {
    fn in_words(&self, words: impl FnOnce(&T) -> String) -> String {
        match self {
            Finding::Found(found) => words(found),
            Finding::Missing(reason) => format!("none: {reason}"),
        }
    }
}

impl DeviceInfo {
    fn new(facts: &DeviceFacts) -> Self {
        DeviceInfo {
            ordinal: facts.ordinal,
            name: facts.name.clone(),
            compute_capability: dotted(facts.compute_capability),
            multiprocessors: facts.multiprocessors,
            memory_bytes: facts.memory_bytes,
            l2_bytes: facts.l2_bytes,
        }
    }
}

impl NvrtcInfo {
    fn new(nvrtc: &Nvrtc) -> Self {
        NvrtcInfo {
            version: nvrtc.version().to_string(),
            path: nvrtc.path().to_path_buf(),
            found: nvrtc.found().to_string(),
        }
    }
}

impl PackInfo {
    fn open(path: PathBuf) -> Result<Self, JitError> {
        let pack = Pack::open(&path)?;
        pack.verify()?;
        Ok(PackInfo {
            path,
            kernels: pack.list().count(),
        })
    }
}

impl FolderInfo {
    fn open(path: &Path) -> Result<Self, JitError> {
        let folder = PackFolder::open(path)?;
        let count = |architecture: Architecture| {
            let pack = folder.pack(architecture)?;
            if let Some(pack) = &pack {
                pack.verify()?;
            }
            Ok(ArchitectureInfo {
                architecture: architecture.to_string(),
                kernels: pack.map_or(0, |pack| pack.list().count()),
            })
        };
        Ok(FolderInfo {
            path: path.to_path_buf(),
            version: folder.release().version.clone(),
            packs: folder
                .architectures()
                .map(count)
                .collect::<Result<_, JitError>>()?,
        })
    }
}

fn cache() -> Finding<CacheInfo> {
    let look = |cache: Cache| -> Result<CacheInfo, JitError> {
        Ok(CacheInfo {
            directory: cache.directory().to_path_buf(),
            kernels: cache.entries()?.len(),
            bytes: cache.size()?,
        })
    };
    match Cache::standard() {
        Ok(Some(cache)) => look(cache).into(),
        Ok(None) => Finding::Missing(
            "turned off by FOURTAP_CACHE_DIR, or there is no home directory".to_string(),
        ),
        Err(error) => Finding::Missing(error.to_string()),
    }
}
