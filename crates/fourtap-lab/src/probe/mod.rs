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

/// How long most probes may take, the compilation of their kernels included.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What a probe runs on.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// For its records.
    pub device: &'a Device,
    /// Most time to spend on repeating one measurement.
    pub budget: Duration,
    /// To time with; none on a CPU.
    pub stopwatch: Option<&'a Stopwatch>,
}

type Run = Box<dyn Fn(&Setting<'_>) -> Result<Vec<ProbeRecord>> + Send + Sync>;

/// One thing to find out about the hardware.
pub struct Probe {
    /// As typed; a probe's only record has the same name.
    pub name: String,
    /// What belongs together in a table.
    pub group: &'static str,
    /// What it does, in a sentence.
    pub what: String,
    /// How long it may take.
    pub limit: Duration,
    run: Run,
}

impl Probe {
    /// One that takes at most [`LIMIT`].
    pub fn new(
        name: impl Into<String>,
        group: &'static str,
        what: impl Into<String>,
        run: impl Fn(&Setting<'_>) -> Result<Vec<ProbeRecord>> + Send + Sync + 'static,
    ) -> Self {
        Probe {
            name: name.into(),
            group,
            what: what.into(),
            limit: LIMIT,
            run: Box::new(run),
        }
    }

    /// What it found. What is wrong or fails is a record too.
    pub fn run(&self, setting: &Setting<'_>) -> Vec<ProbeRecord> {
        let (outcome, words) = match (self.run)(setting) {
            Ok(records) => return records,
            Err(Error::Probe {
                expected, found, ..
            }) => (
                Outcome::Wrong,
                format!("expected {expected}, found {found}"),
            ),
            Err(error) => (Outcome::Failed, error.to_string()),
        };
        vec![self.ended(setting.device, outcome, &words)]
    }

    /// A record of how it ended, if not as it should.
    pub fn ended(&self, device: &Device, outcome: Outcome, words: &str) -> ProbeRecord {
        ProbeRecord {
            words: words.to_string(),
            ..ProbeRecord::new(&self.name, self.group, &self.what, device, outcome)
        }
    }
}

/// What the probes of these names find, one after another. One that fails is a record too, without a rate.
pub fn found_by(probes: &[Probe], names: &[&str], setting: &Setting<'_>) -> Vec<ProbeRecord> {
    let named = probes
        .iter()
        .filter(|probe| names.contains(&probe.name.as_str()));
    named.flat_map(|probe| probe.run(setting)).collect()
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}
