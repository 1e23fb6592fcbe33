//! How fast device memory is copied.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;

use super::device::{ProbeDevice, Subject};
use super::pattern::{PIECE_BYTES, Pattern};
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

/// A buffer of this size leaves no part of it to the L2 cache.
pub const LARGE_BYTES: u64 = 1 << 30;

const THREADS: u32 = 256;
/// Vectors per thread.
const VECTORS: u32 = 2;
const PATTERN: Pattern = Pattern { seed: 0x5a00_0000 };

/// What it is about.
pub fn subject() -> Subject {
    Subject::ceiling(
        "copy",
        "copy device memory; bytes read and written both count",
    )
}

/// Its kernel.
pub fn source() -> Source {
    let text = include_str!("../../../kernels/probe/copy.cu");
    Source::new("probe_copy", text, &[])
}

/// How fast that is, after it was seen to be right.
pub fn measure(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let context = gpu.cuda().context();
    let bytes = large_bytes(gpu)? / PIECE_BYTES * PIECE_BYTES;
    let kernel = source().load(gpu.cuda())?;
    let original = PATTERN.buffer(gpu.stopwatch, bytes)?;
    let copied = Buffer::zeroed(context, bytes as usize)?;
    let blocks = (bytes / PIECE_BYTES).div_ceil(u64::from(THREADS * VECTORS));
    let grid = Grid {
        // A buffer is at most 1 GiB.
        blocks: blocks as u32,
        threads: THREADS,
        ..Grid::default()
    };
    let queue = |cuda: &Cuda| {
        let arguments = [
            Argument::Address(original.as_ptr()),
            Argument::Address(copied.as_ptr()),
            Argument::Count(bytes / PIECE_BYTES),
        ];
        // SAFETY: the kernel takes two addresses and a count of vectors, as many as each buffer holds; both live until
        // the work has been waited for.
        unsafe { kernel.queue(cuda, grid, &arguments) }
    };
    let timed = gpu.stopwatch.hot(gpu.budget, queue)?;
    compare(subject, &copied, PATTERN)?;
    let compared = "every word of the copy";
    let record = subject.measured(gpu, Unit::GigabytesASecond, 2 * bytes, timed, compared);
    Ok(record.with("buffer_bytes", bytes))
}

/// Bytes of a buffer that no cache holds, and the device's memory several times.
pub fn large_bytes(gpu: &ProbeDevice<'_>) -> Result<u64> {
    let free = gpu.cuda().context().memory_info()?.free as u64;
    Ok(LARGE_BYTES.min(free / 4))
}

/// Compares every word of a buffer.
pub fn compare(subject: &Subject, buffer: &Buffer, pattern: Pattern) -> Result<()> {
    let found = buffer.to_vec::<u32>()?;
    for (at, &found) in found.iter().enumerate() {
        let expected = pattern.word(at as u64);
        if expected != found {
            return Err(subject.wrong(format!("{expected:#x} as word {at}"), format!("{found:#x}")));
        }
    }
    Ok(())
}
