//! The CUDA backend: kernels compiled at run time, launched on the caller's stream.
//!
//! ```no_run
//! use fourtap::cuda::{Cuda, driver::Buffer};
//! use fourtap::msda::{self, Inputs, Levels};
//! use fourtap::{Backend, DType, Layout, View, ViewMut};
//!
//! let cuda = Cuda::new(0)?;
//! let levels = Levels::packed(&[(1, 2)])?;
//! let value = Buffer::from_slice(cuda.context(), &[10.0f32, 20.0])?;
//! let between = Buffer::from_slice(cuda.context(), &[0.5f32, 0.5])?;
//! let weight = Buffer::from_slice(cuda.context(), &[1.0f32])?;
//! let out = Buffer::alloc(cuda.context(), 4)?;
//! let layout = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
//! // SAFETY: the buffers hold so many elements and live until the result has been copied back.
//! unsafe {
//!     msda::forward(
//!         &Backend::Cuda(cuda),
//!         Inputs {
//!             value: View::on_cuda(0, value.as_ptr(), layout(&[1, 2, 1, 1])),
//!             levels: (&levels).into(),
//!             sampling_locations: View::on_cuda(0, between.as_ptr(), layout(&[1, 1, 1, 1, 1, 2])),
//!             attention_weights: View::on_cuda(0, weight.as_ptr(), layout(&[1, 1, 1, 1, 1])),
//!         },
//!         ViewMut::on_cuda(0, out.as_ptr(), layout(&[1, 1, 1])),
//!     )?;
//! }
//! assert_eq!(out.to_vec::<f32>()?, [15.0]);
//! # Ok::<(), fourtap::Error>(())
//! ```

pub mod dense;
mod device_size;
pub mod driver;
pub mod jit;
mod kernels;
pub mod msda;
mod recipe;
mod scratch;
mod tuning;

use std::ffi::c_void;

use driver::{Context, Device, Driver, DriverError, Stream};
use jit::JitError;

pub use device_size::DeviceSize;
pub use kernels::Loaded;
pub use recipe::Shipped;
pub(crate) use tuning::SPACES;

/// What each kernel takes, by architecture, as the tests hold it: what was compiled, registers, stack and shared memory.
pub const KERNEL_TABLE: &str = include_str!("../../kernels/table.txt");

/// Why a call could not be carried out on a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A kernel could not be compiled or found.
    #[error(transparent)]
    Jit(#[from] JitError),
    /// The device lacks instructions the kernels are made of.
    #[error(
        "cuda:{ordinal} ({name}): expected compute capability {}.{} or later, found {}.{}",
        .needed.0, .needed.1, .found.0, .found.1
    )]
    OldDevice {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// What it has.
        found: (u32, u32),
        /// What is needed.
        needed: (u32, u32),
    },
}

/// The oldest devices with bf16 arithmetic and minima that keep NaN.
const OLDEST: (u32, u32) = (8, 0);

impl From<DriverError> for crate::Error {
    fn from(error: DriverError) -> Self {
        CudaError::from(error).into()
    }
}

impl From<JitError> for crate::Error {
    fn from(error: JitError) -> Self {
        CudaError::from(error).into()
    }
}

/// All kernels this library ships.
pub fn shipped() -> Vec<Shipped> {
    [msda::shipped(), dense::shipped()].concat()
}

/// A CUDA device and the stream to work on. Cheap to copy; all copies share the kernels loaded so far.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    context: &'static Context,
    /// As a number, because a pointer would keep this from crossing threads, which streams may.
    stream: usize,
    kernel: msda::Wanted,
    deterministic: bool,
    /// Address and size.
    workspace: Option<(u64, usize)>,
    /// If not all of the device's.
    multiprocessors: Option<u32>,
    asked: tuning::Asked,
}

impl Cuda {
    /// Device number `ordinal`, if this library can use it. Nothing is made on it yet.
    pub fn find(ordinal: usize) -> Result<Device, CudaError> {
        let device = Driver::get()?.device(ordinal)?;
        let found = device.compute_capability();
        if found < OLDEST {
            return Err(CudaError::OldDevice {
                ordinal,
                name: device.name().to_string(),
                found,
                needed: OLDEST,
            });
        }
        Ok(device)
    }

    /// Device number `ordinal` and its default stream.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        let device = Cuda::find(ordinal)?;
        Ok(Cuda {
            context: Context::primary(device)?,
            stream: 0,
            kernel: msda::Wanted::Best,
            deterministic: false,
            workspace: None,
            multiprocessors: None,
            asked: tuning::Asked::Nothing,
        })
    }

    /// The same device, on the stream with this handle (a `CUstream`, as PyTorch and candle hand out).
    ///
    /// # Safety
    /// The stream belongs to this device and lives as long as calls are made with the result.
    pub unsafe fn on_stream(self, stream: *mut c_void) -> Self {
        Cuda {
            stream: stream as usize,
            ..self
        }
    }

    /// The same, with this kernel instead of the one thought best. A call it cannot serve is refused.
    pub fn with_kernel(self, kernel: msda::Wanted) -> Self {
        Cuda { kernel, ..self }
    }

    /// The same, with results that are equal to the bit from run to run, whatever a tuning table says. Forward always is
    /// while the tables stay; backward is in most cases anyway, but adds up small problems in f32 by atomic instructions,
    /// which is quicker.
    pub fn deterministic(self, deterministic: bool) -> Self {
        Cuda {
            deterministic,
            ..self
        }
    }

    /// The same, with so many bytes at `address` as scratch memory, for calls that need any. Without, each takes what it needs
    /// from the stream's memory pool.
    ///
    /// # Safety
    /// The memory is the device's, and used by nothing else until the work queued with the result is done. An address
    /// that is no multiple of 256 is refused.
    pub unsafe fn with_workspace(self, address: u64, bytes: usize) -> Self {
        Cuda {
            workspace: Some((address, bytes)),
            ..self
        }
    }

    /// The same, with work cut as if the device had so many multiprocessors: where others use it too, or where the forms
    /// that large and small problems take shall be tried on any.
    pub fn for_multiprocessors(self, count: u32) -> Self {
        Cuda {
            multiprocessors: Some(count),
            ..self
        }
    }

    /// Whether calls are planned alike with both. The stream is no matter, nor where scratch memory is.
    fn plans_like(&self, other: &Cuda) -> bool {
        let Cuda {
            context,
            stream: _,
            kernel,
            deterministic,
            workspace: _,
            multiprocessors,
            asked,
        } = other;
        std::ptr::eq(self.context, *context)
            && self.kernel == *kernel
            && self.deterministic == *deterministic
            && self.multiprocessors == *multiprocessors
            && self.asked == *asked
    }

    /// What plans are made for.
    fn size(&self) -> DeviceSize {
        let whole = DeviceSize::from(self.device().facts());
        DeviceSize {
            multiprocessors: self.multiprocessors.unwrap_or(whole.multiprocessors),
            ..whole
        }
    }

    /// The device's number.
    pub fn ordinal(&self) -> usize {
        self.device().ordinal()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.context.device()
    }

    /// The context used if the calling thread has none of this device.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// The stream work is queued on.
    pub fn stream(&self) -> Stream<'_> {
        // SAFETY: null is the default stream; any other handle was promised to be alive in `on_stream`.
        unsafe { Stream::from_raw(self.stream as *mut c_void) }
    }
}
