//! What a probe of the hardware found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Origin, Timing, billions_a_second};
use crate::target::Device;

/// One probe's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// Of what.
    pub device: Device,
    /// What it is called, as in "gather-64-l1". Ceilings are looked up by it.
    pub name: String,
    /// What belongs together in a table: "ceiling"; in older records also "device", "tma", "cluster", "tile-copy" and
    /// "slice-copy".
    pub group: String,
    /// What it does, in a sentence.
    pub what: String,
    /// How it ended.
    pub outcome: Outcome,
    /// In words: what was compared if it passed, the rule it broke if it was refused, what went wrong otherwise.
    pub words: String,
    /// How fast; none unless it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// What `rate` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Bytes, operations or launches of one repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<u64>,
    /// How long a repetition takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// Sizes and facts: numbers and words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Value>,
    /// What others published for the same; only older records have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It computed the right thing and was timed.
    Measured,
    /// It works, or is a fact; there is nothing to time.
    Works,
    /// The driver or the device refuses it, as it should or not: `words` says by which rule.
    Refused,
    /// This device or machine does not have it.
    Unavailable,
    /// It computed something else.
    Wrong,
    /// It ended with an error.
    Failed,
    /// It did not end within its limit and was killed.
    Hung,
    /// Its process was ended by a signal.
    Crashed,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Billions of bytes per second.
    #[serde(rename = "GB/s")]
    GigabytesASecond,
    /// Billions of floating-point operations per second.
    #[serde(rename = "GFLOP/s")]
    GigaflopASecond,
    /// Billions of operations of any kind a second.
    #[serde(rename = "G/s")]
    GigaASecond,
    /// Microseconds, of which fewer are better.
    #[serde(rename = "us")]
    Microseconds,
}

impl Unit {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Unit::GigabytesASecond => "GB/s",
            Unit::GigaflopASecond => "GFLOP/s",
            Unit::GigaASecond => "G/s",
            Unit::Microseconds => "us",
        }
    }
}

/// What others published for the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// How fast, in the record's unit.
    pub rate: f64,
    /// On what, and what was wrong with it.
    pub words: String,
}

impl ProbeRecord {
    /// A probe without a rate.
    pub fn new(name: &str, group: &str, what: &str, device: &Device, outcome: Outcome) -> Self {
        ProbeRecord {
            origin: Origin::here(),
            device: device.clone(),
            name: name.to_string(),
            group: group.to_string(),
            what: what.to_string(),
            outcome,
            words: String::new(),
            rate: None,
            unit: None,
            amount: None,
            timing: None,
            parameters: BTreeMap::new(),
            claim: None,
        }
    }

    /// A ceiling that moves this many bytes a repetition.
    pub fn ceiling(name: &str, what: &str, device: &Device, bytes: u64, timing: Timing) -> Self {
        let record = ProbeRecord::new(name, "ceiling", what, device, Outcome::Measured);
        record.measured(Unit::GigabytesASecond, bytes, timing)
    }

    /// With how fast it was: `amount` is what one repetition moves, computes or launches.
    pub fn measured(mut self, unit: Unit, amount: u64, timing: Timing) -> Self {
        self.rate = Some(match unit {
            Unit::Microseconds => timing.median_ms * 1e3 / amount as f64,
            _ => billions_a_second(amount, timing.median_ms),
        });
        self.outcome = Outcome::Measured;
        self.unit = Some(unit);
        self.amount = Some(amount);
        self.timing = Some(timing);
        self
    }

    /// With what was compared.
    pub fn verified(mut self, compared: &str) -> Self {
        self.words = compared.to_string();
        self
    }

    /// With a size or a fact.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.parameters.insert(name.to_string(), value.into());
        self
    }

    /// Whether its rate may be used.
    pub fn is_measured(&self) -> bool {
        self.outcome == Outcome::Measured && self.rate.is_some()
    }
}
