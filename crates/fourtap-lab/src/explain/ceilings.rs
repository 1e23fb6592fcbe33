//! What a device can do at most, as measured.

use std::path::Path;

use serde::Serialize;

use crate::error::Result;
use crate::record::{Run, Unit};
use crate::target::Device;

/// The results this program carries, so that it explains without a GPU.
const BUILT_IN: &str = include_str!("../../ceilings/h200.jsonl");
const BUILT_IN_NAME: &str = "runs/2026-11-15-h200-lab/probe.jsonl";

/// Measured ceilings of one device, by the names of their probes.
#[derive(Clone, Debug)]
pub struct Ceilings {
    /// Of what.
    pub device: Device,
    /// Where they come from.
    pub origin: String,
    /// In the order measured.
    rates: Vec<Ceiling>,
}

/// A measured rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// The probe's name.
    pub name: String,
    /// How fast.
    pub rate: f64,
    /// What that counts.
    pub unit: Unit,
}

impl Ceiling {
    /// Milliseconds for so many bytes, or if it counts operations for so many of these.
    pub fn milliseconds(&self, bytes: f64, operations: f64) -> f64 {
        match self.unit {
            Unit::GigabytesASecond => bytes / self.rate / 1e6,
            Unit::GigaflopASecond | Unit::GigaASecond => operations / self.rate / 1e6,
            Unit::Microseconds => operations * self.rate / 1e3,
        }
    }

    /// As shown: "21.5 TB/s".
    pub fn in_words(&self) -> String {
        let Ceiling { rate, unit, .. } = self;
        match unit {
            Unit::GigabytesASecond if *rate >= 1e3 => format!("{:.2} TB/s", rate / 1e3),
            Unit::GigaflopASecond if *rate >= 1e3 => format!("{:.1} TFLOP/s", rate / 1e3),
            Unit::Microseconds => format!("{rate:.2} us"),
            _ => format!("{rate:.1} {}", unit.name()),
        }
    }
}

impl Ceilings {
    /// Of an H200.
    pub fn built_in() -> Result<Option<Self>> {
        let run = Run::parse(Path::new(BUILT_IN_NAME), BUILT_IN)?;
        Ok(Ceilings::of(&run, "cuda"))
    }

    /// Of the last device of this kind in a run; none if it has none. What was measured last counts.
    pub fn of(run: &Run, kind: &str) -> Option<Self> {
        let measured = run.probes.iter().filter(|probe| {
            let usable = probe
                .rate
                .is_some_and(|rate| rate.is_finite() && rate > 0.0);
            probe.device.kind == kind && probe.is_measured() && usable
        });
        let device = measured.clone().next_back()?.device.clone();
        let same = measured.filter(|probe| probe.device.model == device.model);
        let rates = same.filter_map(|probe| {
            Some(Ceiling {
                name: probe.name.clone(),
                rate: probe.rate?,
                unit: probe.unit?,
            })
        });
        Some(Ceilings {
            rates: rates.collect(),
            origin: run.path.display().to_string(),
            device,
        })
    }

    /// None known, of a device.
    pub fn none(device: Device) -> Self {
        Ceilings {
            device,
            origin: "nowhere".to_string(),
            rates: Vec::new(),
        }
    }

    /// The ceiling of this name, if it was measured.
    pub fn get(&self, name: &str) -> Option<&Ceiling> {
        let mut latest = self.rates.iter().rev();
        latest.find(|ceiling| ceiling.name == name)
    }

    /// The first of these that was measured.
    pub fn first(&self, names: &[&str]) -> Option<&Ceiling> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The fastest of these.
    pub fn fastest(&self, names: &[&str]) -> Option<&Ceiling> {
        let measured = names.iter().filter_map(|name| self.get(name));
        measured.max_by(|a, b| a.rate.total_cmp(&b.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_ceilings_are_those_the_explanation_rests_on() {
        let ceilings = Ceilings::built_in().unwrap().unwrap();
        assert!(ceilings.device.cuda.is_some());
        for name in ["copy", "gather-64-l1"] {
            assert!(ceilings.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn times_follow_the_unit() {
        let ceiling = |rate, unit| Ceiling {
            name: String::new(),
            rate,
            unit,
        };
        let bytes = ceiling(2000.0, Unit::GigabytesASecond);
        assert_eq!(bytes.milliseconds(4e9, 1.0), 2.0);
        let operations = ceiling(10.0, Unit::GigaASecond);
        assert_eq!(operations.milliseconds(1.0, 2e7), 2.0);
        let launches = ceiling(3.0, Unit::Microseconds);
        assert_eq!(launches.milliseconds(1.0, 2.0), 0.006);
    }
}
