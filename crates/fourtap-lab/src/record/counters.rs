//! What hardware counters said of one benchmark.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{DTypes, Origin, ProblemRecord};
use crate::cli::Direction;
use crate::target::Device;

/// Counters of one kernel of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountersRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// What was computed; as in the record of the benchmark.
    pub workload: String,
    /// Where the points lie, as "local"; or "file".
    pub distribution: String,
    /// Its sizes.
    pub problem: ProblemRecord,
    /// Its element types.
    pub dtypes: DTypes,
    /// Which pass.
    pub direction: Direction,
    /// On what.
    pub device: Device,
    /// The kernel, as the profiler names it.
    pub kernel: String,
    /// Of how many launches of it the counters are the sum or, for shares, the mean weighted by time.
    pub launches: u32,
    /// Where the numbers come from: "ncu 2025.3.1" or the file they were imported from.
    pub source: String,
    /// By the profiler's own names, in base units: bytes, seconds, counts; shares in percent.
    pub metrics: BTreeMap<String, f64>,
    /// The bottleneck.
    pub binding: Binding,
}

/// What keeps a kernel from being faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// "l1", "l2", "dram", "fma", "tensor", "issue", "latency".
    pub limit: String,
    /// How busy that is, from 0 to 1.
    pub busy: f64,
    /// In a sentence, with the numbers.
    pub words: String,
}
