//! Words without a pattern that a wrong address could hide behind, by the device and by the host.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;

use crate::cuda::Stopwatch;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;

/// Bytes of a vector load.
pub const PIECE_BYTES: u64 = 16;

const FILL_THREADS: u32 = 256;
const FILL_BLOCKS: u32 = 8;

/// A number that says nothing of its neighbours, as in kernels/probe/memory.cuh.
pub fn mixed(number: u32) -> u32 {
    let number = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let number = (number ^ number >> 15).wrapping_mul(0x846c_a68b);
    number ^ number >> 16
}

/// A buffer's words, each a hash of its place.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Tells buffers apart.
    pub seed: u32,
}

impl Pattern {
    /// Word number `index`.
    pub fn word(self, index: u64) -> u32 {
        mixed((index as u32).wrapping_add(self.seed))
    }

    /// The sum of the four words from byte `offset` on.
    pub fn piece(self, offset: u64) -> u32 {
        let first = offset / 4;
        (first..first + PIECE_BYTES / 4).fold(0, |sum, at| sum.wrapping_add(self.word(at)))
    }

    /// So many bytes of it on the device, by the device.
    pub fn buffer(self, stopwatch: &Stopwatch, bytes: u64) -> Result<Buffer> {
        let cuda = stopwatch.cuda();
        let kernel = fill_source().load(cuda)?;
        let buffer = Buffer::alloc(cuda.context(), bytes as usize)?;
        let grid = Grid {
            blocks: cuda.device().facts().multiprocessors * FILL_BLOCKS,
            threads: FILL_THREADS,
            ..Grid::default()
        };
        let arguments = [
            Argument::Address(buffer.as_ptr()),
            Argument::Count(bytes / 4),
            Argument::Word(self.seed),
        ];
        // SAFETY: the kernel takes an address, a count of words, as many as the buffer holds, and a number. The buffer
        // is kept until the stream has done the work.
        stopwatch.once(|cuda: &Cuda| unsafe { kernel.queue(cuda, grid, &arguments) })?;
        Ok(buffer)
    }
}

/// The kernel that fills a buffer.
pub fn fill_source() -> Source {
    let text = include_str!("../../../kernels/probe/fill.cu");
    Source::new("probe_fill", text, &[])
}

/// The sequence of numbers that a group of threads goes through.
#[derive(Clone, Copy, Debug)]
pub struct Random(u32);

impl Random {
    /// Of the group of this number.
    pub fn of_group(group: u32) -> Self {
        Random(group.wrapping_mul(2_654_435_761))
    }

    /// The next one below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        scaled(self.0, end)
    }
}

/// A number of 32 bits as one below `end`.
pub fn scaled(random: u32, end: u32) -> u32 {
    ((u64::from(random) * u64::from(end)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_seeds_give_other_words() {
        let mut words: Vec<u32> = [0, 1 << 20]
            .into_iter()
            .flat_map(|seed| (0..1000).map(move |at| Pattern { seed }.word(at)))
            .collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 2000);
    }

    #[test]
    fn random_numbers_reach_both_ends() {
        let mut random = Random::of_group(7);
        let seen: Vec<u32> = (0..1000).map(|_| random.below(10)).collect();
        for number in 0..10 {
            assert!(seen.contains(&number), "{number}");
        }
        assert!(seen.iter().all(|&number| number < 10));
    }
}
