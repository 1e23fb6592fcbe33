//! What a rung of the ladder did.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bench::TrafficCounts;
use super::{Binding, Conditions, Origin, Outcome, Timing};
use crate::operators::Operator;
use crate::operators::dense::Dense;
use crate::operators::msda::{Msda, ProblemSizes};
use crate::target::Device;
use crate::verification::Verification;

/// One rung on one workload. Only what passed every check has a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// What computed it.
    pub device: Device,
    /// As typed: "a08"; "shipped" and "shipped-dense" are the library's own forwards.
    pub rung: String,
    /// In a few words.
    pub title: String,
    /// What it should gain and why, written before it was measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// The rung it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builds_on: Option<String>,
    /// The library that computed it, with versions; none for this project's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// What was computed.
    pub workload: String,
    /// Where the points lie, "uniform" or "local"; of dense attention which keys are seen, "full" or "causal".
    pub distribution: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Its sizes.
    pub problem: RungProblem,
    /// Bytes and operations, by the model.
    pub traffic: TrafficCounts,
    /// What was chosen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, u32>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why there is no time; empty if there is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub words: String,
    /// What the sanitizer's tools said, by tool: "clean", or what they found.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sanitizer: BTreeMap<String, String>,
    /// Of small problems, every element of which was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub small: Option<SmallProblems>,
    /// The error of sampled rows of this result against the oracle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// The relative error an approximate rung states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approximate: Option<f64>,
    /// All its steps, on the same inputs repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<Timing>,
    /// Without the steps that depend on value alone, for whoever keeps what they made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<Timing>,
    /// In turns with the rung it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<PairedComparison>,
    /// Clocks and the like around the timing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Its launches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<RungLaunch>,
    /// Memory it works in.
    #[serde(default)]
    pub scratch_bytes: u64,
    /// Share of what the samples gather over the time, of the ceiling of 64-byte gathers from L1 in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_gather: Option<f64>,
    /// Share of what must move over the time, of the ceiling of DRAM in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_dram: Option<f64>,
    /// Operations over the time, as a share of what tensor cores did in the same run by the same instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_tensor: Option<f64>,
    /// What its longest kernel is bound by, by counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// What others published for the idea, and why ours differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<RungClaim>,
}

/// The sizes of a problem of either operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RungProblem {
    /// Of deformable attention.
    Msda(ProblemSizes),
    /// Of dense attention.
    Dense(RungSizes),
}

/// The operators the ladder has rungs for; it is closed, unlike the list of those the library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RungOperator {
    /// Deformable attention.
    Msda,
    /// Dense attention.
    Dense,
}

impl RungOperator {
    /// Both, in the order they are shown.
    pub const ALL: [RungOperator; 2] = [RungOperator::Msda, RungOperator::Dense];

    /// The library's.
    pub fn operator(self) -> &'static dyn Operator {
        match self {
            RungOperator::Msda => &Msda,
            RungOperator::Dense => &Dense,
        }
    }

    /// The name of the library's own forward among the rungs.
    pub fn shipped(self) -> &'static str {
        match self {
            RungOperator::Msda => "shipped",
            RungOperator::Dense => "shipped-dense",
        }
    }

    /// The baseline rung, which speeds are shown against.
    pub fn plainest(self) -> &'static str {
        match self {
            RungOperator::Msda => "a01",
            RungOperator::Dense => "d01",
        }
    }

    /// In a sentence.
    pub fn in_words(self) -> &'static str {
        self.operator().in_words()
    }
}

/// The sizes of a problem of dense attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RungSizes {
    /// B.
    pub batch: usize,
    /// H.
    pub heads: usize,
    /// Sq.
    pub queries: usize,
    /// Sk.
    pub keys: usize,
    /// D.
    pub channels: usize,
    /// Of all tensors.
    pub dtype: String,
    /// Whether query `i` sees keys 0 to `i` only.
    pub causal: bool,
}

/// Small problems a rung was verified on, every element.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SmallProblems {
    /// Computed and right.
    pub right: usize,
    /// Elements compared.
    pub elements: usize,
    /// Refused by the rung, in words.
    pub refused: Vec<String>,
}

/// A rung timed alternately with another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// The other.
    pub rung: String,
    /// Time over the other's: the middle of all turns.
    pub ratio: f64,
    /// The least of them.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// How many.
    pub turns: usize,
}

/// One kernel of a rung, as launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungLaunch {
    /// Its name.
    pub entry: String,
    /// Of the launch.
    pub blocks: u32,
    /// Of a block.
    pub threads: u32,
    /// Blocks of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<u32>,
    /// Of a thread.
    pub registers: u32,
    /// Of a thread: what was spilled.
    pub local_bytes: u32,
    /// Of a block, static and dynamic.
    pub shared_bytes: u32,
    /// Whether it depends on value alone.
    pub prepares: bool,
}

/// What others published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RungClaim {
    /// As published.
    pub words: String,
    /// Why ours differs.
    pub why: String,
}

impl RungRecord {
    /// What it computed.
    pub fn operator(&self) -> RungOperator {
        match self.problem {
            RungProblem::Msda(_) => RungOperator::Msda,
            RungProblem::Dense(_) => RungOperator::Dense,
        }
    }

    /// Hot, if it was right.
    pub fn median_ms(&self) -> Option<f64> {
        self.hot.as_ref().map(|hot| hot.median_ms)
    }

    /// Whether it keeps the rule that only what is right has a time.
    pub fn is_honest(&self) -> bool {
        let timed = self.hot.is_some() || self.prepared.is_some();
        let right = self.verification.as_ref().is_some_and(|one| one.passed);
        !timed || (right && self.outcome == Outcome::Measured)
    }

    /// Every time in it.
    pub fn timings(&self) -> impl Iterator<Item = &Timing> {
        self.hot.iter().chain(&self.prepared)
    }

    /// The most registers, and the most shared memory of a block, of its launches.
    pub fn resources(&self) -> Option<(u32, u32)> {
        let registers = self.launches.iter().map(|one| one.registers).max()?;
        let shared = self.launches.iter().map(|one| one.shared_bytes).max()?;
        Some((registers, shared))
    }
}
