//! The least time that measured ceilings allow.

use crate::record::{BenchRecord, ProbeRecord, Roof};

/// A result may be this much faster than the roof before it is called suspicious: ceilings are uncertain too.
const TOLERANCE: f64 = 0.02;

/// Ceilings, and the cache whose content may be left from the computation before.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings<'a> {
    /// As measured.
    pub probes: &'a [ProbeRecord],
    /// Bytes of the largest cache.
    pub cache_bytes: u64,
}

/// The least work of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinimumWork {
    /// Bytes that must come from or go to memory.
    pub moved: f64,
    /// Bytes of value that must be read, by each sample that needs them.
    pub gathered: f64,
    /// Operations.
    pub flop: f64,
    /// The probes of what computes them; none if nothing measures that.
    pub computed_by: &'static [&'static str],
}

/// Multiply-adds one by one.
pub const LANES: &[&str] = &["fma-f32"];

/// Products of matrices of 16-bit numbers.
pub const TENSOR_CORES: &[&str] = &["tensor-wgmma-f16", "tensor-mma-f16"];

impl Ceilings<'_> {
    /// The roof over a pass; none if nothing was measured that bounds it.
    pub fn roof(&self, least: MinimumWork) -> Option<Roof> {
        let beyond = (least.moved - self.cache_bytes as f64).max(0.0);
        let always = [
            self.limit(least.gathered, &["gather-128-l1", "gather-64-l1"]),
            self.limit(least.flop, least.computed_by),
        ];
        let hot = [
            self.limit(least.moved, &["l2-read"]),
            self.limit(beyond, &["dram-read", "copy"]),
        ];
        let cold = [self.limit(least.moved, &["dram-read", "copy"])];
        let (hot_ms, hot_limit) = largest(always.iter().chain(&hot))?;
        let (cold_ms, cold_limit) = largest(always.iter().chain(&cold))?;
        Some(Roof {
            hot_ms,
            hot_limit,
            cold_ms,
            cold_limit,
            suspicious: false,
        })
    }

    /// Milliseconds that so much, if anything, takes at the fastest of the ceilings that were measured.
    fn limit(&self, amount: f64, names: &[&str]) -> Option<(f64, String)> {
        if amount <= 0.0 {
            return None;
        }
        let named = self
            .probes
            .iter()
            .filter(|probe| probe.is_measured() && names.contains(&probe.name.as_str()));
        let times =
            named.filter_map(|probe| Some((amount / probe.rate? / 1e6, probe.name.clone())));
        times.min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// The one that takes longest.
fn largest<'a>(limits: impl Iterator<Item = &'a Option<(f64, String)>>) -> Option<(f64, String)> {
    let known = limits.flatten();
    known
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .cloned()
}

/// Whether a result is faster than its roof allows.
pub fn is_suspicious(record: &BenchRecord, roof: &Roof) -> bool {
    let above = |median: Option<f64>, least: f64| {
        median.is_some_and(|median| median < (1.0 - TOLERANCE) * least)
    };
    above(record.median_ms(), roof.hot_ms)
        || above(
            record.cold.as_ref().map(|cold| cold.median_ms),
            roof.cold_ms,
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Timing, Unit};
    use crate::target::Device;

    const GIGA: u64 = 1_000_000_000;

    fn device() -> Device {
        Device {
            kind: "cuda".to_string(),
            model: None,
            simd: None,
            threads: None,
            cuda: None,
        }
    }

    /// Ceilings of so many billions per second.
    fn probes(rates: &[(&str, u64)]) -> Vec<ProbeRecord> {
        let second = || Timing::of(vec![1000.0]);
        let probe = |&(name, rate): &(&str, u64)| {
            let ceiling = ProbeRecord::ceiling(name, "", &device(), rate * GIGA, second());
            ceiling.measured(Unit::GigabytesASecond, rate * GIGA, second())
        };
        rates.iter().map(probe).collect()
    }

    /// What a forward pass may need.
    fn least() -> MinimumWork {
        MinimumWork {
            moved: 4e9,
            gathered: 100e9,
            flop: 40e9,
            computed_by: LANES,
        }
    }

    #[test]
    fn what_the_cache_may_hold_bounds_only_cold_results() {
        let probes = probes(&[("copy", 4), ("l2-read", 40), ("gather-128-l1", 1000)]);
        let least = least();
        let ceilings = |cache_bytes| Ceilings {
            probes: &probes,
            cache_bytes,
        };
        let roof = ceilings(8 * GIGA).roof(least).unwrap();
        assert_eq!((roof.hot_ms, roof.hot_limit.as_str()), (100.0, "l2-read"));
        assert_eq!((roof.cold_ms, roof.cold_limit.as_str()), (1000.0, "copy"));
        let roof = ceilings(GIGA).roof(least).unwrap();
        assert_eq!((roof.hot_ms, roof.hot_limit.as_str()), (750.0, "copy"));
    }

    #[test]
    fn the_faster_of_two_ceilings_of_the_same_counts() {
        let probes = probes(&[("copy", 4), ("dram-read", 5)]);
        let ceilings = Ceilings {
            probes: &probes,
            cache_bytes: 0,
        };
        let roof = ceilings.roof(least()).unwrap();
        assert_eq!(
            (roof.cold_ms, roof.cold_limit.as_str()),
            (800.0, "dram-read")
        );
    }

    #[test]
    fn a_result_faster_than_its_roof_is_suspicious() {
        let timing = |milliseconds: f64| Timing::of(vec![milliseconds]);
        let mut record: BenchRecord = serde_json::from_value(serde_json::json!({
            "schema": 2, "version": "0", "unix_time": 0, "workload": "w", "distribution": "local", "seed": 0,
            "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
            "dtypes": {"value": "f32", "locations": "f32", "weights": "f32"}, "direction": "forward",
            "device": device(), "kernel": {"words": "k", "reproducible": true},
            "verification": {"passed": true, "rows": 1, "tensors": []}, "in_bounds_fraction": 1.0,
            "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1}}))
        .unwrap();
        let roof = Roof {
            hot_ms: 1.0,
            hot_limit: "l2-read".to_string(),
            cold_ms: 2.0,
            cold_limit: "copy".to_string(),
            suspicious: false,
        };
        for (hot, cold, suspicious) in [
            (1.0, 2.0, false),
            (0.99, 1.97, false),
            (0.97, 2.0, true),
            (1.0, 1.9, true),
        ] {
            record.hot = Some(timing(hot));
            record.cold = Some(timing(cold));
            assert_eq!(is_suspicious(&record, &roof), suspicious, "{hot} {cold}");
        }
        record.cold = None;
        record.hot = Some(timing(1.5));
        assert!(
            !is_suspicious(&record, &roof),
            "what was not timed is not judged"
        );
    }

    #[test]
    fn without_ceilings_there_is_no_roof() {
        let ceilings = Ceilings {
            probes: &[],
            cache_bytes: 0,
        };
        assert_eq!(ceilings.roof(least()), None);
    }
}
