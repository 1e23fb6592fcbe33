//! Multi-scale deformable attention and dense attention for tensors of candle, with gradients, on the CPU.
//!
//! Start at [`ms_deform_attn`] or [`scaled_dot_product_attention`]. Tensors may be strided: they are read as they lie in memory,
//! transposed, narrowed or broadcast, and never copied. A call that the library refuses returns its error, which names
//! the tensor, as candle's.
//!
//! Gradients are computed only for tensors that they flow to. They are constants to candle: gradients of gradients do not
//! pass through these operators.
//!
//! **CPU only, for now.** A tensor on another device is refused. To build candle for CUDA takes a CUDA toolkit, which this
//! project does without, and its kernels run on the per-thread default stream or on one of the device's own, which a call would have
//! to be queued on.

mod deformable;
mod dense;
mod tensors;

pub use deformable::ms_deform_attn;
pub use dense::scaled_dot_product_attention;
pub use fourtap::dense::{Alignment, Mask, Options};
pub use fourtap::msda::Levels;

/// Compiles and runs the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctest;

/// Compiles and runs the examples of docs/rust.md, also that with ndarray: the crate it belongs to is published, without docs/.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct RustDoctest;
