//! Errors of the commands, and hints how to fix them.

use std::io;
use std::path::PathBuf;

use fourtap::cuda::jit::{Architecture, JitError};

use crate::exit::ExitCode;
use crate::write_hint::write_hint;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path is not a file.
    #[error("{}: expected a file, found {found}", .file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}", .file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no kernel cache.
    #[error("cache: expected a directory for compiled kernels, found that the cache is disabled")]
    NoCache,
    /// Kernels in the cache are damaged.
    #[error("{}: expected sound kernels only, found {damaged} damaged", .directory.display())]
    DamagedKernels {
        /// The cache.
        directory: PathBuf,
        /// How many.
        damaged: usize,
    },
    /// No device looks for kernels of this architecture.
    #[error(
        "--arch {found}: expected {expected}, which is what such devices look for, found {found}"
    )]
    Architecture {
        /// What such devices look for.
        expected: Architecture,
        /// The requested architecture.
        found: Architecture,
    },
    /// The compiler does not know an architecture.
    #[error("--arch: {source}")]
    UnknownArchitecture {
        /// What it says.
        source: Box<JitError>,
    },
    /// No kernel has such a name.
    #[error("--only {only}: expected a part of a kernel's name, found none that contains it")]
    NoKernel {
        /// The part.
        only: String,
    },
    /// The requested number of jobs cannot be started.
    #[error("--jobs {requested}: expected that many threads to start: {reason}")]
    Jobs {
        /// How many.
        requested: u32,
        /// Why not.
        reason: String,
    },
    /// The requested number of threads cannot be started.
    #[error("--threads {requested}: expected that many threads to start: {reason}")]
    Threads {
        /// How many.
        requested: u32,
        /// Why not.
        reason: String,
    },
    /// The library failed.
    #[error(transparent)]
    Library(Box<fourtap::Error>),
    /// Standard output cannot be written.
    #[error("standard output: cannot be written: {0}")]
    Stdout(io::Error),
}

/// A result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user may try.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Write { file, source } => return write_hint(file, source),
            Error::NoCache => {
                "FOURTAP_CACHE_DIR is empty or off, or there is no home directory; set it to a directory"
            }
            Error::DamagedKernels { .. } => {
                "remove them with --remove; they are compiled again when next needed"
            }
            Error::Jobs { .. } => "ask for fewer jobs",
            Error::Threads { .. } => "ask for fewer threads",
            _ => return None,
        };
        Some(hint.to_string())
    }

    /// The code the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Architecture { .. } => ExitCode::USAGE,
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether the reader of standard output has gone.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Stdout(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<fourtap::Error> for Error {
    fn from(source: fourtap::Error) -> Self {
        Error::Library(Box::new(source))
    }
}

impl From<JitError> for Error {
    fn from(source: JitError) -> Self {
        fourtap::Error::from(source).into()
    }
}
