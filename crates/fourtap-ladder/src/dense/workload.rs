//! The problems that dense rungs are timed on.

use fourtap::DType;
use fourtap::dense::Sizes;

/// A problem to be filled with random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What it is called.
    pub name: &'static str,
    /// Sequences (B).
    pub batch: usize,
    /// Heads (H).
    pub heads: usize,
    /// Queries per sequence (Sq).
    pub queries: usize,
    /// Keys per sequence (Sk).
    pub keys: usize,
    /// Channels per head (D).
    pub channels: usize,
    /// Of all tensors.
    pub dtype: DType,
}

/// The shape that was published with the ideas, one of four times the work, and one that fills a device.
pub const BUILT_IN: [Workload; 3] = [
    workload("dense-s512", 1, 8, 512),
    workload("dense-s1024", 1, 8, 1024),
    workload("dense-b4-h16-s2048", 4, 16, 2048),
];

/// The last of them with heads twice as wide; only where it is asked for.
const WIDE: Workload = Workload {
    channels: 128,
    ..workload("dense-b4-h16-s2048-d128", 4, 16, 2048)
};

const fn workload(name: &'static str, batch: usize, heads: usize, length: usize) -> Workload {
    Workload {
        name,
        batch,
        heads,
        queries: length,
        keys: length,
        channels: 64,
        dtype: DType::F16,
    }
}

impl Workload {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = BUILT_IN.into_iter().chain([WIDE]);
        all.find(|one| one.name == name)
    }

    /// As the library counts.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.batch,
            query_heads: self.heads,
            key_heads: self.heads,
            queries: self.queries,
            keys: self.keys,
            channels: self.channels,
            value_channels: self.channels,
        }
    }
}
