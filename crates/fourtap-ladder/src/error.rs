//! Errors of the ladder, and hints what to do about them.

use fourtap::cuda::CudaError;
use fourtap_lab::extension::{Error, ExitCode};

/// Why a run failed, where the lab has no such error.
#[derive(Debug, thiserror::Error)]
pub enum LadderError {
    /// What was typed means nothing.
    #[error("{0}")]
    Usage(clap::Error),
    /// No rung has this name.
    #[error("{name}: expected a rung of the ladder, found none of that name")]
    UnknownRung { name: String, near: Option<String> },
    /// A parameter of a rung that cannot be chosen so.
    #[error("--set {setting}: expected {expected}")]
    Setting { setting: String, expected: String },
    /// Rungs are kernels for CUDA devices.
    #[error("ladder: expected to compute on a CUDA device, found the CPU")]
    OnCpu,
    /// There is no device to run on.
    #[error("ladder: expected a CUDA device, found none to use: {0}")]
    NoDevice(Box<CudaError>),
    /// A rung computed something else.
    #[error("rung {rung}: expected the oracle's result, found {found}")]
    Wrong { rung: &'static str, found: String },
}

impl LadderError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            LadderError::UnknownRung {
                near: Some(near), ..
            } => return Some(format!("did you mean {near}?")),
            LadderError::UnknownRung { .. } | LadderError::Setting { .. } => {
                "`fourtap-ladder ladder --list` shows the rungs and their parameters"
            }
            LadderError::OnCpu => "leave --device out, or use --device cuda:N",
            LadderError::NoDevice(_) => {
                "--list shows the rungs and `fourtap report` what they did elsewhere; `fourtap doctor` says what is missing"
            }
            LadderError::Usage(_) | LadderError::Wrong { .. } => return None,
        };
        Some(hint.to_string())
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            LadderError::Wrong { .. } => ExitCode::MISMATCH,
            LadderError::Usage(_) | LadderError::OnCpu => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

impl From<LadderError> for Error {
    fn from(error: LadderError) -> Self {
        Error::Extension {
            message: error.to_string(),
            hint: error.hint(),
            exit_code: error.exit_code(),
        }
    }
}
