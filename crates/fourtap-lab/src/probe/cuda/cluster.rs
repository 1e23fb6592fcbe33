//! Whether clusters work: barriers, and reads of other blocks' shared memory.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;

use super::super::Probe;
use super::device::{ProbeDevice, Subject};
use super::pattern::mixed;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{Outcome, ProbeRecord};

/// Blocks per cluster that are tried. More than 8 must be allowed to a kernel, and more than 16 no device has.
pub const SIZES: [u32; 4] = [2, 4, 8, 16];

const THREADS: u32 = 256;
/// The words are other ones each time.
const PASSES: u32 = 2;
/// More clusters than any device runs at once.
const MANY: u32 = 200;

/// One of the tries.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// Blocks per cluster.
    blocks: u32,
    clusters: u32,
    /// Shared memory per block.
    bytes: u32,
}

/// Of every size: one and many clusters, with little and much shared memory.
pub fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    for blocks in SIZES {
        for (number, clusters) in [("one", 1), ("many", MANY)] {
            for (size, bytes) in [("1kb", 1 << 10), ("80kb", 80 << 10)] {
                let one = ClusterConfig {
                    blocks,
                    clusters,
                    bytes,
                };
                let what = format!(
                    "{clusters} {} of {blocks} blocks that read each other's {} KiB",
                    if clusters == 1 { "cluster" } else { "clusters" },
                    bytes >> 10,
                );
                let subject =
                    Subject::new(format!("cluster-{blocks}-{number}-{size}"), "cluster", what);
                probes.push(subject.probe(move |gpu, subject| one.run(gpu, subject)));
            }
        }
    }
    probes
}

/// Its kernel.
pub fn source() -> Source {
    let text = include_str!("../../../kernels/probe/cluster.cu");
    Source::new("probe_cluster", text, &[]).for_hopper()
}

/// Why a device has no clusters; none if it has.
pub fn missing(gpu: &ProbeDevice<'_>) -> Option<String> {
    let facts = gpu.facts();
    let (major, minor) = facts.compute_capability;
    (!facts.has_clusters)
        .then(|| format!("clusters need compute capability 9.0; this device has {major}.{minor}"))
}

/// That not one cluster of a launch fits the device.
pub fn none_fits(grid: Grid) -> String {
    format!(
        "the device has no room for a cluster of {} blocks with {} bytes of shared memory each",
        grid.cluster.unwrap_or(1),
        grid.shared_bytes
    )
}

impl ClusterConfig {
    fn words(self) -> u32 {
        self.bytes / 4
    }

    /// The word that a block reads: of the block so many ranks on, around the end of its cluster.
    fn expected(self, pass: u32, block: u32, word: u32) -> u32 {
        let (cluster, rank) = (block / self.blocks, block % self.blocks);
        let other = (rank + 1 + word % (self.blocks - 1)) % self.blocks;
        let place = (cluster * self.blocks + other) * self.words() + word;
        mixed(place.wrapping_mul(2).wrapping_add(pass))
    }

    fn run(self, gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
        if let Some(reason) = missing(gpu) {
            return Ok(subject.unavailable(gpu, &reason));
        }
        let kernel = source().load(gpu.cuda())?;
        let grid = Grid {
            blocks: self.blocks * self.clusters,
            threads: THREADS,
            shared_bytes: self.bytes,
            cluster: Some(self.blocks),
        };
        let at_once = kernel.clusters(gpu.cuda(), grid)?;
        if at_once == 0 {
            return Ok(subject.unavailable(gpu, &none_fits(grid)));
        }
        let words = PASSES as usize * grid.blocks as usize * self.words() as usize;
        let found = Buffer::zeroed(gpu.cuda().context(), words * size_of::<u32>())?;
        gpu.stopwatch.once(|cuda: &Cuda| {
            let arguments = [
                Argument::Word(self.words()),
                Argument::Address(found.as_ptr()),
            ];
            // SAFETY: the kernel takes a number and an address. It writes so many words per block and pass, which `found`
            // has room for, and it lives until the work has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        })?;
        let mut found = found.to_vec::<u32>()?.into_iter();
        for pass in 0..PASSES {
            for block in 0..grid.blocks {
                for word in 0..self.words() {
                    let expected = self.expected(pass, block, word);
                    let found = found.next().unwrap_or_default();
                    if expected != found {
                        return Err(subject.wrong(
                            format!(
                                "{expected:#x} as word {word} read by block {block} in pass {pass}"
                            ),
                            format!("{found:#x}"),
                        ));
                    }
                }
            }
        }
        let compared = format!("all {words} words read");
        let record = subject.record(gpu, Outcome::Works, &compared);
        Ok(record
            .with("clusters_at_once", at_once)
            .with("blocks", grid.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_every_block_is_read_by_one_other() {
        for blocks in SIZES {
            let one = ClusterConfig {
                blocks,
                clusters: 2,
                bytes: 1 << 10,
            };
            for word in 0..one.words() {
                let all = 2 * blocks;
                let mut read: Vec<u32> =
                    (0..all).map(|block| one.expected(0, block, word)).collect();
                let own = |block: u32| mixed((block * one.words() + word) * 2);
                for block in 0..all {
                    assert_ne!(read[block as usize], own(block), "a block reads its own");
                }
                let mut held: Vec<u32> = (0..all).map(own).collect();
                read.sort_unstable();
                held.sort_unstable();
                assert_eq!(read, held);
            }
        }
    }
}
