//! Probes: the hardware's ceilings, measured.
//!
//! A probe verifies what it computed before its time counts. One that may hang or crash is run in a process of its own by
//! `fourtap probe`.

pub mod cpu;
pub mod cuda;
#[cfg(feature = "fault-injection")]
pub mod faults;

use std::fmt;
use std::time::Duration;

use crate::cuda::Stopwatch;
use crate::error::{Error, Result};
use crate::record::{Outcome, ProbeRecord};
use crate::target::Device;

/// How long a probe may take, the compilation of its kernel included.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What a probe runs on.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// For its record.
    pub device: &'a Device,
    /// Most time to spend on repeating one measurement.
    pub budget: Duration,
    /// To time with; none on a CPU.
    pub stopwatch: Option<&'a Stopwatch>,
}

/// Fills in a record, which has names and no result yet.
type Measure = Box<dyn Fn(&Setting<'_>, ProbeRecord) -> Result<ProbeRecord> + Send + Sync>;

/// A ceiling to measure.
pub struct Probe {
    /// As typed, and as it is called in its record.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub what: String,
    measure: Measure,
}

impl Probe {
    /// One that measures so.
    pub fn new(
        name: &'static str,
        what: impl Into<String>,
        measure: impl Fn(&Setting<'_>, ProbeRecord) -> Result<ProbeRecord> + Send + Sync + 'static,
    ) -> Self {
        Probe {
            name,
            what: what.into(),
            measure: Box::new(measure),
        }
    }

    /// What it found. What is wrong or fails is a record too.
    pub fn run(&self, setting: &Setting<'_>) -> ProbeRecord {
        let blank = self.ended(setting.device, Outcome::Failed, "");
        let (outcome, words) = match (self.measure)(setting, blank) {
            Ok(record) => return record,
            Err(error @ Error::Probe { .. }) => (Outcome::Wrong, error.to_string()),
            Err(error) => (Outcome::Failed, error.to_string()),
        };
        self.ended(setting.device, outcome, &words)
    }

    /// A record of how it ended, if not as it should.
    pub fn ended(&self, device: &Device, outcome: Outcome, words: &str) -> ProbeRecord {
        ProbeRecord::new(self.name, "ceiling", &self.what, device, outcome).verified(words)
    }
}

/// What the probes of these names find, one after another. One that fails is a record too, without a rate.
pub fn found_by(probes: &[Probe], names: &[&str], setting: &Setting<'_>) -> Vec<ProbeRecord> {
    let named = probes.iter().filter(|probe| names.contains(&probe.name));
    named.map(|probe| probe.run(setting)).collect()
}

/// That something else was computed.
fn wrong(expected: impl fmt::Display, found: impl fmt::Display) -> Error {
    Error::Probe {
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}
