//! Multi-scale deformable attention on CUDA.

mod arguments;
mod backward;
mod described;
mod fit;
mod forward;
mod kept;
mod kind;
mod options;
mod prepare;
mod schedule;
mod specialised;
mod tuning;

pub use super::device_size::DeviceSize;
pub use backward::BackwardPlan;
pub use described::Described;
pub use forward::Plan;
pub use kind::Kind;
pub use options::{KernelChoice, Options};
pub use specialised::{
    Channel, Gather, SamplesChannel, SamplesGather, Search, Sort, Specialised, Sum, Types, shipped,
};
pub use tuning::{BackwardTuning, ForwardTuning};
