//! Time on a CUDA device: by its own clock, not the host's.

use std::time::{Duration, Instant};

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{CaptureMode, Event, GraphExec, OwnedStream, Stream};

use super::nvml::Sensors;
use crate::error::Result;
use crate::measure::repeat;
use crate::record::{Conditions, Reading, Timing};

/// Milliseconds that one replay of a graph shall take: long beside the microsecond its launch is uncertain by.
const REPLAY_MS: f64 = 3.0;

/// Launches in a graph, at most.
const MOST_LAUNCHES: f64 = 200.0;

/// Launches before the first that counts.
const WARM_UP_LAUNCHES: u32 = 3;

/// How long to replay before the first that counts: an idle device's clocks are low.
const WARM_UP: Duration = Duration::from_millis(100);

/// A timing, and the state of the device meanwhile.
#[derive(Clone, Debug)]
pub struct DeviceTiming {
    /// Milliseconds per launch.
    pub timing: Timing,
    /// Clocks and the like.
    pub conditions: Conditions,
}

/// A device, a stream of its own, and what is needed to time work on it.
///
/// Work is a closure that queues one launch on the stream of the [`Cuda`] it is given.
#[derive(Debug)]
pub struct Stopwatch {
    cuda: Cuda,
    start: Event,
    end: Event,
    sensors: Sensors,
    /// After `cuda`, which works on it.
    stream: OwnedStream,
}

impl Stopwatch {
    /// For the device of `cuda`, with its kernel.
    pub fn new(cuda: Cuda) -> Result<Self> {
        let context = cuda.context();
        // Non-blocking: the default stream refuses to be captured, and others would wait for it.
        let stream = OwnedStream::new(context, true)?;
        Ok(Stopwatch {
            // SAFETY: made on the same device just now. It lives as long as this, which keeps the result to itself but
            // for the length of a call.
            cuda: unsafe { cuda.on_stream(stream.stream().as_raw()) },
            start: Event::timing(context)?,
            end: Event::timing(context)?,
            sensors: Sensors::of(&cuda.device().facts().pci_bus_id),
            stream,
        })
    }

    /// The device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// What the device's sensors say now.
    pub fn reading(&self) -> Reading {
        self.sensors.read()
    }

    /// Does the work once and waits for it.
    pub fn once(&self, work: impl FnOnce(&Cuda) -> Result<()>) -> Result<()> {
        work(&self.cuda)?;
        Ok(self.stream.synchronize()?)
    }

    /// Times the same work repeatedly, with warm caches.
    pub fn hot(
        &self,
        budget: Duration,
        mut work: impl FnMut(&Cuda) -> Result<()>,
    ) -> Result<DeviceTiming> {
        self.in_turn(budget, 1, |cuda, _| work(cuda))
    }

    /// Times work on so many `sets` of inputs, one after another, repeatedly.
    ///
    /// Launches are replayed as a graph, because a kernel of a few microseconds ends before the host has launched the
    /// next.
    pub fn in_turn(
        &self,
        budget: Duration,
        sets: u32,
        mut work: impl FnMut(&Cuda, u32) -> Result<()>,
    ) -> Result<DeviceTiming> {
        let _entered = self.cuda.context().enter()?;
        let (graph, launches) = self.filled(sets, &mut work)?;
        // SAFETY: all memory the recorded work touches is kept by `work`, which outlives the graph, and everything
        // that touches it is on this stream.
        let replay = || self.elapsed(|stream| Ok(unsafe { graph.launch(stream) }?));
        self.sampled(budget, launches, sets, replay)
    }

    /// How much longer `two` takes than `one`, once for each of so many pairs of replays. What clocks and neighbours do to
    /// one of a pair they do to the other.
    pub fn ratios(
        &self,
        pairs: usize,
        mut one: impl FnMut(&Cuda) -> Result<()>,
        mut two: impl FnMut(&Cuda) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let work = |cuda: &Cuda, index: usize| match index {
            0 => one(cuda),
            _ => two(cuda),
        };
        let mut samples = Vec::new();
        self.in_turns(2, work, |sample| {
            samples.extend(sample);
            (samples.len() < 2 * pairs).then_some(samples.len() % 2)
        })?;
        let ratio = |pair: &[f64]| pair[1] / pair[0];
        Ok(samples.chunks_exact(2).map(ratio).collect())
    }

    /// Times so many kinds of work alternately: `next` is told the milliseconds of the one it named last, at first none, and
    /// names the next, or none to end.
    pub fn in_turns(
        &self,
        kinds: usize,
        mut work: impl FnMut(&Cuda, usize) -> Result<()>,
        mut next: impl FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()> {
        let _entered = self.cuda.context().enter()?;
        let mut graphs = Vec::new();
        for kind in 0..kinds {
            graphs.push(self.filled(1, &mut |cuda, _| work(cuda, kind))?);
        }
        let replayed = |kind: usize| -> Result<f64> {
            let (graph, launches) = &graphs[kind];
            // SAFETY: as above; `work` outlives the graphs.
            let elapsed = self.elapsed(|stream| Ok(unsafe { graph.launch(stream) }?))?;
            Ok(elapsed / f64::from(*launches))
        };
        let started = Instant::now();
        while started.elapsed() < WARM_UP {
            (0..kinds).try_for_each(|kind| replayed(kind).map(drop))?;
        }
        let mut last = None;
        while let Some(kind) = next(last) {
            last = Some(replayed(kind)?);
        }
        Ok(())
    }

    /// As many launches as fill a replay, as a graph.
    fn filled(
        &self,
        sets: u32,
        work: &mut dyn FnMut(&Cuda, u32) -> Result<()>,
    ) -> Result<(GraphExec, u32)> {
        let mut several =
            |count: u32| (0..count).try_for_each(|turn| work(&self.cuda, turn % sets));
        several(WARM_UP_LAUNCHES.max(sets))?;
        let together = self.elapsed(|_| several(WARM_UP_LAUNCHES))?;
        let one = (together / f64::from(WARM_UP_LAUNCHES)).max(1e-4);
        let launches = (REPLAY_MS / one).clamp(1.0, MOST_LAUNCHES) as u32;
        // Each set as often as any other.
        let launches = launches.next_multiple_of(sets);
        Ok((self.recorded(|| several(launches))?, launches))
    }

    /// What `work` queues, as a graph.
    fn recorded(&self, work: impl FnOnce() -> Result<()>) -> Result<GraphExec> {
        let stream = self.stream.stream();
        stream.begin_capture(CaptureMode::ThreadLocal)?;
        let recorded = work();
        // Ended in any case: a stream left in capture takes no more work.
        let graph = stream.end_capture();
        recorded?;
        Ok(graph?.instantiate()?)
    }

    /// Warms up, then repeats `sample`, which says how many milliseconds so many launches took.
    fn sampled(
        &self,
        budget: Duration,
        launches: u32,
        sets: u32,
        mut sample: impl FnMut() -> Result<f64>,
    ) -> Result<DeviceTiming> {
        let started = Instant::now();
        while started.elapsed() < WARM_UP {
            sample()?;
        }
        let before = self.sensors.read();
        let samples_ms = repeat(budget, || Ok(sample()? / f64::from(launches)))?;
        let after = self.sensors.read();
        Ok(DeviceTiming {
            timing: Timing {
                launches_a_sample: launches,
                input_sets: sets,
                ..Timing::of(samples_ms)
            },
            conditions: Conditions { before, after },
        })
    }

    fn elapsed(&self, work: impl FnOnce(Stream<'_>) -> Result<()>) -> Result<f64> {
        between(&self.start, &self.end, self.stream.stream(), work)
    }
}

/// Milliseconds on the device from the first to the last of some work.
fn between(
    start: &Event,
    end: &Event,
    stream: Stream<'_>,
    work: impl FnOnce(Stream<'_>) -> Result<()>,
) -> Result<f64> {
    start.record(stream)?;
    work(stream)?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(end.elapsed_ms(start)?))
}
