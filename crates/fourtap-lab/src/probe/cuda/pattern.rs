//! Words without a pattern that a wrong address could hide behind, by the device and by the host.

use fourtap::cuda::driver::Buffer;

use crate::cuda::{Argument, Grid, Source, Stopwatch};
use crate::error::Result;

/// Bytes of a vector load.
pub const PIECE_BYTES: u64 = 16;

const FILL_THREADS: u32 = 256;
const FILL_BLOCKS: u32 = 8;

/// A number that says nothing of its neighbours, as in kernels/common/memory.cuh.
pub fn mixed(number: u32) -> u32 {
    let number = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let number = (number ^ number >> 15).wrapping_mul(0x846c_a68b);
    number ^ number >> 16
}

/// Word number `index` of a buffer: a hash of its place.
pub fn word(index: u64) -> u32 {
    mixed(index as u32)
}

/// The sum of the four words from byte `offset` on.
pub fn piece(offset: u64) -> u32 {
    let first = offset / 4;
    (first..first + PIECE_BYTES / 4).fold(0, |sum, at| sum.wrapping_add(word(at)))
}

/// So many bytes of such words, by the device.
pub fn buffer(stopwatch: &Stopwatch, bytes: u64) -> Result<Buffer> {
    let cuda = stopwatch.cuda();
    let kernel = fill().load(cuda)?;
    let buffer = Buffer::alloc(cuda.context(), bytes as usize)?;
    let grid = Grid {
        blocks: cuda.device().facts().multiprocessors * FILL_BLOCKS,
        ..Grid::of_threads(FILL_THREADS)
    };
    let arguments = [
        Argument::Address(buffer.as_ptr()),
        Argument::Count(bytes / 4),
    ];
    // SAFETY: the kernel takes an address and a count of words, as many as the buffer holds. The buffer is kept until the
    // stream has done the work.
    stopwatch.once(|cuda| unsafe { kernel.queue(cuda, grid, &arguments) })?;
    Ok(buffer)
}

/// The kernel that fills a buffer.
pub fn fill() -> Source {
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
