//! How fast and how accurate an implementation of somebody else, or fourtap beside it, was on one problem.

use serde::{Deserialize, Serialize};

use crate::cli::Direction;

/// One implementation on one problem, as a script that times several of them in turns writes it: a line with
/// `"record": "peers"`. Fields that are not known here are passed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeersRecord {
    /// The device or processor.
    pub machine: String,
    /// The day, as in 2026-11-17.
    pub date: String,
    /// The problem.
    pub workload: String,
    /// Where its sampling points lie; empty for operators without any.
    #[serde(default)]
    pub distribution: String,
    /// The element type.
    pub dtype: String,
    /// Whose.
    pub implementation: String,
    /// Which pass.
    pub direction: Direction,
    /// The time of a call; none where it cannot do the problem.
    #[serde(default)]
    pub milliseconds: Option<f64>,
    /// The same of each turn.
    #[serde(default)]
    pub turns_ms: Vec<f64>,
    /// The time of a call inside a CUDA graph.
    #[serde(default)]
    pub graph_microseconds: Option<f64>,
    /// Its distance to the f64 reference.
    #[serde(default)]
    pub error: Option<f64>,
    /// The distance allowed.
    #[serde(default)]
    pub tolerance: Option<f64>,
    /// What came of it.
    pub verdict: PeerVerdict,
    /// What else to know.
    #[serde(default)]
    pub note: String,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerVerdict {
    /// Within the tolerance.
    Ok,
    /// The right quantity, but beyond the tolerance.
    Inaccurate,
    /// Another quantity.
    Wrong,
    /// It does not take such a problem.
    Unsupported,
}

impl PeersRecord {
    /// Whether it is one of this project's own.
    pub fn is_ours(&self) -> bool {
        self.implementation.starts_with("fourtap")
    }

    /// What is wrong with it, in words.
    pub fn flaw(&self) -> Option<&'static str> {
        let is_time = |time: f64| time.is_finite() && time > 0.0;
        let graph = self.graph_microseconds.into_iter();
        let mut times = self.milliseconds.into_iter().chain(graph);
        if !times.all(is_time) || !self.turns_ms.iter().all(|&time| is_time(time)) {
            return Some("a time that is none");
        }
        match self.verdict {
            PeerVerdict::Unsupported => None,
            _ if self.milliseconds.is_none() => Some("a result without a time"),
            _ => None,
        }
    }
}
