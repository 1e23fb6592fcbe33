//! Deformable attention in reports.

mod peers;
mod roofline;
mod speed;

pub use peers::peers;
pub use roofline::section as roofline;
pub use speed::section as speed;
