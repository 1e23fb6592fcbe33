//! What a launch costs.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;

use super::device::{ProbeDevice, Subject};
use crate::cuda::{Argument, Grid, LoadedKernel, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

/// Launches per sample: long beside what reading the clock costs.
const LAUNCHES: u32 = 1000;

/// Launches that are counted.
const COUNTED: u32 = 100;

const ADDRESS_OF_NOTHING: u64 = 0;

/// Its kernel.
pub fn source() -> Source {
    let text = include_str!("../../../kernels/probe/launch.cu");
    Source::new("probe_launch", text, &[])
}

/// Launching one after another.
pub fn stream_subject() -> Subject {
    Subject::ceiling(
        "launch-latency",
        "launch an empty kernel, one after another",
    )
}

/// Launching many as a graph.
pub fn graph_subject() -> Subject {
    Subject::ceiling(
        "launch-latency-graph",
        "launch an empty kernel, many at a time as a graph",
    )
}

/// One after another on a stream.
pub fn measure_stream(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let kernel = source().load(gpu.cuda())?;
    let stopwatch = gpu.stopwatch;
    check(gpu, subject, |counter| {
        stopwatch.once(|cuda| (0..COUNTED).try_for_each(|_| queue(cuda, &kernel, counter)))
    })?;
    let timed = stopwatch.queued(gpu.budget, LAUNCHES, |cuda| {
        queue(cuda, &kernel, ADDRESS_OF_NOTHING)
    })?;
    let compared = "a kernel launched so was counted";
    Ok(subject.measured(gpu, Unit::Microseconds, 1, timed, compared))
}

/// Many as a graph.
pub fn measure_graph(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let kernel = source().load(gpu.cuda())?;
    let stopwatch = gpu.stopwatch;
    check(gpu, subject, |counter| {
        stopwatch.replayed(COUNTED, |cuda| queue(cuda, &kernel, counter))
    })?;
    let timed = stopwatch.hot(gpu.budget, |cuda| queue(cuda, &kernel, ADDRESS_OF_NOTHING))?;
    let launches = timed.timing.launches_a_sample;
    let compared = "a kernel launched so was counted";
    let record = subject.measured(gpu, Unit::Microseconds, 1, timed, compared);
    Ok(record.with("launches_a_graph", launches))
}

/// That a kernel given a counter counts as many launches as there were.
fn check(
    gpu: &ProbeDevice<'_>,
    subject: &Subject,
    launch_all: impl FnOnce(u64) -> Result<()>,
) -> Result<()> {
    let counter = Buffer::zeroed(gpu.cuda().context(), size_of::<u32>())?;
    launch_all(counter.as_ptr())?;
    let counted = counter.to_vec::<u32>()?;
    match counted[..] == [COUNTED] {
        true => Ok(()),
        false => Err(subject.wrong(
            format!("{COUNTED} launches"),
            format!("{counted:?} counted"),
        )),
    }
}

fn queue(cuda: &Cuda, kernel: &LoadedKernel, counter: u64) -> Result<()> {
    // SAFETY: the kernel takes an address, of a counter that lives until the work has been waited for, or 0.
    unsafe { kernel.queue(cuda, Grid::default(), &[Argument::Address(counter)]) }
}
