//! How fast numbers are added to device memory by atomic instructions, spread out and at few places.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;
use fourtap::f16;

use super::super::Probe;
use super::device::{ProbeDevice, Subject};
use super::pattern::Random;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

const THREADS: u32 = 256;
/// Instructions per thread and round.
const ADDITIONS: u32 = 8;
const TIMED_ROUNDS: u32 = 32;

/// The case whose every sum is compared: so few additions that also f16 sums are exact.
const CHECKED_BLOCKS: u32 = 2;
const CHECKED_ROUNDS: u32 = 5;
const CHECKED_BYTES: u32 = 4 << 10;

/// Bytes that everybody adds to when contended: about what the points of a window of 6x6 pixels of a level touch.
const CONTENDED_BYTES: u32 = 4 << 10;
/// Spread out, the buffer takes this share of the L2 cache.
const SHARE_OF_L2: u32 = 4;

/// What an instruction adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    FourF32,
    EightF16,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::F32, Kind::FourF32, Kind::EightF16];

    fn name(self) -> &'static str {
        match self {
            Kind::F32 => "f32",
            Kind::FourF32 => "v4f32",
            Kind::EightF16 => "v4f16x2",
        }
    }

    /// Numbers an instruction adds, and threads that add to one segment together.
    fn shape(self) -> (u32, u32) {
        match self {
            Kind::F32 => (1, 32),
            Kind::FourF32 => (4, 8),
            Kind::EightF16 => (8, 4),
        }
    }

    fn number_bytes(self) -> u32 {
        if self == Kind::EightF16 { 2 } else { 4 }
    }

    fn segment_bytes(self) -> u32 {
        let (numbers, lanes) = self.shape();
        numbers * lanes * self.number_bytes()
    }

    /// Its kernel.
    pub fn source(self) -> Source {
        let text = include_str!("../../../kernels/probe/atomic.cu");
        let number = Kind::ALL.iter().position(|&kind| kind == self);
        Source::new(
            "probe_atomic",
            text,
            &[("KIND", number.unwrap_or_default() as u32)],
        )
    }

    /// What the buffer of the small case holds afterwards.
    fn expected(self) -> Vec<f32> {
        let (numbers, lanes) = self.shape();
        let segments = CHECKED_BYTES / self.segment_bytes();
        let mut sums = vec![0.0; (CHECKED_BYTES / self.number_bytes()) as usize];
        for thread in 0..CHECKED_BLOCKS * THREADS {
            let (group, lane) = (thread / lanes, thread % lanes);
            let mut random = Random::of_group(group);
            for round in 0..CHECKED_ROUNDS {
                let sign = if round % 2 == 0 { 1.0 } else { -1.0 };
                for _ in 0..ADDITIONS {
                    let first = (random.below(segments) * lanes + lane) * numbers;
                    for number in 0..numbers {
                        let added = 1 + (group + lane + number) % 4;
                        sums[(first + number) as usize] += sign * added as f32;
                    }
                }
            }
        }
        sums
    }

    /// As the device stores them.
    fn read(self, buffer: &Buffer) -> Result<Vec<f32>> {
        Ok(match self {
            Kind::EightF16 => {
                let numbers = buffer.to_vec::<f16>()?;
                numbers.into_iter().map(f16::to_f32).collect()
            }
            _ => buffer.to_vec()?,
        })
    }

    fn missing(self, gpu: &ProbeDevice<'_>) -> Option<String> {
        let (major, minor) = gpu.facts().compute_capability;
        (self != Kind::F32 && major < 9).then(|| {
            format!(
                "additions of 16 bytes need compute capability 9.0; this device has {major}.{minor}"
            )
        })
    }

    fn measure(
        self,
        gpu: &ProbeDevice<'_>,
        subject: &Subject,
        contended: bool,
    ) -> Result<ProbeRecord> {
        if let Some(reason) = self.missing(gpu) {
            return Ok(subject.unavailable(gpu, &reason));
        }
        let context = gpu.cuda().context();
        let kernel = self.source().load(gpu.cuda())?;
        let queue = |cuda: &Cuda, grid: Grid, data: &Buffer, rounds: u32| {
            let segments = data.len() as u32 / self.segment_bytes();
            let arguments = [
                Argument::Address(data.as_ptr()),
                Argument::Word(segments),
                Argument::Word(rounds),
            ];
            // SAFETY: the kernel takes an address and two numbers, and adds to so many segments, which the buffer
            // holds; it lives until the work has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        };

        let small = Grid {
            blocks: CHECKED_BLOCKS,
            threads: THREADS,
            ..Grid::default()
        };
        let data = Buffer::zeroed(context, CHECKED_BYTES as usize)?;
        gpu.stopwatch
            .once(|cuda| queue(cuda, small, &data, CHECKED_ROUNDS))?;
        let (expected, found) = (self.expected(), self.read(&data)?);
        if let Some(at) = (0..expected.len()).find(|&at| expected[at] != found[at]) {
            return Err(subject.wrong(format!("{} as sum {at}", expected[at]), found[at]));
        }

        let bytes = match contended {
            true => CONTENDED_BYTES,
            false => gpu.facts().l2_bytes / SHARE_OF_L2,
        };
        let bytes = (bytes / self.segment_bytes()).max(1) * self.segment_bytes();
        let data = Buffer::zeroed(context, bytes as usize)?;
        let grid = kernel.filling(gpu.cuda(), small)?;
        let timed = gpu
            .stopwatch
            .hot(gpu.budget, |cuda| queue(cuda, grid, &data, TIMED_ROUNDS))?;
        let instructions = u64::from(grid.blocks * THREADS) * u64::from(TIMED_ROUNDS * ADDITIONS);
        let compared = "every sum of a small case";
        let amount = instructions * u64::from(self.shape().0);
        let record = subject.measured(gpu, Unit::GigaASecond, amount, timed, compared);
        Ok(record
            .with("buffer_bytes", bytes)
            .with("segment_bytes", self.segment_bytes())
            .with("counted", "numbers added"))
    }
}

/// Each kind, spread out and contended.
pub fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    for kind in Kind::ALL {
        for contended in [false, true] {
            let place = if contended { "contended" } else { "spread" };
            let numbers = match kind {
                Kind::F32 => "one f32",
                Kind::FourF32 => "four f32",
                Kind::EightF16 => "eight f16",
            };
            let where_to = match contended {
                true => "all in the same 4 KiB",
                false => "all over a quarter of L2",
            };
            let what = format!("add {numbers} per instruction, {where_to}");
            let subject = Subject::ceiling(format!("atomic-{}-{place}", kind.name()), what);
            probes.push(subject.probe(move |gpu, subject| kind.measure(gpu, subject, contended)));
        }
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_small_case_are_exact_in_their_type() {
        for kind in Kind::ALL {
            let sums = kind.expected();
            assert!(sums.iter().any(|&sum| sum != 0.0));
            // Whatever the order, a sum on its way is no larger than all that is added to it.
            let (numbers, lanes) = kind.shape();
            let added = CHECKED_BLOCKS * THREADS * CHECKED_ROUNDS * ADDITIONS * numbers;
            let most = 4 * added / (sums.len() as u32) * 4;
            let limit = if kind == Kind::EightF16 {
                2048
            } else {
                1 << 24
            };
            assert!(most < limit, "{kind:?}: {most}");
            assert_eq!(CHECKED_BYTES % (lanes * numbers * kind.number_bytes()), 0);
        }
    }

    #[test]
    fn everything_that_is_added_is_in_the_sums() {
        for kind in Kind::ALL {
            // One round more of one sign than of the other, and each number as often as any other.
            let (numbers, _) = kind.shape();
            let additions = CHECKED_BLOCKS * THREADS * ADDITIONS * numbers;
            let total: f32 = kind.expected().iter().sum();
            assert_eq!(total, additions as f32 * 2.5, "{kind:?}");
        }
    }
}
