//! A device as plans see it, so that they can be made for one that is not there.

use super::driver::DeviceFacts;

/// What the choice of kernels and the cutting of work go by, of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSize {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of second-level cache.
    pub l2_bytes: u32,
    /// Most shared memory of a block.
    pub shared_bytes: u32,
}

impl From<&DeviceFacts> for DeviceSize {
    fn from(facts: &DeviceFacts) -> Self {
        DeviceSize {
            multiprocessors: facts.multiprocessors,
            l2_bytes: facts.l2_bytes,
            shared_bytes: facts.shared_bytes_per_block_opt_in,
        }
    }
}
