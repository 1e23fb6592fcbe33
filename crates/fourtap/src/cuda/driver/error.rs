//! Errors of the CUDA driver.

/// Why a driver call failed.
///
/// Each message is one line, and names what was attempted and CUDA's own word for the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver is not installed, or not where the system looks for libraries.
    #[error("no NVIDIA driver: {library} was not found")]
    NoDriver {
        /// File name of the driver's library.
        library: &'static str,
    },
    /// The driver's library exists and does not load.
    #[error("the NVIDIA driver does not load: {reason}")]
    Unloadable {
        /// What the system's loader said.
        reason: String,
    },
    /// The driver is older than the functions this crate calls.
    #[error(
        "the NVIDIA driver is too old: expected one for CUDA {}.{} or later, found {}.{}",
        needed.0, needed.1, found.0, found.1
    )]
    TooOld {
        /// The CUDA version the driver has.
        found: (u32, u32),
        /// The oldest that works.
        needed: (u32, u32),
    },
    /// The driver lacks a function that its version promises.
    #[error("the NVIDIA driver is incomplete: {function} is missing")]
    MissingFunction {
        /// Name of the function.
        function: &'static str,
    },
    /// The driver did not start, for example because there is no GPU.
    #[error("the NVIDIA driver did not start: {name} ({code}): {text}")]
    Init {
        /// CUDA's number for the error.
        code: i32,
        /// CUDA's name for it.
        name: &'static str,
        /// CUDA's explanation.
        text: &'static str,
    },
    /// There are fewer GPUs.
    #[error("device {ordinal}: expected one of the {count} there are")]
    NoSuchDevice {
        /// The index asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU's memory is full.
    #[error("device memory: expected {bytes} free bytes, found {free}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free, perhaps not in one piece.
        free: usize,
    },
    /// A copy's two sides differ in size.
    #[error("device memory: expected {expected} bytes to copy, found {found}")]
    Length {
        /// Bytes of the buffer.
        expected: usize,
        /// Bytes of the slice.
        found: usize,
    },
    /// Bytes are not machine code that can be handed to the driver.
    #[error("kernel code: expected a cubin, a fat binary or PTX, found {found}")]
    BadCode {
        /// What the bytes are instead.
        found: &'static str,
    },
    /// The driver does not encode such a tensor map.
    #[error("tensor map: expected one that a device can load boxes by, found {found}")]
    TensorMap {
        /// What was to be encoded.
        found: String,
    },
    /// A call failed.
    ///
    /// Work is asynchronous, so the failure may belong to something launched earlier.
    #[error("could not {attempt}: {name} ({code}): {text}")]
    Call {
        /// What was attempted, after "could not".
        attempt: String,
        /// CUDA's number for the error.
        code: i32,
        /// CUDA's name for it.
        name: &'static str,
        /// CUDA's explanation.
        text: &'static str,
    },
}

/// A result with the driver's [`DriverError`].
pub type DriverResult<T> = Result<T, DriverError>;
