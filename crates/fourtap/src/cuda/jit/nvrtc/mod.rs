//! NVRTC, NVIDIA's compiler as a library, loaded when first needed.

mod build;
mod functions;
mod load;
mod locate;

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use self::functions::{Functions, Unit};
use super::architecture::Feature;
use super::program::FIXED_OPTIONS;
use super::{Architecture, JitError, Program};
pub use build::NvrtcBuild;

/// The version of an NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NvrtcVersion {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl NvrtcVersion {
    /// The oldest supported version: the first to know `sm_90a`.
    pub const OLDEST: NvrtcVersion = NvrtcVersion {
        major: 12,
        minor: 0,
    };
    /// The first version to know the suffix `f`.
    const FAMILIES: NvrtcVersion = NvrtcVersion {
        major: 12,
        minor: 9,
    };
}

impl fmt::Display for NvrtcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.major, self.minor))
    }
}

/// The output of the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    /// Machine code: a cubin, for the driver to load.
    pub code: Vec<u8>,
    /// What the compiler printed: warnings, if any.
    pub log: String,
}

/// A loaded NVRTC. May be used from any number of threads at once.
pub struct Nvrtc {
    functions: Functions,
    version: NvrtcVersion,
    /// Of the library and its built-ins.
    identifiers: Vec<Vec<u8>>,
    path: PathBuf,
    found: String,
    /// Compute capabilities it compiles for, ascending.
    known: Vec<(u32, u32)>,
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc")
            .field("version", &self.version)
            .field("path", &self.path)
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

impl Nvrtc {
    /// This process's NVRTC. The first call searches for it; later ones return the same result, also a failure.
    pub fn get() -> Result<&'static Nvrtc, JitError> {
        static FOUND: OnceLock<Result<Nvrtc, JitError>> = OnceLock::new();
        FOUND.get_or_init(load::find).as_ref().map_err(Clone::clone)
    }

    /// Loads the library at `path`, and nothing else.
    pub fn load(path: &Path) -> Result<Nvrtc, JitError> {
        load::file(path, "named by the caller")
    }

    /// Its version.
    pub fn version(&self) -> NvrtcVersion {
        self.version
    }

    /// Its version and build, and the options that it takes from the environment now: what the code it makes depends on.
    pub fn build(&self) -> NvrtcBuild {
        NvrtcBuild {
            version: self.version,
            id: build::id(&self.identifiers, |name| std::env::var_os(name)),
        }
    }

    /// The library's path, or only its name if the system does not report the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was found, as text.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Whether it compiles for an architecture.
    pub fn supports(&self, architecture: Architecture) -> bool {
        let known = self
            .known
            .contains(&(architecture.major(), architecture.minor()));
        known
            && match architecture.feature() {
                Feature::Plain => true,
                Feature::Family => {
                    architecture.major() >= 10 && self.version >= NvrtcVersion::FAMILIES
                }
                Feature::Exact => architecture.major() >= 9,
            }
    }

    /// The best architecture it can compile for that a device of this compute capability runs.
    pub fn best_for(&self, major: u32, minor: u32) -> Result<Architecture, JitError> {
        let plain = |&(major, minor): &(u32, u32)| Architecture::new(major, minor, Feature::Plain);
        let older = self.known.iter().rev().map(plain);
        [Architecture::of_device(major, minor)]
            .into_iter()
            .chain(older)
            .find(|&architecture| self.supports(architecture) && architecture.runs_on(major, minor))
            .ok_or_else(|| JitError::DeviceUnsupported {
                major,
                minor,
                version: self.version,
                oldest: self.known.first().map_or(Architecture::NONE, plain),
                newest: self.known.last().map_or(Architecture::NONE, plain),
            })
    }

    /// Compiles a program to machine code.
    pub fn compile(&self, program: &Program) -> Result<CompiledProgram, JitError> {
        let architecture = program.architecture;
        if !self.supports(architecture) {
            let plain = |&(major, minor): &(u32, u32)| format!("sm_{major}{minor}");
            let known: Vec<_> = self.known.iter().map(plain).collect();
            return Err(JitError::ArchitectureUnsupported {
                architecture,
                version: self.version,
                known: known.join(" "),
            });
        }
        let text = |text: &str, part| {
            CString::new(text).map_err(|_| JitError::NulByte {
                kernel: program.name.clone(),
                part,
            })
        };
        let source = text(&program.source, "source")?;
        let name = text(&format!("{}.cu", program.name), "name")?;
        let target = format!("--gpu-architecture={architecture}");
        let options: Vec<CString> = [target.as_str()]
            .into_iter()
            .chain(FIXED_OPTIONS)
            .chain(program.options.iter().map(String::as_str))
            .map(|option| text(option, "options"))
            .collect::<Result<_, _>>()?;
        let unit = Unit::new(&self.functions, &source, &name)?;
        let code = unit.compile(&options);
        let log = unit.log()?;
        if code != 0 {
            return Err(JitError::Compile {
                kernel: program.name.clone(),
                architecture,
                version: self.version,
                message: self.functions.words(code),
                log,
            });
        }
        Ok(CompiledProgram {
            code: unit.code()?,
            log,
        })
    }
}
