//! What the lab does on a CUDA device, through the library's own device layer.

mod array;
mod hardware;
mod kernel;
mod mode;
mod nvml;
mod stopwatch;
mod trial;

pub use array::DeviceArray;
pub use hardware::Hardware;
pub use kernel::{Argument, Grid, LoadedKernel, Source};
pub use mode::Mode;
pub use stopwatch::{DeviceTiming, Stopwatch};
pub use trial::DeviceTrial;
