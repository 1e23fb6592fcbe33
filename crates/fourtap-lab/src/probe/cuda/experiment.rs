//! A kernel, its arguments and what a launch of it amounts to: how every ceiling of a CUDA device is measured.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, TensorMap, TensorMapDesc};

use super::super::wrong;
use super::pattern;
use crate::cuda::{Argument, DeviceTiming, Grid, LoadedKernel, Source, Stopwatch};
use crate::error::Result;
use crate::record::{Outcome, ProbeRecord, Unit};

/// Words at each end of what a timed launch leaves that are compared again.
const COMPARED_AGAIN: usize = 32;

/// A buffer of this size leaves no part of it to the L2 cache.
const LARGE_BYTES: u64 = 1 << 30;

/// A kernel to time.
pub struct Experiment {
    /// What it does, in a sentence.
    pub what: String,
    /// The kernel.
    pub kernel: Source,
    /// Which devices can run it.
    pub needs: Needs,
    /// Threads, shared memory and cluster of a block.
    pub block: Grid,
    /// What its amount counts.
    pub unit: Unit,
    /// What it is launched on.
    pub work: Box<dyn Fn(Room) -> Work + Send + Sync>,
}

/// What a kernel requires of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// What every supported device has.
    Nothing,
    /// Clusters, tensor maps or additions of 16 bytes.
    Hopper,
    /// Instructions that only compute capability 9.0 has.
    Wgmma,
}

/// What a device has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Blocks that run at once.
    pub blocks: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Bytes of a buffer that no cache holds, and the device's memory several times.
    pub large_bytes: u64,
}

/// A launch, and what it must leave in its output.
pub struct Work {
    /// Blocks of the launch.
    pub blocks: u32,
    /// What the kernel is given, in order.
    pub inputs: Vec<Input>,
    /// Words of the output.
    pub words: usize,
    /// Rounds of the launch whose every word is compared: few if the host takes long to do them too.
    pub checked_rounds: u32,
    /// Rounds of the launch that is timed.
    pub timed_rounds: u32,
    /// Word number so, after so many rounds.
    pub expected: Box<dyn Fn(usize, u32) -> u32>,
    /// Bytes, operations or launches of the launch that is timed.
    pub amount: u64,
}

/// What a kernel is given.
pub enum Input {
    /// The address of so many bytes of [`pattern`].
    Pattern(u64),
    /// The address of these words.
    Words(Vec<u32>),
    /// A tensor map of so many bytes of [`pattern`]; the address is filled in.
    Boxes(u64, TensorMapDesc),
    /// A number of 32 bits.
    Word(u32),
    /// A number of 64 bits.
    Count(u64),
    /// How many rounds to do.
    Rounds,
    /// The address of the output, every word of which the kernel writes.
    Output,
    /// The same of an output that the kernel adds to.
    Sums,
    /// The same, but only when it is compared: timed launches are given 0.
    Counter,
}

/// An input on the device.
enum DeviceInput {
    Buffer(Buffer),
    Map(
        TensorMap,
        #[expect(dead_code, reason = "the map leads to it")] Buffer,
    ),
    Argument(Argument<'static>),
    Rounds,
    Output {
        when_timed: bool,
    },
}

impl Needs {
    /// Why a device cannot run it; none if it can.
    fn missing(self, (major, minor): (u32, u32)) -> Option<String> {
        let (has, what) = match self {
            Needs::Nothing => return None,
            Needs::Hopper => (major >= 9, "compute capability 9.0 or later"),
            Needs::Wgmma => ((major, minor) == (9, 0), "compute capability 9.0"),
        };
        (!has).then(|| format!("it needs {what}; this device has {major}.{minor}"))
    }
}

impl Experiment {
    /// One for every device.
    pub fn new(
        what: impl Into<String>,
        kernel: Source,
        block: Grid,
        unit: Unit,
        work: impl Fn(Room) -> Work + Send + Sync + 'static,
    ) -> Self {
        Experiment {
            what: what.into(),
            kernel,
            needs: Needs::Nothing,
            block,
            unit,
            work: Box::new(work),
        }
    }

    /// The same for devices that have this.
    pub fn on(self, needs: Needs) -> Self {
        Experiment { needs, ..self }
    }

    /// The record, with how fast the kernel is after it was seen to be right.
    pub fn measure(
        &self,
        record: ProbeRecord,
        stopwatch: &Stopwatch,
        budget: Duration,
    ) -> Result<ProbeRecord> {
        let unavailable = |mut record: ProbeRecord, reason: &str| {
            record.outcome = Outcome::Unavailable;
            Ok(record.verified(reason))
        };
        let cuda = stopwatch.cuda();
        let facts = cuda.device().facts();
        if let Some(reason) = self.needs.missing(facts.compute_capability) {
            return unavailable(record, &reason);
        }
        let kernel = self.kernel.load(cuda)?;
        let blocks = self.blocks_at_once(&kernel, cuda)?;
        if blocks == 0 {
            return unavailable(record, "no cluster of so many blocks fits this device");
        }
        let free = cuda.context().memory_info()?.free as u64;
        let work = (self.work)(Room {
            blocks,
            l2_bytes: facts.l2_bytes.into(),
            large_bytes: LARGE_BYTES.min(free / 4),
        });
        let launch = Launch::new(&work, kernel, self.block, stopwatch)?;
        let DeviceTiming { timing, conditions } = launch.timed(stopwatch, budget)?;

        let mut record = record
            .measured(self.unit, work.amount, timing)
            .verified("every word of the output")
            .with("blocks", work.blocks)
            .with("threads_a_block", self.block.threads);
        if let Some(bytes) = work.inputs.iter().find_map(Input::pattern_bytes) {
            record = record.with("buffer_bytes", bytes);
        }
        if let Some(clock) = conditions.after.clock_mhz {
            record = record.with("clock_mhz", clock);
        }
        let reasons = conditions.throttled_by();
        if !reasons.is_empty() {
            record = record.with("throttled_by", reasons.join(", "));
        }
        Ok(record)
    }

    /// Blocks that the device runs at once, of whole clusters.
    fn blocks_at_once(&self, kernel: &LoadedKernel, cuda: &Cuda) -> Result<u32> {
        Ok(match self.block.cluster {
            None => kernel.filling(cuda, self.block)?.blocks,
            Some(size) => {
                let one = Grid {
                    blocks: size,
                    ..self.block
                };
                size * kernel.clusters(cuda, one)?
            }
        })
    }
}

impl Input {
    fn pattern_bytes(&self) -> Option<u64> {
        match self {
            Input::Pattern(bytes) | Input::Boxes(bytes, _) => Some(*bytes),
            _ => None,
        }
    }

    fn on_device(&self, stopwatch: &Stopwatch) -> Result<DeviceInput> {
        let context = stopwatch.cuda().context();
        Ok(match self {
            Input::Pattern(bytes) => DeviceInput::Buffer(pattern::buffer(stopwatch, *bytes)?),
            Input::Words(words) => DeviceInput::Buffer(Buffer::from_slice(context, words)?),
            Input::Boxes(bytes, description) => {
                let buffer = pattern::buffer(stopwatch, *bytes)?;
                let mut description = description.clone();
                description.address = buffer.as_ptr();
                DeviceInput::Map(TensorMap::encode(context, &description)?, buffer)
            }
            Input::Word(word) => DeviceInput::Argument(Argument::Word(*word)),
            Input::Count(count) => DeviceInput::Argument(Argument::Count(*count)),
            Input::Rounds => DeviceInput::Rounds,
            Input::Output | Input::Sums => DeviceInput::Output { when_timed: true },
            Input::Counter => DeviceInput::Output { when_timed: false },
        })
    }
}

/// A launch whose memory is on the device.
struct Launch<'a> {
    work: &'a Work,
    kernel: LoadedKernel,
    grid: Grid,
    inputs: Vec<DeviceInput>,
    output: Buffer,
    /// Whether launches add to the output, so that only after the first it is known.
    adds: bool,
}

impl<'a> Launch<'a> {
    fn new(
        work: &'a Work,
        kernel: LoadedKernel,
        block: Grid,
        stopwatch: &Stopwatch,
    ) -> Result<Self> {
        let on_device = |input: &Input| input.on_device(stopwatch);
        let adds = |input: &Input| matches!(input, Input::Sums | Input::Counter);
        let context = stopwatch.cuda().context();
        Ok(Launch {
            work,
            kernel,
            grid: Grid {
                blocks: work.blocks,
                ..block
            },
            inputs: work.inputs.iter().map(on_device).collect::<Result<_>>()?,
            output: Buffer::zeroed(context, work.words * size_of::<u32>())?,
            adds: work.inputs.iter().any(adds),
        })
    }

    /// Compares every word after few rounds; times many, and compares the first and the last words of those.
    fn timed(mut self, stopwatch: &Stopwatch, budget: Duration) -> Result<DeviceTiming> {
        let Work {
            words,
            checked_rounds,
            timed_rounds,
            ..
        } = *self.work;
        stopwatch.once(|cuda| self.queue(cuda, checked_rounds, false))?;
        self.compare(0..words, checked_rounds)?;
        if !self.adds {
            // So that it is seen if what is timed does not compute.
            stopwatch.once(|cuda| Ok(self.output.fill(u8::MAX, cuda.stream())?))?;
        }
        let timing = stopwatch.hot(budget, |cuda| self.queue(cuda, timed_rounds, true))?;
        if !self.adds {
            let some = COMPARED_AGAIN.min(words);
            self.compare((0..some).chain(words - some..words), timed_rounds)?;
        }
        Ok(timing)
    }

    fn queue(&self, cuda: &Cuda, rounds: u32, is_timed: bool) -> Result<()> {
        let argument = |input| match input {
            &DeviceInput::Argument(argument) => argument,
            DeviceInput::Buffer(buffer) => Argument::Address(buffer.as_ptr()),
            DeviceInput::Map(map, _) => Argument::Map(map),
            DeviceInput::Rounds => Argument::Word(rounds),
            DeviceInput::Output { when_timed } => match is_timed && !when_timed {
                true => Argument::Address(0),
                false => Argument::Address(self.output.as_ptr()),
            },
        };
        let arguments: Vec<_> = self.inputs.iter().map(argument).collect();
        // SAFETY: the inputs of each work are of its kernel's parameters' types, in order. The kernel reads no more than
        // the buffers hold and writes no more than the words of the output; all live until the work has been waited for.
        unsafe { self.kernel.queue(cuda, self.grid, &arguments) }
    }

    fn compare(&self, words: impl Iterator<Item = usize>, rounds: u32) -> Result<()> {
        let output = self.output.to_vec::<u32>()?;
        for word in words {
            let (expected, found) = ((self.work.expected)(word, rounds), output[word]);
            // The zeros of floats are the same.
            if expected != found && (expected | found) != 1 << 31 {
                let place = format!("{expected:#x} as word {word} after {rounds} rounds");
                return Err(wrong(place, format!("{found:#x}")));
            }
        }
        Ok(())
    }
}

/// An empty kernel, which counts itself if it is given where.
pub fn launch() -> Experiment {
    let text = include_str!("../../../kernels/probe/launch.cu");
    let what = "launch an empty kernel, many at a time as a graph";
    let kernel = Source::new("probe_launch", text, &[]);
    Experiment::new(what, kernel, Grid::default(), Unit::Microseconds, |_| {
        Work {
            blocks: 1,
            inputs: vec![Input::Counter],
            words: 1,
            checked_rounds: 1,
            timed_rounds: 1,
            expected: Box::new(|_, launches| launches),
            amount: 1,
        }
    })
}
