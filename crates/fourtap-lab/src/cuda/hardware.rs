//! The sizes of a device that launches are planned by.

use fourtap::cuda::driver::DeviceFacts;

/// What the plan of a kernel that is not the library's must know of a device. Read off it, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory of a block, static and dynamic together.
    pub shared_bytes: u32,
    /// Threads a multiprocessor holds.
    pub threads: u32,
    /// Second-level cache.
    pub l2_bytes: u32,
    /// Blocks can be launched in clusters.
    pub has_clusters: bool,
    /// Boxes can be loaded by tensor maps.
    pub has_tensor_maps: bool,
}

impl Hardware {
    /// As the driver says.
    pub fn of(facts: &DeviceFacts) -> Self {
        Hardware {
            multiprocessors: facts.multiprocessors,
            shared_bytes: facts.shared_bytes_per_block_opt_in,
            threads: facts.threads_per_multiprocessor,
            l2_bytes: facts.l2_bytes,
            has_clusters: facts.has_clusters,
            has_tensor_maps: facts.has_tensor_maps,
        }
    }
}
