//! How fast slices of channels are copied through shared memory.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, TensorMap};

use super::super::Probe;
use super::copy;
use super::device::{ProbeDevice, Subject};
use super::pattern::Pattern;
use super::tma;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{Claim, ProbeRecord, Unit};

const HEADS: u32 = 48;
const PIXELS: u32 = 20_522;
const CHANNELS: u32 = 32;
const SLICE_CHANNELS: u32 = 8;
const BYTES: u64 = HEADS as u64 * PIXELS as u64 * CHANNELS as u64 * 2;
/// Of each head 4 slices, and 4 blocks a slice.
const BLOCKS: u32 = HEADS * 16;
/// Pixels a chunk, and chunks in shared memory at a time.
const CHUNK: u32 = 256;
const STAGES: u32 = 4;
const PATTERN: Pattern = Pattern { seed: 0x0700_0000 };

/// How slices are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Cooperative,
    CpAsync,
    Bulk,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::Cooperative, Method::CpAsync, Method::Bulk];

    fn name(self) -> &'static str {
        match self {
            Method::Cooperative => "cooperative",
            Method::CpAsync => "cpasync",
            Method::Bulk => "bulk",
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Method::Cooperative => "by loads and stores",
            Method::CpAsync => "by cp.async",
            Method::Bulk => "as boxes by tensor maps",
        }
    }

    /// Its kernel.
    pub fn source(self) -> Source {
        let text = include_str!("../../../kernels/probe/slice.cu");
        let source = Source::new("probe_slice", text, &[("METHOD", self as u32)]);
        match self {
            Method::Bulk => source.for_hopper(),
            _ => source,
        }
    }

    /// What others published.
    fn claim(self) -> Option<Claim> {
        let (rate, words) = match self {
            Method::Cooperative => (56.0, "1.125 ms, published by others for another GPU"),
            Method::Bulk => (
                82.0,
                "0.766 ms, published by others for another GPU, of code that had no TMA in it",
            ),
            Method::CpAsync => return None,
        };
        Some(Claim {
            rate,
            words: words.to_string(),
        })
    }

    fn measure(self, gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
        if let Some(reason) = tma::missing(gpu).filter(|_| self == Method::Bulk) {
            return Ok(subject.unavailable(gpu, &reason));
        }
        let context = gpu.cuda().context();
        let kernel = self.source().load(gpu.cuda())?;
        let original = PATTERN.buffer(gpu.stopwatch, BYTES)?;
        let copied = Buffer::zeroed(context, BYTES as usize)?;
        let map = |buffer: &Buffer| {
            let dimensions = [CHANNELS, PIXELS, HEADS].map(u64::from);
            let sides = [SLICE_CHANNELS, CHUNK, 1];
            TensorMap::encode(context, &tma::packed(buffer.as_ptr(), &dimensions, &sides))
        };
        let maps = match self {
            Method::Bulk => Some([map(&original)?, map(&copied)?]),
            _ => None,
        };
        let piece_bytes = SLICE_CHANNELS * 2;
        let grid = Grid {
            blocks: BLOCKS,
            // The copy engine needs one thread to ask.
            threads: if self == Method::Bulk { 32 } else { CHUNK },
            // Chunks, and a barrier of each behind them.
            shared_bytes: STAGES * (CHUNK * piece_bytes + size_of::<u64>() as u32),
            ..Grid::default()
        };
        let timed = gpu.stopwatch.hot(gpu.budget, |cuda: &Cuda| {
            let [from, to] = match &maps {
                Some([from, to]) => [Argument::Map(from), Argument::Map(to)],
                None => [&original, &copied].map(|buffer| Argument::Address(buffer.as_ptr())),
            };
            let arguments = [from, to, Argument::Word(PIXELS)];
            // SAFETY: the kernel takes two addresses or, of this method, tensor maps of them, and a number of pixels.
            // Both buffers hold as many of every head, and live until the work has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        })?;
        copy::compare(subject, &copied, PATTERN)?;
        let compared = "every word of the copy";
        let mut record = subject.measured(gpu, Unit::GigabytesASecond, BYTES, timed, compared);
        record.claim = self.claim();
        Ok(record
            .with("blocks", BLOCKS)
            .with("shape", vec![HEADS, PIXELS, CHANNELS])
            .with("counted", "bytes copied, once"))
    }
}

/// All of them.
pub fn probes() -> Vec<Probe> {
    let one = |method: Method| {
        let what = format!("slices of 8 of 32 channels, {}", method.in_words());
        let subject = Subject::new(format!("slice-{}", method.name()), "slice-copy", what);
        subject.probe(move |gpu, subject| method.measure(gpu, subject))
    };
    Method::ALL.into_iter().map(one).collect()
}
