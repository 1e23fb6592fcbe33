//! How fast the blocks of a cluster read each other's shared memory.

use super::cluster;
use super::device::{ProbeDevice, Subject};
use super::gather::LOADS;
use super::pattern::{PIECE_BYTES, Pattern, Random};
use super::sums::Sums;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

const THREADS: u32 = 256;
const LANES: u32 = 4;
const SEGMENT_BYTES: u64 = LANES as u64 * PIECE_BYTES;
/// Of the buffer, that each block holds.
const PART_BYTES: u32 = 64 << 10;
const SEGMENTS: u32 = PART_BYTES / SEGMENT_BYTES as u32;
const CHECKED_ROUNDS: u32 = 3;
const TIMED_ROUNDS: u32 = 256;
const PATTERN: Pattern = Pattern { seed: 0x0400_0000 };

/// Its kernel.
pub fn source() -> Source {
    let text = include_str!("../../../kernels/probe/dsmem.cu");
    Source::new("probe_dsmem", text, &[]).for_hopper()
}

/// What it is about.
pub fn subject(blocks: u32) -> Subject {
    Subject::ceiling(
        format!("dsmem-read-{blocks}"),
        format!("read random 64-byte segments all over a cluster of {blocks}"),
    )
}

/// What a thread's sum is after so many rounds, in clusters of so many blocks.
fn sum(blocks: u32, thread: u32, rounds: u32) -> u32 {
    let mut random = Random::of_group(thread / LANES);
    let in_segment = u64::from(thread % LANES) * PIECE_BYTES;
    (0..rounds * LOADS).fold(0, |sum, _| {
        let segment = u64::from(random.below(blocks * SEGMENTS));
        sum.wrapping_add(PATTERN.piece(segment * SEGMENT_BYTES + in_segment))
    })
}

/// How fast that is, after it was seen to be right.
pub fn measure(gpu: &ProbeDevice<'_>, subject: &Subject, blocks: u32) -> Result<ProbeRecord> {
    if let Some(reason) = cluster::missing(gpu) {
        return Ok(subject.unavailable(gpu, &reason));
    }
    let kernel = source().load(gpu.cuda())?;
    let grid = Grid {
        blocks,
        threads: THREADS,
        shared_bytes: PART_BYTES,
        cluster: Some(blocks),
    };
    let clusters = kernel.clusters(gpu.cuda(), grid)?;
    if clusters == 0 {
        return Ok(subject.unavailable(gpu, &cluster::none_fits(grid)));
    }
    let grid = Grid {
        blocks: blocks * clusters,
        ..grid
    };
    let data = PATTERN.buffer(gpu.stopwatch, u64::from(blocks * PART_BYTES))?;
    let sums = Sums {
        subject,
        threads: grid.blocks * THREADS,
        checked_rounds: CHECKED_ROUNDS,
        timed_rounds: TIMED_ROUNDS,
    };
    let timed = sums.timed(
        gpu,
        |cuda, rounds, sums| {
            let arguments = [
                Argument::Address(data.as_ptr()),
                Argument::Word(rounds),
                Argument::Address(sums.as_ptr()),
            ];
            // SAFETY: the kernel takes an address, a number and an address. It reads a part of `data` per block of
            // a cluster into shared memory of that size, and writes a number per thread; both buffers live until the work
            // has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        },
        |thread, rounds| sum(blocks, thread, rounds),
    )?;
    let loads = u64::from(sums.threads) * u64::from(TIMED_ROUNDS * LOADS);
    let compared = "every thread's sum";
    let moved = loads * PIECE_BYTES;
    let record = subject.measured(gpu, Unit::GigabytesASecond, moved, timed, compared);
    Ok(record
        .with("clusters", clusters)
        .with("reads_of_own_block", 1.0 / f64::from(blocks))
        .with("bytes_a_block", PART_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_sums_are_all_different() {
        for blocks in [2, 4, 8, 16] {
            let mut sums: Vec<u32> = (0..512)
                .map(|thread| sum(blocks, thread, CHECKED_ROUNDS))
                .collect();
            sums.sort_unstable();
            sums.dedup();
            assert_eq!(sums.len(), 512, "{blocks}");
        }
    }
}
