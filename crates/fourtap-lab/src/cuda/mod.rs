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
pub use kernel::{Argument, Grid, Loaded, Source};
pub use mode::Mode;
pub use stopwatch::{Stopwatch, Timed};
pub use trial::DeviceTrial;
