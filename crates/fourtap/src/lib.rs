//! Multi-scale deformable attention and dense attention for CUDA and CPU: fast, accurate in every dtype, bitwise reproducible.
//!
//! Start at [`msda::forward`] and [`msda::backward`], or at [`dense::forward`]. Tensors are [`View`]s over memory that the
//! caller owns. A call is checked once; an invalid one is refused, before anything is written, with an [`Error`] that
//! names the tensor.

// docs.rs marks what needs a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod bool_view;
mod checks;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dense;
mod dtype;
mod error;
#[cfg(feature = "ndarray")]
mod from_ndarray;
mod layout;
// For the front ends of this repository.
#[doc(hidden)]
pub mod lock_free;
pub mod msda;
mod oracle;
mod place;
mod prepared;
mod shape;
mod tensor;
pub mod tuning;
#[cfg(feature = "verify")]
pub mod verify;
mod warning;

pub use backend::Backend;
pub use bool_view::BoolView;
pub use dtype::{DType, Element, Real, bf16, f16};
pub use error::{Error, Result};
pub use layout::Layout;
pub use place::Place;
pub use prepared::Prepared;
pub use shape::{MAX_RANK, Shape};
pub use tensor::{View, ViewMut};

/// Compiles and runs the example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctest;
