//! How fast numbers are multiplied and added.

use super::experiment::{Experiment, Input, Work};
use super::pattern::mixed;
use crate::cuda::{Grid, Source};
use crate::record::Unit;

const THREADS: u32 = 256;
const CHAINS: u32 = 16;
const LINKS: u32 = 16;
const TIMED_ROUNDS: u32 = 256;

/// Chains swing around and never settle within the rounds: a link too many or too few is seen.
const SCALE: f32 = -0.999_023_44;
const OFFSET: f32 = 0.375;

/// Multiply-adds of f32 in registers.
pub fn fma() -> Experiment {
    let text = include_str!("../../../kernels/probe/fma.cu");
    let what = "fused multiply-adds of f32 from registers";
    let (kernel, block) = (
        Source::new("probe_fma", text, &[]),
        Grid::of_threads(THREADS),
    );
    Experiment::new(what, kernel, block, Unit::GigaflopASecond, |room| {
        let threads = room.blocks * THREADS;
        let links = u64::from(threads) * u64::from(TIMED_ROUNDS * LINKS * CHAINS);
        Work {
            blocks: room.blocks,
            inputs: vec![
                Input::Word(SCALE.to_bits()),
                Input::Word(OFFSET.to_bits()),
                Input::Rounds,
                Input::Output,
            ],
            words: threads as usize,
            checked_rounds: 2,
            timed_rounds: TIMED_ROUNDS,
            expected: Box::new(|thread, rounds| result(thread as u32, rounds)),
            // A product and a sum.
            amount: 2 * links,
        }
    })
}

/// What a thread's result is after so many rounds.
fn result(thread: u32, rounds: u32) -> u32 {
    (0..CHAINS).fold(0, |result: u32, chain| {
        let random = mixed(thread.wrapping_mul(CHAINS).wrapping_add(chain));
        let first = f32::from_bits(0x3f80_0000 | (random & 0x007f_ffff));
        let last = (0..rounds * LINKS).fold(first, |last, _| last.mul_add(SCALE, OFFSET));
        result.wrapping_add(last.to_bits().wrapping_mul(2 * chain + 1))
    })
}
