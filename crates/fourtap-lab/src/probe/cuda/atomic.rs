//! How fast numbers are added to device memory by atomic instructions, spread out and at few places.

use super::experiment::{Experiment, Input, Needs, Room, Work};
use super::pattern::Random;
use crate::cuda::{Grid, Source};
use crate::record::Unit;

const THREADS: u32 = 256;
/// Instructions per thread and round.
const ADDITIONS: u32 = 8;
/// Numbers an instruction adds.
const NUMBERS: u32 = 4;
/// Threads that add to a segment together.
const LANES: u32 = 8;
const SEGMENT_NUMBERS: u32 = LANES * NUMBERS;
const SEGMENT_BYTES: u64 = SEGMENT_NUMBERS as u64 * size_of::<f32>() as u64;

/// Two: of one sign, and of the other.
const CHECKED_ROUNDS: u32 = 2;
const TIMED_ROUNDS: u32 = 32;

/// Bytes that everybody adds to when contended: about what the points of a window of 6x6 pixels of a level touch.
const CONTENDED_BYTES: u64 = 4 << 10;
/// Spread out, the buffer takes this share of the L2 cache.
const SHARE_OF_L2: u64 = 4;

/// All over a part of the L2 cache.
pub fn spread() -> Experiment {
    experiment("all over a quarter of L2", |room| {
        room.l2_bytes / SHARE_OF_L2
    })
}

/// All at a few places.
pub fn contended() -> Experiment {
    experiment("all in the same 4 KiB", |_| CONTENDED_BYTES)
}

fn experiment(place: &str, bytes: fn(Room) -> u64) -> Experiment {
    let text = include_str!("../../../kernels/probe/atomic.cu");
    let what = format!("add four f32 per instruction, {place}");
    let kernel = Source::new("probe_atomic", text, &[]);
    let work = move |room: Room| {
        let segments = (bytes(room) / SEGMENT_BYTES).max(1) as u32;
        let threads = room.blocks * THREADS;
        let sums = sums(threads, segments);
        let instructions = u64::from(threads) * u64::from(TIMED_ROUNDS * ADDITIONS);
        Work {
            blocks: room.blocks,
            inputs: vec![Input::Sums, Input::Word(segments), Input::Rounds],
            words: sums.len(),
            checked_rounds: CHECKED_ROUNDS,
            timed_rounds: TIMED_ROUNDS,
            expected: Box::new(move |number, _| sums[number].to_bits()),
            amount: instructions * u64::from(NUMBERS),
        }
    };
    let block = Grid::of_threads(THREADS);
    Experiment::new(what, kernel, block, Unit::GigaASecond, work).on(Needs::Hopper)
}

/// What so many segments hold after the rounds that are checked. Sums are of so few small whole numbers that they are
/// exact in whatever order.
fn sums(threads: u32, segments: u32) -> Vec<f32> {
    let mut sums = vec![0.0; (segments * SEGMENT_NUMBERS) as usize];
    for thread in 0..threads {
        let (group, lane) = (thread / LANES, thread % LANES);
        let mut random = Random::of_group(group);
        for sign in [1.0, -1.0] {
            for _ in 0..ADDITIONS {
                let first = (random.below(segments) * LANES + lane) * NUMBERS;
                for number in 0..NUMBERS {
                    let added = 1 + (group + lane + number) % 4;
                    sums[(first + number) as usize] += sign * added as f32;
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_of_as_much_as_they_lose() {
        // As many as an H200 runs at once, at few places: no sum on its way is larger than all that is added there.
        let (threads, segments) = (132 * 8 * THREADS, (CONTENDED_BYTES / SEGMENT_BYTES) as u32);
        let added =
            f64::from(threads * CHECKED_ROUNDS * ADDITIONS) * 4.0 / f64::from(segments * LANES);
        assert!(2.0 * added < f64::from(1 << 24), "{added}");
        let sums = sums(threads, segments);
        assert!(sums.iter().any(|&sum| sum != 0.0));
        assert_eq!(sums.iter().sum::<f32>(), 0.0);
    }
}
