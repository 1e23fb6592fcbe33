//! What the lab does on a CUDA device, through the library's own device layer.

mod array;
mod ceiling;
mod stopwatch;
mod trial;

pub use ceiling::{Probe, copy, gather};
pub use stopwatch::{Hot, Stopwatch};
pub use trial::{DeviceTrial, Explained};
