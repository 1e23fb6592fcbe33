//! How a call ends: a status, and a message for the thread that made it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. fourtap_last_error_message() says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The result is computed; on CUDA, its computation is queued on the stream.
    Ok = 0,
    /// A descriptor, tensor or number does not fit the call. Nothing was written.
    InvalidArgument = 1,
    /// The device cannot compute this call. Nothing was written.
    Unsupported = 2,
    /// There is not enough memory for a workspace. Nothing was written.
    OutOfMemory = 3,
    /// The CUDA driver, the compilation of a kernel or the device failed.
    Cuda = 4,
    /// A tuning table, which FOURTAP_TUNE or the user's settings name, cannot be read. Nothing was written.
    TuningTable = 5,
    /// A fault in this library; outputs may be incomplete.
    Internal = 6,
}

/// Why a call was refused or failed. Messages name the argument, what was expected and what was found, as the library's do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A pointer that must not be null.
    #[error("{argument}: expected a pointer, found NULL")]
    Null { argument: &'static str },
    /// A descriptor of a version that this library does not know.
    #[error("{argument}: expected struct_size {expected}, found {found}")]
    StructSize {
        argument: &'static str,
        expected: String,
        found: u32,
    },
    /// A number that is not among those that are defined, or allowed here.
    #[error("{argument}: expected {expected}, found {found}")]
    Value {
        argument: String,
        expected: String,
        found: String,
    },
    /// The library refused the call, or failed.
    #[error(transparent)]
    Library(#[from] fourtap::Error),
}

impl Error {
    /// A number of an argument that cannot be.
    pub fn value(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        Error::Value {
            argument: argument.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    fn status(&self) -> Status {
        match self {
            Error::Library(fourtap::Error::Cuda(_)) => Status::Cuda,
            Error::Library(fourtap::Error::OutOfMemory { .. }) => Status::OutOfMemory,
            Error::Library(fourtap::Error::Unsupported { .. }) => Status::Unsupported,
            Error::Library(fourtap::Error::Tuning { .. }) => Status::TuningTable,
            // No call has a flag by which to cancel it.
            Error::Library(fourtap::Error::Cancelled) => Status::Internal,
            _ => Status::InvalidArgument,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function: an error or a panic in it becomes a status and the thread's message.
pub fn answer(body: impl FnOnce() -> Result<()>) -> Status {
    // What a panic leaves half done is what the caller lent, which `Status::Internal` tells of.
    let (status, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => (error.status(), error.to_string()),
        Err(panic) => (
            Status::Internal,
            format!("fault in fourtap: {}", words_of(&*panic)),
        ),
    };
    // A message has no zero inside, unless a path or name in it has: then it ends there.
    let until_zero = message.split('\0').next().unwrap_or_default();
    let message = CString::new(until_zero).unwrap_or_default();
    // While a thread ends its message may be gone already; the status is not.
    let _ = LAST_MESSAGE.try_with(|last| last.replace(message));
    status
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// Why the last call of this thread that did not return FOURTAP_STATUS_OK failed: the argument, what was expected and what was found.
/// Empty if none has. Valid until the thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn fourtap_last_error_message() -> *const c_char {
    let message = LAST_MESSAGE.try_with(|last| last.borrow().as_ptr());
    message.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        let status = answer(|| panic!("index 7 of {}", 3));
        assert_eq!(status, Status::Internal);
        // SAFETY: the message of this thread, which makes no other call meanwhile.
        let message = unsafe { CStr::from_ptr(fourtap_last_error_message()) };
        assert_eq!(message, c"fault in fourtap: index 7 of 3");
    }

    #[test]
    fn a_message_ends_at_a_zero() {
        answer(|| Err(Error::value("table", "a path", "a\0b")));
        // SAFETY: as above.
        let message = unsafe { CStr::from_ptr(fourtap_last_error_message()) };
        assert_eq!(message, c"table: expected a path, found a");
    }

    #[test]
    fn a_thread_has_a_message_of_its_own() {
        answer(|| Err(Error::Null { argument: "here" }));
        let other = std::thread::spawn(|| {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(fourtap_last_error_message()) }.to_owned()
        });
        assert_eq!(other.join().unwrap(), c"".to_owned());
    }
}
