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
//! // SAFETY: the buffers hold that many elements and live until the result has been copied back.
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
pub(crate) mod error;
mod fit;
mod handle;
pub mod jit;
mod kernels;
pub mod msda;
mod plan_cache;
mod recipe;
mod scratch;
mod source_hash;
mod step;
mod tuning;

pub use device_size::DeviceSize;
pub use error::CudaError;
pub use handle::Cuda;
pub use recipe::{ShippedKernel, SpecialisedKernel};
pub use step::Step;

/// Resources of each kernel by architecture, checked by the tests: fingerprint, registers, stack and shared memory.
pub const KERNEL_TABLE: &str = include_str!("../../kernels/table.txt");

/// All kernels this library ships.
pub fn shipped() -> Vec<ShippedKernel> {
    [msda::shipped(), dense::shipped()].concat()
}
