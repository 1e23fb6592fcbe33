//! How fast random segments of a buffer are read, by what holds the buffer.

use super::device::{ProbeDevice, Subject};
use super::pattern::{PIECE_BYTES, Pattern, Random};
use super::sums::Sums;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

/// Loads in flight a thread.
pub const LOADS: u32 = 8;
const CHECKED_ROUNDS: u32 = 5;
const PATTERN: Pattern = Pattern { seed: 0x0300_0000 };

/// One of the gathers.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    name: &'static str,
    what: &'static str,
    /// Of the buffer.
    bytes: u32,
    /// Threads that read a segment together, 16 bytes each.
    lanes: u32,
    /// From shared memory, which the blocks copy the buffer to first.
    shared: bool,
    rounds: u32,
}

/// What the first-level cache holds: nothing can gather from a cache faster.
pub const L1_64: Gather = Gather {
    name: "gather-64-l1",
    what: "read random 64-byte segments that the L1 cache holds",
    bytes: 64 << 10,
    lanes: 4,
    shared: false,
    rounds: 256,
};

/// The same with segments as long as a line of that cache.
pub const L1_128: Gather = Gather {
    name: "gather-128-l1",
    what: "read random 128-byte segments that the L1 cache holds",
    lanes: 8,
    ..L1_64
};

/// All of them.
pub const ALL: [Gather; 6] = [
    L1_64,
    L1_128,
    Gather {
        name: "gather-64-shared",
        what: "read random 64-byte segments of shared memory",
        shared: true,
        rounds: 2048,
        ..L1_64
    },
    Gather {
        name: "gather-64-1mb",
        what: "read random 64-byte segments of 1.25 MB",
        bytes: 1_250_048,
        ..L1_64
    },
    Gather {
        name: "gather-64-10mb",
        what: "read random 64-byte segments of 10 MB",
        bytes: 10_000_000,
        ..L1_64
    },
    Gather {
        name: "gather-64-40mb",
        what: "read random 64-byte segments of 40 MB",
        bytes: 40_000_000,
        ..L1_64
    },
];

impl Gather {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        Subject::ceiling(self.name, self.what)
    }

    /// Threads per block, and blocks per multiprocessor that leave registers for all loads in flight.
    fn block(&self) -> (u32, u32) {
        if self.shared { (512, 2) } else { (256, 5) }
    }

    fn segments(&self) -> u32 {
        self.bytes / (self.lanes * PIECE_BYTES as u32)
    }

    /// Its kernel.
    pub fn source(&self) -> Source {
        let (threads, blocks) = self.block();
        let text = include_str!("../../../kernels/probe/gather.cu");
        Source::new(
            "probe_gather",
            text,
            &[
                ("LANES", self.lanes),
                ("SHARED", self.shared.into()),
                ("THREADS", threads),
                ("BLOCKS", blocks),
            ],
        )
    }

    /// What a thread's sum is after so many rounds.
    fn sum(&self, thread: u32, rounds: u32) -> u32 {
        let mut random = Random::of_group(thread / self.lanes);
        let segment_bytes = u64::from(self.lanes) * PIECE_BYTES;
        let in_segment = u64::from(thread % self.lanes) * PIECE_BYTES;
        (0..rounds * LOADS).fold(0, |sum, _| {
            let segment = u64::from(random.below(self.segments()));
            sum.wrapping_add(PATTERN.piece(segment * segment_bytes + in_segment))
        })
    }

    /// How fast that is, after it was seen to be right.
    pub fn measure(&self, gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
        let kernel = self.source().load(gpu.cuda())?;
        let grid = Grid {
            threads: self.block().0,
            shared_bytes: if self.shared { self.bytes } else { 0 },
            ..Grid::default()
        };
        let grid = kernel.filling(gpu.cuda(), grid)?;
        let data = PATTERN.buffer(gpu.stopwatch, self.bytes.into())?;
        let sums = Sums {
            subject,
            threads: grid.blocks * grid.threads,
            checked_rounds: CHECKED_ROUNDS,
            timed_rounds: self.rounds,
        };
        let timed = sums.timed(
            gpu,
            |cuda, rounds, sums| {
                let arguments = [
                    Argument::Address(data.as_ptr()),
                    Argument::Word(self.segments()),
                    Argument::Word(rounds),
                    Argument::Address(sums.as_ptr()),
                ];
                // SAFETY: the kernel takes an address, two numbers and an address. It reads so many segments, which
                // `data` holds and so does the shared memory asked for, and writes a number per thread; both buffers live
                // until the work has been waited for.
                unsafe { kernel.queue(cuda, grid, &arguments) }
            },
            |thread, rounds| self.sum(thread, rounds),
        )?;
        let loads = u64::from(sums.threads) * u64::from(self.rounds * LOADS);
        let compared = "every thread's sum";
        let moved = loads * PIECE_BYTES;
        let record = subject.measured(gpu, Unit::GigabytesASecond, moved, timed, compared);
        Ok(record
            .with("buffer_bytes", self.bytes)
            .with("loads_in_flight", LOADS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_sums_are_all_different() {
        for gather in ALL {
            let mut sums: Vec<u32> = (0..512)
                .map(|thread| gather.sum(thread, CHECKED_ROUNDS))
                .collect();
            sums.sort_unstable();
            sums.dedup();
            assert_eq!(sums.len(), 512, "{}", gather.name);
        }
    }

    #[test]
    fn buffers_are_whole_segments() {
        for gather in ALL {
            let segment_bytes = gather.lanes * PIECE_BYTES as u32;
            assert_eq!(gather.bytes % segment_bytes, 0, "{}", gather.name);
        }
    }
}
