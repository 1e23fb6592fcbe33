//! The library as its users call it, on the CPU, and what of the CUDA backend shows without a GPU: one program with a
//! module per subject. What needs a GPU is in tests/cuda, what counts allocations in tests/memory.

mod cancel;
mod dense;
#[cfg(feature = "cuda")]
mod evidence;
#[cfg(all(feature = "cuda", unix))]
mod kernel_cache;
#[cfg(feature = "cuda")]
mod kernel_table;
mod msda;
#[cfg(feature = "ndarray")]
mod ndarray_views;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod no_driver;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod nvrtc;
mod small;
mod tabled_kernels;
mod threads;
mod tuning;
