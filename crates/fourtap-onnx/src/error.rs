//! Why a node could not be made or run.

use crate::api::{Api, FAIL, INVALID_ARGUMENT, Status};

/// Why a node could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ONNX Runtime says so itself.
    #[error("an error of ONNX Runtime")]
    Runtime(*mut Status),
    /// An input or attribute is not what the node takes.
    #[error("{argument}: expected {expected}, found {found}")]
    Argument {
        argument: String,
        expected: String,
        found: String,
    },
    /// The library refused the call, or failed.
    #[error(transparent)]
    Library(#[from] fourtap::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An input or attribute that cannot be.
    pub fn argument(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        Error::Argument {
            argument: argument.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    /// As ONNX Runtime reports errors.
    pub fn into_status(self, api: Api) -> *mut Status {
        let code = match &self {
            Error::Runtime(status) => return *status,
            Error::Library(fourtap::Error::Cuda(_) | fourtap::Error::OutOfMemory { .. }) => FAIL,
            _ => INVALID_ARGUMENT,
        };
        api.create_status(code, &format!("fourtap: {self}"))
    }
}
