//! What a device can do at most, measured: how fast it copies memory and how fast its first-level cache is gathered from.

use std::ffi::c_void;
use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Context, Kernel, Launch, Library, launch};
use fourtap::cuda::jit::{self, Architecture, Program};

use super::stopwatch::Stopwatch;
use crate::error::{Error, Result};
use crate::record::ProbeRecord;
use crate::target::Device;

/// A copy of this size leaves no part of it to the second-level cache.
const COPIED_BYTES: usize = 1 << 30;
const COPIED_BYTE: u8 = 0x5a;
const VECTOR_BYTES: usize = 16;
const COPY_THREADS: u32 = 512;
/// Blocks of the copy a multiprocessor.
const COPY_BLOCKS: u32 = 4;

/// Copies device memory; bytes read and bytes written both count.
pub fn copy(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let context = stopwatch.cuda().context();
    let bytes = COPIED_BYTES.min(context.memory_info()?.free / 4);
    let bytes = bytes / VECTOR_BYTES * VECTOR_BYTES;
    let kernel = kernel(stopwatch.cuda(), &COPY)?;
    let mut source = Buffer::alloc(context, bytes)?;
    let mut target = Buffer::zeroed(context, bytes)?;
    stopwatch.once(|cuda| Ok(source.fill(COPIED_BYTE, cuda.stream())?))?;
    let hot = stopwatch.hot(budget, |cuda| {
        queue_copy(cuda, &kernel, &source, &mut target)
    })?;
    let copied = target.to_vec::<u8>()?;
    if let Some(at) = copied.iter().position(|&byte| byte != COPIED_BYTE) {
        return Err(Error::Probe {
            probe: "copy",
            expected: format!("{COPIED_BYTE:#x} at byte {at}"),
            found: format!("{:#x}", copied[at]),
        });
    }
    let what = "copy device memory; bytes read and bytes written both count";
    Ok(
        ProbeRecord::ceiling("copy", what, device, 2 * bytes as u64, hot.timing)
            .verified("every byte of the copy")
            .with("buffer_bytes", bytes),
    )
}

/// Queues the copy of one buffer to another of the same size.
fn queue_copy(cuda: &Cuda, kernel: &Kernel, source: &Buffer, target: &mut Buffer) -> Result<()> {
    let (from, to) = (source.as_ptr(), target.as_ptr());
    let count = (source.len() / VECTOR_BYTES) as u64;
    let pointer = |argument: *const u64| argument.cast_mut().cast::<c_void>();
    let mut arguments = [pointer(&from), pointer(&to), pointer(&count)];
    let facts = cuda.device().facts();
    let shape = Launch {
        grid: [facts.multiprocessors * COPY_BLOCKS, 1, 1],
        block: [COPY_THREADS, 1, 1],
        stream: cuda.stream(),
        ..Launch::default()
    };
    let _entered = cuda.context().enter()?;
    // SAFETY: the kernel takes two pointers and a count of vectors, as many as each buffer holds; both are kept by
    // whoever times this.
    Ok(unsafe { launch(kernel, &shape, &mut arguments) }?)
}

/// A kernel of the lab's own.
struct Source {
    name: &'static str,
    entry: &'static str,
    text: &'static str,
}

const COPY: Source = Source {
    name: "lab-probe-copy",
    entry: "probe_copy",
    text: include_str!("../../kernels/probe/copy.cu"),
};
const GATHER: Source = Source {
    name: "lab-probe-gather",
    entry: "probe_gather",
    text: include_str!("../../kernels/probe/gather.cu"),
};

/// Bytes of the buffer gathered from: it stays in the first-level cache, which nothing can gather faster than.
const GATHERED_BYTES: u32 = 64 << 10;
const SEGMENT_BYTES: u32 = 64;
const SEGMENTS: u32 = GATHERED_BYTES / SEGMENT_BYTES;
/// Lanes that read a segment together.
const LANES: u32 = 4;
const LOADS_IN_FLIGHT: u32 = 8;
const LOAD_BYTES: u32 = SEGMENT_BYTES / LANES;
const THREADS: u32 = 256;
/// Rounds of [`LOADS_IN_FLIGHT`] that a thread is timed for.
const ROUNDS: u32 = 256;

/// The case whose every sum is compared with the host's.
const CHECKED_BLOCKS: u32 = 2;
const CHECKED_ROUNDS: u32 = 5;

/// Reads random 64-byte segments of a buffer in the first-level cache, after a small case gave the sums it must.
pub fn gather(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let cuda = stopwatch.cuda();
    let (context, facts) = (cuda.context(), cuda.device().facts());
    let kernel = kernel(cuda, &GATHER)?;
    let words = words();
    let data = Buffer::from_slice(context, &words)?;

    let found = sums(stopwatch, context, &kernel, &data)?;
    let expected = expected_sums(&words);
    if let Some(thread) = (0..expected.len()).find(|&thread| found[thread] != expected[thread]) {
        return Err(Error::Probe {
            probe: "gather",
            expected: format!("sum {:#x} of thread {thread}", expected[thread]),
            found: format!("{:#x}", found[thread]),
        });
    }

    let blocks = facts.multiprocessors * kernel.occupancy(context, THREADS, 0)?.max(1);
    let sums = Buffer::alloc(context, (blocks * THREADS) as usize * size_of::<u32>())?;
    let hot = stopwatch.hot(budget, |cuda| {
        queue(cuda, &kernel, &data, &sums, blocks, ROUNDS)
    })?;
    let loads = u64::from(blocks * THREADS) * u64::from(ROUNDS * LOADS_IN_FLIGHT);
    let what = "read random 64-byte segments of a buffer that the first-level cache holds";
    let moved = loads * u64::from(LOAD_BYTES);
    Ok(
        ProbeRecord::ceiling("gather-64-l1", what, device, moved, hot.timing)
            .verified("every thread's sum of a small case")
            .with("buffer_bytes", GATHERED_BYTES),
    )
}

impl Source {
    fn program(&self, architecture: Architecture) -> Program {
        Program {
            name: self.name.to_string(),
            source: self.text.to_string(),
            options: Vec::new(),
            architecture,
        }
    }
}

fn kernel(cuda: &Cuda, source: &Source) -> Result<Kernel> {
    let (major, minor) = cuda.device().compute_capability();
    let program = source.program(jit::architecture_for(major, minor)?);
    let (code, _) = jit::machine_code(&program)?;
    let kernel = Library::load(&code)?.kernel(source.entry)?;
    kernel.prepare(cuda.context())?;
    Ok(kernel)
}

/// Queues `blocks` of the probe; `sums` has room for a number of each thread.
fn queue(
    cuda: &Cuda,
    kernel: &Kernel,
    data: &Buffer,
    sums: &Buffer,
    blocks: u32,
    rounds: u32,
) -> Result<()> {
    let (data, sums) = (data.as_ptr(), sums.as_ptr());
    let (segments, rounds) = (SEGMENTS, rounds);
    let pointer = |argument: *const c_void| argument.cast_mut();
    let mut arguments = [
        pointer((&raw const data).cast()),
        pointer((&raw const segments).cast()),
        pointer((&raw const rounds).cast()),
        pointer((&raw const sums).cast()),
    ];
    let shape = Launch {
        grid: [blocks, 1, 1],
        block: [THREADS, 1, 1],
        stream: cuda.stream(),
        ..Launch::default()
    };
    let _entered = cuda.context().enter()?;
    // SAFETY: the kernel takes a pointer, two 32-bit numbers and a pointer. It reads `segments` segments of `data`,
    // which holds as many, and writes one number a thread; both buffers are kept by whoever times this.
    Ok(unsafe { launch(kernel, &shape, &mut arguments) }?)
}

/// Numbers without a pattern that a wrong address could hide behind.
fn words() -> Vec<u32> {
    let mixed = |index: u32| (index ^ index >> 7).wrapping_mul(0x9e37_79b9);
    (0..GATHERED_BYTES / 4).map(mixed).collect()
}

/// The sums of the small case, by the device.
fn sums(
    stopwatch: &Stopwatch,
    context: &'static Context,
    kernel: &Kernel,
    data: &Buffer,
) -> Result<Vec<u32>> {
    let bytes = (CHECKED_BLOCKS * THREADS) as usize * size_of::<u32>();
    let sums = Buffer::zeroed(context, bytes)?;
    stopwatch.once(|cuda| queue(cuda, kernel, data, &sums, CHECKED_BLOCKS, CHECKED_ROUNDS))?;
    Ok(sums.to_vec()?)
}

/// The sums of the small case, by the host.
fn expected_sums(words: &[u32]) -> Vec<u32> {
    (0..CHECKED_BLOCKS * THREADS)
        .map(|thread| {
            let mut state = (thread / LANES).wrapping_mul(2_654_435_761);
            let mut sum = 0;
            for _ in 0..CHECKED_ROUNDS * LOADS_IN_FLIGHT {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let segment = (u64::from(state) * u64::from(SEGMENTS)) >> 32;
                let first = segment as u32 * SEGMENT_BYTES + thread % LANES * LOAD_BYTES;
                let first = first as usize / size_of::<u32>();
                sum = words[first..first + 4]
                    .iter()
                    .fold(sum, |sum, word| sum ^ word);
            }
            sum
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::cuda::jit::{Nvrtc, Resources};

    #[test]
    fn the_probes_compile_and_keep_their_loads_in_registers() {
        let required = std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some();
        let nvrtc = match Nvrtc::get() {
            Ok(nvrtc) => nvrtc,
            Err(error) => return assert!(!required, "{error}"),
        };
        for name in ["sm_80", "sm_90a"] {
            // Loads of four registers each, or they are not in flight together.
            for (source, registers) in [(&GATHER, 8 * 4), (&COPY, 4 * 4)] {
                let program = source.program(name.parse().unwrap());
                let compiled = nvrtc.compile(&program).unwrap();
                let kernels = Resources::of(&compiled.code).unwrap();
                assert_eq!(kernels[0].name, source.entry);
                assert_eq!(kernels[0].stack_bytes, 0, "{name}");
                assert!(kernels[0].registers > registers, "{name}: {kernels:?}");
            }
        }
    }

    #[test]
    fn the_expected_sums_are_all_different() {
        let mut sums = expected_sums(&words());
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len() as u32, CHECKED_BLOCKS * THREADS);
    }
}
