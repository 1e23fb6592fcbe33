//! How fast numbers are multiplied and added.

use fourtap::f16;

use super::device::{ProbeDevice, Subject};
use super::pattern::mixed;
use super::sums::Sums;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

const THREADS: u32 = 256;
const CHAINS: u32 = 16;
const LINKS: u32 = 16;
const CHECKED_ROUNDS: u32 = 2;
const TIMED_ROUNDS: u32 = 256;

/// Chains swing around and never settle within the rounds: a link too many or too few is seen.
const SCALE: f32 = -0.999_023_44;
const OFFSET: f32 = 0.375;

/// What an instruction multiplies and adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    TwoF16,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::F32, Kind::TwoF16];

    /// What it is about.
    pub fn subject(self) -> Subject {
        match self {
            Kind::F32 => Subject::ceiling("fma-f32", "fused multiply-adds of f32 from registers"),
            Kind::TwoF16 => Subject::ceiling(
                "fma-f16x2",
                "fused multiply-adds of two f16 at a time from registers",
            ),
        }
    }

    /// Its kernel.
    pub fn source(self) -> Source {
        let text = include_str!("../../../kernels/probe/fma.cu");
        let half = self == Kind::TwoF16;
        Source::new("probe_fma", text, &[("HALF", half.into())])
    }

    /// A number, or the same number twice, as the kernel takes it.
    fn bits(self, number: f32) -> u32 {
        match self {
            Kind::F32 => number.to_bits(),
            Kind::TwoF16 => u32::from(f16::from_f32(number).to_bits()) * 0x1_0001,
        }
    }

    /// Where a chain starts.
    fn first(self, thread: u32, chain: u32) -> u32 {
        let random = mixed(thread.wrapping_mul(CHAINS).wrapping_add(chain));
        match self {
            Kind::F32 => 0x3f80_0000 | (random & 0x007f_ffff),
            Kind::TwoF16 => 0x3c00_3c00 | (random & 0x03ff_03ff),
        }
    }

    fn link(self, last: u32) -> u32 {
        match self {
            Kind::F32 => f32::from_bits(last).mul_add(SCALE, OFFSET).to_bits(),
            Kind::TwoF16 => {
                // Exact in f64, so that rounding to f16 is the only one, as in the device.
                let one = |bits: u32| {
                    let last = f16::from_bits(bits as u16).to_f64();
                    let next = last * f64::from(SCALE) + f64::from(OFFSET);
                    u32::from(f16::from_f64(next).to_bits())
                };
                one(last & 0xffff) | one(last >> 16) << 16
            }
        }
    }

    /// What a thread's result is after so many rounds.
    fn result(self, thread: u32, rounds: u32) -> u32 {
        (0..CHAINS).fold(0, |result: u32, chain| {
            let first = self.first(thread, chain);
            let last = (0..rounds * LINKS).fold(first, |last, _| self.link(last));
            result.wrapping_add(last.wrapping_mul(2 * chain + 1))
        })
    }

    /// Numbers an instruction multiplies and adds.
    fn numbers(self) -> u64 {
        if self == Kind::TwoF16 { 2 } else { 1 }
    }

    /// How fast that is, after it was seen to be right.
    pub fn measure(self, gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
        let kernel = self.source().load(gpu.cuda())?;
        let grid = Grid {
            threads: THREADS,
            ..Grid::default()
        };
        let grid = kernel.filling(gpu.cuda(), grid)?;
        let sums = Sums {
            subject,
            threads: grid.blocks * THREADS,
            checked_rounds: CHECKED_ROUNDS,
            timed_rounds: TIMED_ROUNDS,
        };
        let timed = sums.timed(
            gpu,
            |cuda, rounds, results| {
                let arguments = [
                    Argument::Word(self.bits(SCALE)),
                    Argument::Word(self.bits(OFFSET)),
                    Argument::Word(rounds),
                    Argument::Address(results.as_ptr()),
                ];
                // SAFETY: the kernel takes three numbers of 32 bits and an address, and writes a number per thread; the
                // buffer lives until the work has been waited for.
                unsafe { kernel.queue(cuda, grid, &arguments) }
            },
            |thread, rounds| self.result(thread, rounds),
        )?;
        let links = u64::from(sums.threads) * u64::from(TIMED_ROUNDS * LINKS * CHAINS);
        // A product and a sum.
        let operations = 2 * links * self.numbers();
        let compared = "every thread's result of 2 rounds";
        Ok(subject.measured(gpu, Unit::GigaflopASecond, operations, timed, compared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_the_same_in_both_types() {
        for number in [SCALE, OFFSET] {
            assert_eq!(f16::from_f32(number).to_f32(), number);
        }
    }

    #[test]
    fn one_link_more_or_less_is_seen() {
        for kind in Kind::ALL {
            for start in [kind.first(3, 5), kind.first(1000, 0)] {
                let mut seen = Vec::new();
                let mut last = start;
                for _ in 0..CHECKED_ROUNDS * LINKS + 1 {
                    assert!(!seen.contains(&last), "{kind:?}");
                    seen.push(last);
                    last = kind.link(last);
                }
            }
        }
    }

    #[test]
    fn chains_and_threads_differ() {
        for kind in Kind::ALL {
            let mut results: Vec<u32> = (0..512).map(|thread| kind.result(thread, 2)).collect();
            results.sort_unstable();
            results.dedup();
            assert_eq!(results.len(), 512, "{kind:?}");
        }
    }
}
