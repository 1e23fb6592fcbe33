//! What a device can do at most, measured: how fast it copies memory and how fast it gathers.

use std::ffi::c_void;
use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Context, Kernel, Launch, Library, launch};
use fourtap::cuda::jit::{self, Architecture, Program};

use super::stopwatch::Stopwatch;
use crate::error::{Error, Result};

/// A ceiling's timings.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What it is called.
    pub name: &'static str,
    /// Bytes of the memory it works on.
    pub buffer_bytes: u64,
    /// Bytes it moves in one repetition.
    pub moved_bytes: u64,
    /// Milliseconds of each.
    pub samples_ms: Vec<f64>,
}

/// A copy of this size leaves no part of it to the second-level cache.
const COPIED_BYTES: usize = 1 << 30;

/// Copies device memory; bytes read and bytes written both count.
pub fn copy(stopwatch: &Stopwatch, budget: Duration) -> Result<Probe> {
    let context = stopwatch.cuda().context();
    let bytes = COPIED_BYTES.min(context.memory_info()?.free / 4);
    let mut source = Buffer::alloc(context, bytes)?;
    let mut target = Buffer::alloc(context, bytes)?;
    stopwatch.once(|cuda| Ok(source.fill(0x5a, cuda.stream())?))?;
    let hot = stopwatch.hot(budget, |cuda| Ok(target.copy_from(&source, cuda.stream())?))?;
    Ok(Probe {
        name: "copy",
        buffer_bytes: bytes as u64,
        moved_bytes: 2 * bytes as u64,
        samples_ms: hot.samples_ms,
    })
}

const SOURCE: &str = include_str!("../../kernels/probe/gather.cu");
const ENTRY: &str = "probe_gather";

/// Bytes of the buffer gathered from: one image and head of the workload seed-full in half precision.
const GATHERED_BYTES: u32 = 19560 * 32 * 2;
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

/// Reads random 64-byte segments of a buffer, after a small case gave the sums it must.
pub fn gather(stopwatch: &Stopwatch, budget: Duration) -> Result<Probe> {
    let cuda = stopwatch.cuda();
    let (context, facts) = (cuda.context(), cuda.device().facts());
    let kernel = kernel(cuda)?;
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
    Ok(Probe {
        name: "gather",
        buffer_bytes: u64::from(GATHERED_BYTES),
        moved_bytes: loads * u64::from(LOAD_BYTES),
        samples_ms: hot.samples_ms,
    })
}

fn program(architecture: Architecture) -> Program {
    Program {
        name: "lab-probe-gather".to_string(),
        source: SOURCE.to_string(),
        options: Vec::new(),
        architecture,
    }
}

fn kernel(cuda: &Cuda) -> Result<Kernel> {
    let (major, minor) = cuda.device().compute_capability();
    let (code, _) = jit::machine_code(&program(jit::architecture_for(major, minor)?))?;
    let kernel = Library::load(&code)?.kernel(ENTRY)?;
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
    fn the_probe_compiles_and_keeps_its_loads_in_registers() {
        let required = std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_some();
        let nvrtc = match Nvrtc::get() {
            Ok(nvrtc) => nvrtc,
            Err(error) => return assert!(!required, "{error}"),
        };
        for name in ["sm_80", "sm_90a"] {
            let compiled = nvrtc.compile(&program(name.parse().unwrap())).unwrap();
            let kernels = Resources::of(&compiled.code).unwrap();
            assert_eq!(kernels[0].name, ENTRY);
            assert_eq!(kernels[0].stack_bytes, 0, "{name}");
            // Eight loads of four registers, or they are not in flight together.
            assert!(kernels[0].registers > 32, "{name}: {kernels:?}");
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
