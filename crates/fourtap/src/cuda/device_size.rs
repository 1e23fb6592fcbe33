//! The properties of a device that plans depend on, so that plans can be made without the device.

use super::driver::DeviceFacts;

/// The properties of a device that decide the choice of kernels and how work is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSize {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u32,
    /// Maximum shared memory per block.
    pub shared_bytes: u32,
    /// Whether it has the instructions that only Hopper has: products of groups of four warps (wgmma).
    pub has_wgmma: bool,
}

impl From<&DeviceFacts> for DeviceSize {
    fn from(facts: &DeviceFacts) -> Self {
        DeviceSize {
            multiprocessors: facts.multiprocessors,
            l2_bytes: facts.l2_bytes,
            shared_bytes: facts.shared_bytes_per_block_opt_in,
            has_wgmma: facts.compute_capability == (9, 0),
        }
    }
}

/// An H200, for tests.
#[cfg(test)]
pub(super) const H200: DeviceSize = DeviceSize {
    multiprocessors: 132,
    l2_bytes: 62_914_560,
    shared_bytes: 232_448,
    has_wgmma: true,
};
