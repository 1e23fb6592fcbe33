//! What the lab does on a CUDA device, through the library's own device layer.

mod array;
mod ceiling;
mod mode;
mod nvml;
mod stopwatch;
mod trial;

pub use ceiling::{copy, gather};
pub use mode::Mode;
pub use stopwatch::{Stopwatch, Timed};
pub use trial::DeviceTrial;
