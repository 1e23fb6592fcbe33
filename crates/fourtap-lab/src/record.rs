//! Results as they are kept: one JSON object a line. Tables are views of these.

use std::time::{SystemTime, UNIX_EPOCH};

use fourtap::msda::{Problem, Traffic};
use serde::{Deserialize, Serialize};

use crate::cli::Direction;
use crate::cuda::{Mode, Probe};
use crate::statistics::Summary;
use crate::target::Device;
use crate::verification::Verification;

/// Raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// Version of fourtap.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One benchmark's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Version of this form.
    pub schema: u32,
    /// Version of fourtap.
    pub version: String,
    /// When it was measured, in seconds since 1970.
    pub unix_time: u64,
    /// What was computed.
    pub workload: String,
    /// "uniform", "local", "window" or "file".
    pub distribution: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Its sizes.
    pub problem: ProblemSizes,
    /// Its element types.
    pub dtypes: DTypes,
    /// Which pass.
    pub direction: Direction,
    /// What computed it.
    pub device: Device,
    /// How near the oracle the result is.
    pub verification: Verification,
    /// Every timing; on CUDA with caches as the launch before left them.
    pub samples_ms: Vec<f64>,
    /// The middle one.
    pub median_ms: f64,
    /// Lower end of its 95 % confidence interval.
    pub ci_low_ms: f64,
    /// Upper end.
    pub ci_high_ms: f64,
    /// Bytes and operations, by the model.
    pub traffic: TrafficCounts,
    /// Share of the corners of samples that lie inside their level.
    pub in_bounds_fraction: f64,
    /// Bytes the samples ask for, over the median.
    pub gathered_gb_s: f64,
    /// Operations over the median.
    pub gflop_s: f64,
    /// What only a result on CUDA has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaResult>,
}

impl Record {
    /// The timings' summary.
    pub fn summary(&self) -> Summary {
        Summary {
            median: self.median_ms,
            low: self.ci_low_ms,
            high: self.ci_high_ms,
        }
    }
}

/// What only a result on CUDA has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CudaResult {
    /// The kernels and their launches.
    pub kernel: String,
    /// Hash of the kernel's source and of all it was compiled with; of backward's kernels one after another, of the
    /// sources only.
    pub kernel_fingerprint: String,
    /// The mode asked for; forward has but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether every run gives the same bits: in fast mode some problems only.
    pub reproducible: bool,
    /// Bytes of memory to work in, given; forward needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<usize>,
    /// Computations that make one of `samples_ms` together.
    pub launches_a_sample: u32,
    /// Every timing with the second-level cache overwritten before.
    pub cold_samples_ms: Vec<f64>,
    /// The middle one.
    pub cold_median_ms: f64,
    /// Lower end of its 95 % confidence interval.
    pub cold_ci_low_ms: f64,
    /// Upper end.
    pub cold_ci_high_ms: f64,
    /// Bytes the samples ask for over the median, as a share of the gather ceiling; none for backward, which adds to
    /// as many bytes as it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_gather_ceiling: Option<f64>,
    /// The time it takes to copy the compulsory bytes, as a share of the median.
    pub share_of_dram_floor: f64,
    /// Backward in deterministic mode in the same run; none if what was timed is reproducible as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic: Option<Beside>,
    /// The kernels of one thread a channel in the same run and mode; none if that is what was timed.
    pub ruler: Option<Beside>,
}

/// Another way to the same result, in the same run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// The kernels and their launches.
    pub kernel: String,
    /// As in [`CudaResult`].
    pub kernel_fingerprint: String,
    /// Bytes of memory to work in, given; forward needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<usize>,
    /// How near the oracle its result is.
    pub verification: Verification,
    /// Every timing, with caches as the launch before left them.
    pub samples_ms: Vec<f64>,
    /// The middle one.
    pub median_ms: f64,
    /// Lower end of its 95 % confidence interval.
    pub ci_low_ms: f64,
    /// Upper end.
    pub ci_high_ms: f64,
}

/// What a device can do at most, measured in the same run as the results beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    /// Version of this form.
    pub schema: u32,
    /// Version of fourtap.
    pub version: String,
    /// "ceiling".
    pub kind: String,
    /// When it was measured, in seconds since 1970.
    pub unix_time: u64,
    /// "copy" (of device memory) or "gather" (random 64-byte segments).
    pub name: String,
    /// Of what.
    pub device: Device,
    /// Bytes of the memory it works on.
    pub buffer_bytes: u64,
    /// Bytes that move in one repetition.
    pub moved_bytes: u64,
    /// Every timing.
    pub samples_ms: Vec<f64>,
    /// The middle one.
    pub median_ms: f64,
    /// Lower end of its 95 % confidence interval.
    pub ci_low_ms: f64,
    /// Upper end.
    pub ci_high_ms: f64,
    /// Bytes moved over the median.
    pub gb_s: f64,
}

impl Ceiling {
    /// Of what was measured.
    pub fn new(probe: Probe, device: &Device) -> Self {
        let summary = Summary::of(&probe.samples_ms);
        Ceiling {
            schema: SCHEMA,
            version: VERSION.to_string(),
            kind: "ceiling".to_string(),
            unix_time: unix_time(),
            name: probe.name.to_string(),
            device: device.clone(),
            buffer_bytes: probe.buffer_bytes,
            moved_bytes: probe.moved_bytes,
            median_ms: summary.median,
            ci_low_ms: summary.low,
            ci_high_ms: summary.high,
            samples_ms: probe.samples_ms,
            gb_s: gb_s(probe.moved_bytes, summary.median),
        }
    }
}

/// Billions a second, of a count and milliseconds.
pub fn gb_s(count: u64, milliseconds: f64) -> f64 {
    count as f64 / milliseconds / 1e6
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The sizes of a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemSizes {
    /// N.
    pub images: usize,
    /// Q.
    pub queries: usize,
    /// M.
    pub heads: usize,
    /// D.
    pub channels: usize,
    /// P.
    pub points: usize,
    /// S.
    pub pixels: usize,
    /// (height, width) of each level.
    pub levels: Vec<[usize; 2]>,
}

impl From<&Problem> for ProblemSizes {
    fn from(problem: &Problem) -> Self {
        let sizes = problem.sizes();
        ProblemSizes {
            images: sizes.images,
            queries: sizes.queries,
            heads: sizes.heads,
            channels: sizes.channels,
            points: sizes.points,
            pixels: sizes.pixels,
            levels: problem
                .levels()
                .iter()
                .map(|level| [level.height, level.width])
                .collect(),
        }
    }
}

/// The element types of a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DTypes {
    /// Of value, out and their gradients.
    pub value: String,
    /// Of sampling_locations.
    pub locations: String,
    /// Of attention_weights.
    pub weights: String,
}

impl From<&Problem> for DTypes {
    fn from(problem: &Problem) -> Self {
        DTypes {
            value: problem.value().dtype().to_string(),
            locations: problem.sampling_locations().dtype().to_string(),
            weights: problem.attention_weights().dtype().to_string(),
        }
    }
}

/// Bytes and operations of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficCounts {
    /// Bytes that must move at least once.
    pub compulsory_bytes: u64,
    /// Bytes of value the samples ask for.
    pub gathered_bytes: u64,
    /// Operations.
    pub flop: u64,
}

impl From<Traffic> for TrafficCounts {
    fn from(traffic: Traffic) -> Self {
        let Traffic {
            compulsory_bytes,
            gathered_bytes,
            flop,
        } = traffic;
        TrafficCounts {
            compulsory_bytes,
            gathered_bytes,
            flop,
        }
    }
}
