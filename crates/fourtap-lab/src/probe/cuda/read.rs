//! How fast a buffer is read past the first-level cache: from device memory, and from the L2 cache.

use super::copy::large_bytes;
use super::device::{ProbeDevice, Subject};
use super::pattern::{PIECE_BYTES, Pattern};
use super::sums::Sums;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

const THREADS: u32 = 256;
const LOADS: u32 = 8;
/// What a block reads in a round.
const CHUNK_BYTES: u64 = (THREADS * LOADS) as u64 * PIECE_BYTES;
const PATTERN: Pattern = Pattern { seed: 0x0200_0000 };

/// The L2 cache keeps this share of itself whatever half of it a line belongs in.
const SHARE_OF_L2: u64 = 4;

/// Its kernel.
pub fn source() -> Source {
    let text = include_str!("../../../kernels/probe/read.cu");
    Source::new("probe_read", text, &[])
}

/// Reading device memory.
pub fn dram_subject() -> Subject {
    Subject::ceiling(
        "dram-read",
        "read device memory in order, more than any cache holds",
    )
}

/// Reading the L2 cache.
pub fn l2_subject() -> Subject {
    Subject::ceiling("l2-read", "read what the L2 cache holds, past the first")
}

/// How blocks go through a buffer.
#[derive(Clone, Copy, Debug)]
struct Walk {
    chunks: u32,
    /// From one round's chunk to the next round's, around the end.
    step: u32,
}

impl Walk {
    /// What a thread's sum is after so many rounds.
    fn sum(self, thread: u32, rounds: u32) -> u32 {
        let mut chunk = thread / THREADS % self.chunks;
        let mut sum = 0u32;
        for _ in 0..rounds {
            for load in 0..LOADS {
                let piece = u64::from(load * THREADS + thread % THREADS);
                let offset = u64::from(chunk) * CHUNK_BYTES + piece * PIECE_BYTES;
                sum = sum.wrapping_add(PATTERN.piece(offset));
            }
            chunk = (chunk + self.step) % self.chunks;
        }
        sum
    }
}

/// Every chunk once.
pub fn measure_dram(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let bytes = large_bytes(gpu)?;
    measure(gpu, subject, |blocks| {
        let rounds = (bytes / CHUNK_BYTES / u64::from(blocks)).max(1) as u32;
        let walk = Walk {
            chunks: blocks * rounds,
            step: blocks,
        };
        (walk, rounds, rounds)
    })
}

/// Every chunk by every block.
pub fn measure_l2(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let bytes = u64::from(gpu.facts().l2_bytes) / SHARE_OF_L2;
    measure(gpu, subject, |_| {
        let chunks = (bytes / CHUNK_BYTES).max(1) as u32;
        (Walk { chunks, step: 1 }, 4, chunks)
    })
}

/// `walk` says, for so many blocks, how they go and how many rounds are checked and timed.
fn measure(
    gpu: &ProbeDevice<'_>,
    subject: &Subject,
    walk: impl Fn(u32) -> (Walk, u32, u32),
) -> Result<ProbeRecord> {
    let kernel = source().load(gpu.cuda())?;
    let grid = Grid {
        threads: THREADS,
        ..Grid::default()
    };
    let grid = kernel.filling(gpu.cuda(), grid)?;
    let (walk, checked_rounds, timed_rounds) = walk(grid.blocks);
    let bytes = u64::from(walk.chunks) * CHUNK_BYTES;
    let data = PATTERN.buffer(gpu.stopwatch, bytes)?;
    let sums = Sums {
        subject,
        threads: grid.blocks * THREADS,
        checked_rounds,
        timed_rounds,
    };
    let timed = sums.timed(
        gpu,
        |cuda, rounds, sums| {
            let arguments = [
                Argument::Address(data.as_ptr()),
                Argument::Word(walk.chunks),
                Argument::Word(walk.step),
                Argument::Word(rounds),
                Argument::Address(sums.as_ptr()),
            ];
            // SAFETY: the kernel takes an address, three numbers and an address. It reads so many chunks, which `data`
            // holds, and writes a number per thread; both buffers live until the work has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        },
        |thread, rounds| walk.sum(thread, rounds),
    )?;
    let moved = u64::from(grid.blocks) * u64::from(timed_rounds) * CHUNK_BYTES;
    let compared = "every thread's sum";
    let record = subject.measured(gpu, Unit::GigabytesASecond, moved, timed, compared);
    Ok(record.with("buffer_bytes", bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_all_chunks_reads_every_word_once() {
        let walk = Walk { chunks: 6, step: 2 };
        let threads = 2 * THREADS;
        let sum = (0..threads).fold(0u32, |sum, thread| sum.wrapping_add(walk.sum(thread, 3)));
        let words = 6 * CHUNK_BYTES / 4;
        let expected = (0..words).fold(0u32, |sum, at| sum.wrapping_add(PATTERN.word(at)));
        assert_eq!(sum, expected);
    }

    #[test]
    fn a_walk_goes_around_the_end() {
        let walk = Walk { chunks: 3, step: 1 };
        let twice = walk.sum(5, 3).wrapping_mul(2);
        assert_eq!(walk.sum(5, 6), twice);
        // A block starts elsewhere and reads the same.
        assert_eq!(walk.sum(5 + THREADS, 3), walk.sum(5, 3));
        assert_ne!(walk.sum(5 + THREADS, 1), walk.sum(5, 1));
    }
}
