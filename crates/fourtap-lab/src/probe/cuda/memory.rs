//! How fast a buffer is copied, and read past the first-level cache: in device memory, and in the L2 cache.

use super::experiment::{Experiment, Input, Room, Work};
use super::pattern::{self, PIECE_BYTES};
use crate::cuda::{Grid, Source};
use crate::record::Unit;

const THREADS: u32 = 256;
/// Vectors that a thread copies.
const VECTORS: u32 = 2;
/// Vectors that a thread reads in a round.
const LOADS: u32 = 8;
/// What a block reads in a round.
const CHUNK_BYTES: u64 = (THREADS * LOADS) as u64 * PIECE_BYTES;

/// The L2 cache keeps this share of itself whatever half of it a line belongs in.
const SHARE_OF_L2: u64 = 4;

/// Device memory read and written.
pub fn copy() -> Experiment {
    let text = include_str!("../../../kernels/probe/copy.cu");
    let what = "copy device memory; bytes read and written both count";
    let (kernel, block) = (
        Source::new("probe_copy", text, &[]),
        Grid::of_threads(THREADS),
    );
    Experiment::new(what, kernel, block, Unit::GigabytesASecond, |room| {
        let vectors = room.large_bytes / PIECE_BYTES;
        let bytes = vectors * PIECE_BYTES;
        Work {
            // A buffer is at most 1 GiB.
            blocks: vectors.div_ceil(u64::from(THREADS * VECTORS)) as u32,
            inputs: vec![Input::Pattern(bytes), Input::Output, Input::Count(vectors)],
            words: (bytes / 4) as usize,
            checked_rounds: 1,
            timed_rounds: 1,
            expected: Box::new(|word, _| pattern::word(word as u64)),
            amount: 2 * bytes,
        }
    })
}

/// Every chunk of a large buffer once.
pub fn dram_read() -> Experiment {
    read(
        "read device memory in order, more than any cache holds",
        |room| {
            let rounds = (room.large_bytes / CHUNK_BYTES / u64::from(room.blocks)).max(1) as u32;
            let walk = Walk {
                chunks: room.blocks * rounds,
                step: room.blocks,
            };
            walk.work(room.blocks, rounds, rounds)
        },
    )
}

/// Every chunk of a small buffer by every block.
pub fn l2_read() -> Experiment {
    read("read what the L2 cache holds, past the first", |room| {
        let chunks = (room.l2_bytes / SHARE_OF_L2 / CHUNK_BYTES).max(1) as u32;
        Walk { chunks, step: 1 }.work(room.blocks, 4, chunks)
    })
}

fn read(what: &str, work: fn(Room) -> Work) -> Experiment {
    let text = include_str!("../../../kernels/probe/read.cu");
    let (kernel, block) = (
        Source::new("probe_read", text, &[]),
        Grid::of_threads(THREADS),
    );
    Experiment::new(what, kernel, block, Unit::GigabytesASecond, work)
}

/// How blocks go through a buffer.
#[derive(Clone, Copy, Debug)]
struct Walk {
    chunks: u32,
    /// From one round's chunk to the next round's, around the end.
    step: u32,
}

impl Walk {
    fn work(self, blocks: u32, checked_rounds: u32, timed_rounds: u32) -> Work {
        Work {
            blocks,
            inputs: vec![
                Input::Pattern(u64::from(self.chunks) * CHUNK_BYTES),
                Input::Word(self.chunks),
                Input::Word(self.step),
                Input::Rounds,
                Input::Output,
            ],
            words: (blocks * THREADS) as usize,
            checked_rounds,
            timed_rounds,
            expected: Box::new(move |thread, rounds| self.sum(thread as u32, rounds)),
            amount: u64::from(blocks) * u64::from(timed_rounds) * CHUNK_BYTES,
        }
    }

    /// What a thread's sum is after so many rounds.
    fn sum(self, thread: u32, rounds: u32) -> u32 {
        let mut chunk = thread / THREADS % self.chunks;
        let mut sum = 0u32;
        for _ in 0..rounds {
            for load in 0..LOADS {
                let piece = u64::from(load * THREADS + thread % THREADS);
                let offset = u64::from(chunk) * CHUNK_BYTES + piece * PIECE_BYTES;
                sum = sum.wrapping_add(pattern::piece(offset));
            }
            chunk = (chunk + self.step) % self.chunks;
        }
        sum
    }
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
        let expected = (0..words).fold(0u32, |sum, at| sum.wrapping_add(pattern::word(at)));
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
