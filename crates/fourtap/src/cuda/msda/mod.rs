//! Multi-scale deformable attention on CUDA.

mod arguments;
mod backward;
mod described;
mod fit;
mod forward;
pub(super) mod kept;
mod kind;
mod repeated;
mod schedule;
mod specialised;
pub(super) mod tuning;

pub use super::DeviceSize;
pub use backward::{BackwardPlan, Step};
pub use described::Described;
pub use forward::Plan;
pub use kind::Kind;
pub use specialised::{
    Channel, Gather, SamplesChannel, SamplesGather, Search, Sort, Specialised, Sum, Types, shipped,
};
pub use tuning::{BackwardTuning, ForwardTuning};

/// Which kernels a call shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The fastest that can serve it.
    #[default]
    Best,
    /// Sixteen bytes of channels a lane. Backward in f32, unless it shall be deterministic: by atomic additions.
    Gather,
    /// The same in its form for many rows, however few there are: what large problems run, on small ones.
    GatherMany,
    /// One thread a channel, the form everybody else ships: what speed is measured against.
    Channel,
}
