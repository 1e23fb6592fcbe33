//! The library's errors as exceptions of the package, which python/fourtap/errors.py defines.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// Which exception.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Input,
    DType,
    Unsupported,
    Cuda,
    OutOfMemory,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::Input => "InputError",
            Kind::DType => "DTypeError",
            Kind::Unsupported => "UnsupportedError",
            Kind::Cuda => "CudaError",
            Kind::OutOfMemory => "OutOfMemoryError",
        }
    }
}

/// The exception of this kind with this message.
pub fn exception(py: Python<'_>, kind: Kind, message: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("fourtap.errors").map(Bound::unbind));
    let made = module.and_then(|module| module.bind(py).getattr(kind.class())?.call1((message,)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // The package is broken: raise that error instead.
        Err(error) => error,
    }
}

/// The exception for a tensor, worded like the library's errors.
pub fn unexpected(
    py: Python<'_>,
    kind: Kind,
    tensor: &str,
    expected: &str,
    found: impl std::fmt::Display,
) -> PyErr {
    let message = format!("{tensor}: expected {expected}, found {found}");
    exception(py, kind, message)
}

/// The library's error.
pub fn raise(py: Python<'_>, error: fourtap::Error) -> PyErr {
    use fourtap::Error;
    let kind = match error {
        // By whoever interrupted something else that shared its flag.
        Error::Cancelled => return PyKeyboardInterrupt::new_err(error.to_string()),
        Error::DType { .. } => Kind::DType,
        Error::Unsupported { .. } => Kind::Unsupported,
        Error::Cuda(_) => Kind::Cuda,
        Error::OutOfMemory { .. } => Kind::OutOfMemory,
        _ => Kind::Input,
    };
    exception(py, kind, error.to_string())
}
