//! What the lab does on a CUDA device, through the library's own device layer.

mod array;
mod ceiling;
mod mode;
mod stopwatch;
mod trial;

pub use ceiling::{Probe, copy, gather};
pub use mode::Mode;
pub use stopwatch::{Hot, Stopwatch};
pub use trial::{DeviceTrial, Explained};
