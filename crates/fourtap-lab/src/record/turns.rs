//! Two programs timed in turns.

use serde::{Deserialize, Serialize};

use super::Origin;
use crate::comparison::Verdict;
use crate::target::Device;

/// What `bench --against` found of one benchmark: B, this program, beside A, the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnsRecord {
    /// This program.
    #[serde(flatten)]
    pub origin: Origin,
    /// The other.
    pub other: Origin,
    /// As in "detr-encoder/local/f16/forward".
    pub name: String,
    /// Where both were timed.
    pub device: Device,
    /// Whether B takes longer than A.
    pub verdict: Verdict,
    /// Time of B over that of A.
    pub ratio: f64,
    /// Lower end of its interval.
    pub ratio_low: f64,
    /// Upper end.
    pub ratio_high: f64,
    /// How sure the interval is.
    pub confidence: f64,
    /// Each with new processes.
    pub rounds: Vec<Round>,
}

/// A round: some turns of each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Of all timings of A, the lowest decile.
    pub before_ms: f64,
    /// Of those of B.
    pub after_ms: f64,
    /// Timings of A.
    pub samples_before: usize,
    /// Timings of B.
    pub samples_after: usize,
}

impl TurnsRecord {
    /// Whether there are rounds, each with times.
    pub fn is_sound(&self) -> bool {
        let is_time = |time: f64| time.is_finite() && time > 0.0;
        let sound = |round: &Round| is_time(round.before_ms) && is_time(round.after_ms);
        !self.rounds.is_empty() && self.rounds.iter().all(sound)
    }
}
