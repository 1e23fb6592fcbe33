//! The CUDA backend on a GPU. These tests are ignored unless asked for: `cargo xtask test --all` does on a machine with a
//! GPU, and run.sh of the GPU bundle.

mod backward;
mod big;
mod calls;
mod concurrent;
mod dense;
mod device_levels;
mod gpu;
mod hostile;
mod large;
mod oracle;
mod places;
mod plan_cache;
mod projections;
mod reproducible;
mod sanitizer;
mod soak;
mod tensors;
mod tuning;
