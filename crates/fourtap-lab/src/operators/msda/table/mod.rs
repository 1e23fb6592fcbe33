//! Deformable attention for people.

mod cpu;
mod cuda;
mod list;

pub use cpu::on_cpu;
pub use cuda::on_cuda;
pub use list::workloads;
