//! Results as they are kept: one JSON object a line. Tables are views of these.

use fourtap::msda::{Problem, Traffic};
use serde::{Deserialize, Serialize};

use crate::cli::Direction;
use crate::statistics::Summary;
use crate::target::Device;
use crate::verification::Verification;

/// Raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

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
    /// "uniform", "local" or "file".
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
    /// Every timing.
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
