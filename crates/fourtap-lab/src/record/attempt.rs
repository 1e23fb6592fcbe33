//! What `fourtap tune` tried, and what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Origin, Outcome, ProblemRecord, Timing};
use crate::target::Device;
use crate::tune::{BuildResult, CandidateOrigin};
use crate::verification::Verification;

/// What is tuned, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneSubject {
    /// What computes.
    pub device: Device,
    /// The kernel, by the name of its space.
    pub kernel: String,
    /// On which problem.
    pub workload: String,
    /// Where the points lie, as "local"; "normal" numbers, of dense attention.
    pub distribution: String,
    /// Element type.
    pub dtype: String,
    /// Its sizes.
    pub problem: ProblemRecord,
    /// The problems it stands for.
    pub class: String,
    /// Seed of the random numbers, of the problem and of the search.
    pub seed: u64,
}

impl TuneSubject {
    /// As in "cpu-msda-forward on detr-encoder/local/f32".
    pub fn name(&self) -> String {
        let TuneSubject {
            kernel,
            workload,
            distribution,
            dtype,
            ..
        } = self;
        format!("{kernel} on {workload}/{distribution}/{dtype}")
    }
}

/// One choice, tried. Only what is right has a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// What is tuned.
    #[serde(flatten)]
    pub subject: TuneSubject,
    /// Counted from 0, which is the defaults.
    pub number: u32,
    /// Counted from 0.
    pub generation: u32,
    /// How it was found.
    pub how: CandidateOrigin,
    /// Numbers of the attempts it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<u32>,
    /// What was chosen.
    pub parameters: BTreeMap<String, u32>,
    /// What compiling it came to; none where there is nothing to compile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<BuildResult>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why there is no time; empty if there is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub words: String,
    /// Its error against the oracle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// How long it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<Timing>,
    /// How fast it is, against the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// What to think of it, in a few words.
    pub verdict: String,
}

impl AttemptRecord {
    /// How long it takes, if it is right.
    pub fn median_ms(&self) -> Option<f64> {
        self.hot.as_ref().map(|hot| hot.median_ms)
    }

    /// Whether it has a time only where it may.
    pub fn is_honest(&self) -> bool {
        let right = self.verification.as_ref().is_some_and(|it| it.passed);
        self.hot.is_none() || (right && self.outcome == Outcome::Measured)
    }
}

/// A search, ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// What was tuned.
    #[serde(flatten)]
    pub subject: TuneSubject,
    /// Choices that fit.
    pub points: usize,
    /// Those that do not, by the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, usize>,
    /// Choices tried, and of these the ones that were right.
    pub attempts: usize,
    /// See `attempts`.
    pub right: usize,
    /// Generations begun.
    pub generations: u32,
    /// Why it ended, in words.
    pub ended: String,
    /// The defaults and the fastest, timed alternately; the defaults first.
    pub finals: Vec<Finalist>,
    /// The finalist whose choice to keep; 0: the defaults.
    pub winner: usize,
    /// What to think of it, in a sentence.
    pub verdict: String,
}

/// One of the fastest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finalist {
    /// Its attempt.
    pub number: u32,
    /// What was chosen.
    pub parameters: BTreeMap<String, u32>,
    /// How long it takes.
    pub hot: Timing,
    /// How fast it is against the defaults, round by round.
    pub speed: f64,
    /// What that lies between.
    pub speed_low: f64,
    /// See `speed_low`.
    pub speed_high: f64,
    /// Whether it cannot be told from the fastest.
    pub equals_fastest: bool,
}

impl TunedRecord {
    /// What was chosen in the end.
    pub fn kept(&self) -> Option<&Finalist> {
        self.finals.get(self.winner)
    }

    /// The parameters of a finalist that are not the defaults, as in "tasks_each=8".
    pub fn differences(&self, finalist: &Finalist) -> String {
        let defaults = self.finals.first().map(|first| &first.parameters);
        let is_other = |(name, value): &(&String, &u32)| {
            defaults.and_then(|defaults| defaults.get(*name)) != Some(*value)
        };
        let words: Vec<String> = finalist
            .parameters
            .iter()
            .filter(is_other)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match words.is_empty() {
            true => "the defaults".to_string(),
            false => words.join(" "),
        }
    }
}
