//! How fast random segments of a buffer are read, by what holds the buffer.

use super::experiment::{Experiment, Input, Needs, Room, Work};
use super::pattern::{PIECE_BYTES, Random, piece};
use crate::cuda::{Grid, Source};
use crate::record::Unit;

/// Loads in flight a thread.
const LOADS: u32 = 8;
/// Bytes that each block of a cluster holds.
const PART_BYTES: u32 = 64 << 10;

/// From a buffer of so many bytes in device memory, or where the caches hold it.
pub fn gather(segment_bytes: u32, bytes: u32, place: &str) -> Experiment {
    // Blocks a multiprocessor that leave registers for all loads in flight.
    let block = Grid::of_threads(256);
    of_buffer(Segments::of(segment_bytes, bytes), place, block, 5, 256)
}

/// From shared memory, which the blocks copy the buffer to first.
pub fn gather_shared(segment_bytes: u32, bytes: u32) -> Experiment {
    let block = Grid {
        threads: 512,
        shared_bytes: bytes,
        ..Grid::default()
    };
    let segments = Segments::of(segment_bytes, bytes);
    of_buffer(segments, "shared memory", block, 2, 2048)
}

fn of_buffer(
    segments: Segments,
    place: &str,
    block: Grid,
    blocks: u32,
    timed_rounds: u32,
) -> Experiment {
    let text = include_str!("../../../kernels/probe/gather.cu");
    let defines = [
        ("LANES", segments.lanes),
        ("SHARED", (block.shared_bytes > 0).into()),
        ("THREADS", block.threads),
        ("BLOCKS", blocks),
    ];
    let kernel = Source::new("probe_gather", text, &defines);
    let work = move |room: Room| {
        let inputs = vec![
            Input::Pattern(segments.bytes()),
            Input::Word(segments.count),
            Input::Rounds,
            Input::Output,
        ];
        segments.work(room.blocks, block.threads, inputs, timed_rounds)
    };
    let what = segments.in_words(place);
    Experiment::new(what, kernel, block, Unit::GigabytesASecond, work)
}

/// From the shared memories of a cluster of so many blocks.
pub fn distributed(blocks: u32) -> Experiment {
    let text = include_str!("../../../kernels/probe/dsmem.cu");
    let segments = Segments::of(64, blocks * PART_BYTES);
    let block = Grid {
        threads: 256,
        shared_bytes: PART_BYTES,
        cluster: Some(blocks),
        ..Grid::default()
    };
    let kernel = Source::new("probe_dsmem", text, &[]).for_hopper();
    let work = move |room: Room| {
        let inputs = vec![
            Input::Pattern(segments.bytes()),
            Input::Rounds,
            Input::Output,
        ];
        segments.work(room.blocks, block.threads, inputs, 256)
    };
    let what = segments.in_words(&format!("a cluster of {blocks}"));
    Experiment::new(what, kernel, block, Unit::GigabytesASecond, work).on(Needs::Hopper)
}

/// What a buffer is read in.
#[derive(Clone, Copy, Debug)]
struct Segments {
    count: u32,
    /// Threads that read a segment together, 16 bytes each.
    lanes: u32,
}

impl Segments {
    fn of(segment_bytes: u32, bytes: u32) -> Self {
        Segments {
            count: bytes / segment_bytes,
            lanes: segment_bytes / PIECE_BYTES as u32,
        }
    }

    fn in_words(self, place: &str) -> String {
        let bytes = u64::from(self.lanes) * PIECE_BYTES;
        format!("read random {bytes}-byte segments of {place}")
    }

    fn bytes(self) -> u64 {
        u64::from(self.count * self.lanes) * PIECE_BYTES
    }

    fn work(self, blocks: u32, threads: u32, inputs: Vec<Input>, timed_rounds: u32) -> Work {
        let loads = u64::from(blocks * threads) * u64::from(timed_rounds * LOADS);
        Work {
            blocks,
            inputs,
            words: (blocks * threads) as usize,
            checked_rounds: 5,
            timed_rounds,
            expected: Box::new(move |thread, rounds| self.sum(thread as u32, rounds)),
            amount: loads * PIECE_BYTES,
        }
    }

    /// What a thread's sum is after so many rounds.
    fn sum(self, thread: u32, rounds: u32) -> u32 {
        let mut random = Random::of_group(thread / self.lanes);
        let lane = u64::from(thread % self.lanes);
        (0..rounds * LOADS).fold(0, |sum, _| {
            let segment = u64::from(random.below(self.count));
            let offset = (segment * u64::from(self.lanes) + lane) * PIECE_BYTES;
            sum.wrapping_add(piece(offset))
        })
    }
}
