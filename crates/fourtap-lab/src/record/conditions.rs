//! The state of the machine around a measurement.

use serde::{Deserialize, Serialize};

/// The state of what computed, just before and just after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// After warming up, before the first sample.
    pub before: Reading,
    /// After the last sample.
    pub after: Reading,
}

/// What the sensors say; whatever they do not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Clock of the multiprocessors or the cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    /// Clock of the device's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    /// Temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// Power drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Why clocks are lower than they could be; idling is no reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled_by: Vec<String>,
    /// Processes that wanted to run, a minute's average; of the machine the CPU belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

impl Conditions {
    /// Why clocks were lowered at either end.
    pub fn throttled_by(&self) -> Vec<&str> {
        let both = self
            .before
            .throttled_by
            .iter()
            .chain(&self.after.throttled_by);
        let mut reasons: Vec<&str> = both.map(String::as_str).collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }
}
