//! Backward: which kernels serve a call, how its work is split, and their launches.

mod bands;
mod launch;
mod plan;
mod sorting;

pub(super) use launch::BackwardLaunch;
pub use plan::BackwardPlan;
