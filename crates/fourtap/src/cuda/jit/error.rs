//! Errors of kernel compilation, cache and packs.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Architecture, NvrtcVersion};

/// Why there is no machine code.
///
/// Each message says what was expected, what was found, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JitError {
    /// A text is not the name of an architecture.
    #[error("architecture: expected a name such as sm_80, sm_90a or sm_100f, found {found:?}")]
    ArchitectureName {
        /// The text.
        found: String,
    },
    /// No NVRTC in any of the usual places.
    #[error(
        "NVRTC: expected libnvrtc.so.13 or libnvrtc.so.12 in one of the usual places, found none. Install it \
         (pip install nvidia-cuda-nvrtc, or a CUDA toolkit), or set FOURTAP_NVRTC to the library's path, or use compiled \
         kernels (the package fourtap-kernels, which `cargo xtask packs` builds, or FOURTAP_PACK). Tried: {}",
        tried.join("; ")
    )]
    NvrtcNotFound {
        /// Every place searched and why it could not be used.
        tried: Vec<String>,
    },
    /// The library named by `FOURTAP_NVRTC` cannot be used.
    #[error(
        "FOURTAP_NVRTC: expected the path of a usable NVRTC library, found {path}: {reason}. Correct the path, or \
         unset FOURTAP_NVRTC to search the usual places",
        path = path.display()
    )]
    NvrtcUnusable {
        /// The value of the variable.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The loader refused a library.
    #[error("{path}: expected a loadable library, found: {reason}", path = path.display())]
    NvrtcLoad {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// A library that lacks one of NVRTC's functions.
    #[error(
        "{path}: expected NVRTC {needed} or newer, found a library without {symbol}",
        path = path.display(),
        needed = NvrtcVersion::OLDEST
    )]
    NvrtcSymbol {
        /// The library.
        path: PathBuf,
        /// The function it lacks.
        symbol: &'static str,
    },
    /// An NVRTC that is too old.
    #[error(
        "{path}: expected NVRTC {needed} or newer, found {found}. Install a newer CUDA toolkit or set FOURTAP_NVRTC",
        path = path.display()
    )]
    NvrtcTooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: NvrtcVersion,
        /// The oldest supported version.
        needed: NvrtcVersion,
    },
    /// An NVRTC function failed for another reason than the kernel's source.
    #[error("NVRTC: expected {call} to succeed, found error {code} ({message})")]
    NvrtcCall {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// NVRTC's message.
        message: String,
    },
    /// A kernel's name, source or option cannot be handed to NVRTC.
    #[error("kernel {kernel}: expected text without NUL bytes, found one in its {part}")]
    NulByte {
        /// Name of the kernel.
        kernel: String,
        /// Which text it is.
        part: &'static str,
    },
    /// The kernel does not compile.
    #[error(
        "kernel {kernel}: expected it to compile for {architecture} with NVRTC {version}, found: {message}\n{log}",
        log = log.trim_end()
    )]
    Compile {
        /// Name of the kernel.
        kernel: String,
        /// What it was compiled for.
        architecture: Architecture,
        /// The compiler's version.
        version: NvrtcVersion,
        /// NVRTC's message.
        message: String,
        /// What the compiler printed.
        log: String,
    },
    /// This NVRTC cannot compile for an architecture.
    #[error(
        "{architecture}: expected an architecture NVRTC {version} knows ({known}), found another. Install a CUDA \
         toolkit that knows it, or use a pack with kernels for it (FOURTAP_PACK)"
    )]
    ArchitectureUnsupported {
        /// The architecture asked for.
        architecture: Architecture,
        /// The compiler's version.
        version: NvrtcVersion,
        /// The architectures it knows.
        known: String,
    },
    /// This NVRTC cannot compile for a device.
    #[error(
        "device of compute capability {major}.{minor}: expected one NVRTC {version} can compile for ({oldest} to \
         {newest}), found {}. Install {} CUDA toolkit, or use a pack with kernels for the device (FOURTAP_PACK)",
        if (*major, *minor) > (newest.major(), newest.minor()) { "a newer one" } else { "another" },
        if (*major, *minor) < (oldest.major(), oldest.minor()) { "an older" } else { "a newer" },
    )]
    DeviceUnsupported {
        /// Major part of the device's compute capability.
        major: u32,
        /// Minor part.
        minor: u32,
        /// The compiler's version.
        version: NvrtcVersion,
        /// The oldest architecture it knows.
        oldest: Architecture,
        /// The newest architecture it knows.
        newest: Architecture,
    },
    /// A cache directory in which other users could plant code.
    #[error(
        "{path}: expected a kernel cache that only this user can write to, found it {found}. Remove it, correct it \
         (chmod go-w), or set FOURTAP_CACHE_DIR to another directory",
        path = path.display()
    )]
    CacheUnsafe {
        /// The directory.
        path: PathBuf,
        /// Who else can write to it.
        found: String,
    },
    /// A file or directory could not be used.
    #[error("{path}: expected to {action}, found: {message}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The kind of failure.
        kind: ErrorKind,
        /// The system's message.
        message: String,
    },
    /// A corrupt pack.
    #[error(
        "{path}: expected a sound pack of kernels, found {found}. Write the pack again",
        path = path.display()
    )]
    PackDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// A folder of packs for another version of this library.
    #[error(
        "{path}: expected kernels of {expected}, found those of {found}. Install fourtap-kernels {version}, \
         which `cargo xtask packs` builds",
        path = path.display()
    )]
    PackStale {
        /// The folder.
        path: PathBuf,
        /// This library.
        expected: String,
        /// What the kernels were compiled from.
        found: String,
        /// This library's version.
        version: String,
    },
    /// Bytes that are not a CUDA ELF file.
    #[error("machine code: expected a 64-bit CUDA ELF file, found {found}")]
    Cubin {
        /// What is wrong with it.
        found: String,
    },
}

impl JitError {
    /// Keeps the parts of an I/O error that can be cloned and compared.
    pub(super) fn io(path: &Path, action: &'static str, error: &io::Error) -> Self {
        JitError::Io {
            path: path.to_path_buf(),
            action,
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}
