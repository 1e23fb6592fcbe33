//! Hardware counters through Nsight Compute, and the bottleneck they show.

mod binding;
mod csv;
mod launches;
mod metrics;
mod ncu;
mod subject;
mod table;

pub use self::csv::launches;
pub use binding::binding;
pub use launches::{KernelCounters, Launch, by_kernel};
pub use metrics::{TIME, wanted};
pub use ncu::Ncu;
pub use subject::{Statement, compute};
pub use table::counters;
