//! What was measured of a case.

use serde::Serialize;

use super::{Case, Floor};
use crate::record::{BenchRecord, CountersRecord, Run};
use crate::workload::Operator;

/// Bytes of a sector, in which caches count.
const SECTOR_BYTES: f64 = 32.0;
/// Bytes the load pipe moves at a time.
const WAVEFRONT_BYTES: f64 = 128.0;

/// The records of a case.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The last benchmark of it.
    pub bench: Option<BenchRecord>,
    /// Counters of its kernels, of the last time each was profiled.
    pub counters: Vec<CountersRecord>,
}

/// How a measured time stands to the floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Achieved {
    /// Where it was measured.
    pub device: Option<String>,
    /// The kernels, in words.
    pub kernel: String,
    /// Milliseconds, the same inputs again and again.
    pub hot_ms: Option<f64>,
    /// Milliseconds, other inputs each time.
    pub cold_ms: Option<f64>,
    /// The floor over the time, hot.
    pub hot_share: Option<f64>,
    /// The same, cold.
    pub cold_share: Option<f64>,
    /// Bytes the samples ask for, in GB/s, hot; dense attention has none.
    pub gathered_gb_s: Option<f64>,
}

impl Measured {
    /// What a run has of a case on a kind of device.
    pub fn of(case: &Case, run: &Run, kind: &str) -> Self {
        let (problem, dtypes) = (case.problem_sizes(), case.dtypes());
        let bench = run.benches.iter().rfind(|record| {
            record.workload == case.workload.name
                && record.distribution == case.distribution.name()
                && record.direction == case.direction
                && record.problem.msda() == Some(&problem)
                && record.dtypes == dtypes
                && record.device.kind == kind
                && record.kernel.asked.is_none()
                && record.hot.is_some()
        });
        let same = run.counters.iter().filter(|record| {
            record.workload == case.workload.name
                && record.distribution == case.distribution.name()
                && record.direction == case.direction
                && record.problem == problem
                && record.dtypes == dtypes
                && record.device.kind == kind
        });
        let mut counters: Vec<CountersRecord> = Vec::new();
        for record in same {
            counters.retain(|other| other.kernel != record.kernel);
            counters.push(record.clone());
        }
        Measured {
            bench: bench.cloned(),
            counters,
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.bench.is_none() && self.counters.is_empty()
    }

    /// Bytes of one computation at L1, L2 and DRAM by the counters: through the load pipe, from L2 to L1, and to and
    /// from DRAM.
    pub fn counted(&self) -> [Option<f64>; 3] {
        let read = "l1tex__m_xbar2l1tex_read_sectors.sum";
        let tex = "lts__t_sectors_srcunit_tex.sum";
        let from_l2 = self.sum(&[read]).or_else(|| self.sum(&[tex]));
        [
            self.sum(&["l1tex__data_pipe_lsu_wavefronts.sum"])
                .map(|wavefronts| wavefronts * WAVEFRONT_BYTES),
            from_l2.map(|sectors| sectors * SECTOR_BYTES),
            self.sum(&["dram__bytes_read.sum", "dram__bytes_write.sum"]),
        ]
    }

    /// The sum over kernels of these counters, if every kernel has them all.
    fn sum(&self, names: &[&str]) -> Option<f64> {
        if self.counters.is_empty() {
            return None;
        }
        let one = |record: &CountersRecord| {
            let found = names.iter().map(|&name| record.metrics.get(name));
            let sum: Option<f64> = found.map(Option::<&f64>::copied).sum();
            // Forward is one kernel, so that each launch of it is a computation.
            let computations = match self.counters.len() {
                1 => f64::from(record.launches.max(1)),
                _ => 1.0,
            };
            sum.map(|sum| sum / computations)
        };
        self.counters.iter().map(one).sum()
    }

    /// Set against the floors.
    pub fn achieved(&self, hot: Option<&Floor>, cold: Option<&Floor>) -> Option<Achieved> {
        let record = self.bench.as_ref()?;
        Some(Achieved::of(record, (hot, cold)))
    }
}

impl Achieved {
    /// A record, set against the floors.
    pub fn of(record: &BenchRecord, (hot, cold): (Option<&Floor>, Option<&Floor>)) -> Self {
        let hot_ms = record.median_ms();
        let cold_ms = record.cold.as_ref().map(|cold| cold.median_ms);
        let share = |floor: Option<&Floor>, time: Option<f64>| Some(floor?.milliseconds / time?);
        Achieved {
            device: record.device.model.clone(),
            kernel: record.kernel.words.clone(),
            hot_ms,
            cold_ms,
            hot_share: share(hot, hot_ms),
            cold_share: share(cold, cold_ms),
            gathered_gb_s: record
                .gathered_gb_s()
                .filter(|_| record.operator() == Operator::Msda),
        }
    }
}
