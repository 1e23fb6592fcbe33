//! What a probe of a CUDA device has at hand, and what it says about itself.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::DeviceFacts;

use super::super::{Probe, Setting};
use crate::cuda::{DeviceTiming, Stopwatch};
use crate::error::{Error, Result};
use crate::record::{Outcome, ProbeRecord, Unit};
use crate::target::Device;

/// A device to probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeDevice<'a> {
    /// To work and time with.
    pub stopwatch: &'a Stopwatch,
    /// For records.
    pub device: &'a Device,
    /// Most time to spend on repeating one measurement.
    pub budget: Duration,
}

impl ProbeDevice<'_> {
    /// The device.
    pub fn cuda(&self) -> &Cuda {
        self.stopwatch.cuda()
    }

    /// What the driver says of it.
    pub fn facts(&self) -> &'static DeviceFacts {
        self.cuda().device().facts()
    }
}

/// What a probe is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As typed and recorded.
    pub name: String,
    /// What belongs together in a table.
    pub group: &'static str,
    /// In a sentence.
    pub what: String,
}

impl Subject {
    /// One of any group.
    pub fn new(name: impl Into<String>, group: &'static str, what: impl Into<String>) -> Self {
        Subject {
            name: name.into(),
            group,
            what: what.into(),
        }
    }

    /// One of what the device can do at most.
    pub fn ceiling(name: impl Into<String>, what: impl Into<String>) -> Self {
        Subject::new(name, "ceiling", what)
    }

    /// Of this subject, without a rate.
    pub fn record(&self, gpu: &ProbeDevice<'_>, outcome: Outcome, words: &str) -> ProbeRecord {
        ProbeRecord::new(&self.name, self.group, &self.what, gpu.device, outcome).verified(words)
    }

    /// That this device does not have it.
    pub fn unavailable(&self, gpu: &ProbeDevice<'_>, reason: &str) -> ProbeRecord {
        self.record(gpu, Outcome::Unavailable, reason)
    }

    /// How fast it was; `amount` is what one repetition moves, computes or launches.
    pub fn measured(
        &self,
        gpu: &ProbeDevice<'_>,
        unit: Unit,
        amount: u64,
        timed: DeviceTiming,
        compared: &str,
    ) -> ProbeRecord {
        let DeviceTiming { timing, conditions } = timed;
        let mut record = self
            .record(gpu, Outcome::Measured, compared)
            .measured(unit, amount, timing);
        if let Some(clock) = conditions.after.clock_mhz {
            record = record.with("clock_mhz", clock);
        }
        let reasons = conditions.throttled_by();
        if !reasons.is_empty() {
            record = record.with("throttled_by", reasons.join(", "));
        }
        record
    }

    /// That it computed something else.
    pub fn wrong(&self, expected: impl ToString, found: impl ToString) -> Error {
        Error::Probe {
            probe: self.name.clone(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A probe that gives one record.
    pub fn probe(
        self,
        run: impl Fn(&ProbeDevice<'_>, &Subject) -> Result<ProbeRecord> + Send + Sync + 'static,
    ) -> Probe {
        self.probe_of_several(move |gpu, subject| Ok(vec![run(gpu, subject)?]))
    }

    /// A probe that gives several.
    pub fn probe_of_several(
        self,
        run: impl Fn(&ProbeDevice<'_>, &Subject) -> Result<Vec<ProbeRecord>> + Send + Sync + 'static,
    ) -> Probe {
        let (name, group, what) = (self.name.clone(), self.group, self.what.clone());
        Probe::new(name, group, what, move |setting: &Setting<'_>| {
            let Some(stopwatch) = setting.stopwatch else {
                return Err(Error::Misplaced {
                    option: "--device",
                    expected: "a CUDA device",
                    found: "the CPU".to_string(),
                });
            };
            let gpu = ProbeDevice {
                stopwatch,
                device: setting.device,
                budget: setting.budget,
            };
            run(&gpu, &self)
        })
    }
}
