//! What was measured of a case.

use super::Case;
use crate::explain::{Case as _, Efficiency, Floor};
use crate::record::{BenchRecord, CountersRecord, ProblemRecord, Run};

/// Bytes of a sector, in which caches count.
const SECTOR_BYTES: f64 = 32.0;
/// Bytes the load pipe moves at a time.
const WAVEFRONT_BYTES: f64 = 128.0;

/// The records of a case.
#[derive(Clone, Debug, Default)]
pub struct CaseRecords {
    /// The last benchmark of it.
    pub bench: Option<BenchRecord>,
    /// Counters of its kernels, of the last time each was profiled.
    pub counters: Vec<CountersRecord>,
}

impl CaseRecords {
    /// What a run has of a case on a kind of device.
    pub fn of(case: &Case, run: &Run, kind: &str) -> Self {
        let (problem, dtypes) = (ProblemRecord::from(case.problem_sizes()), case.dtypes());
        let bench = run.benches.iter().rfind(|record| {
            record.workload == case.workload.name
                && record.distribution == case.distribution.name()
                && record.direction == case.direction
                && record.problem == problem
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
        CaseRecords {
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
    pub fn achieved(&self, hot: Option<&Floor>, cold: Option<&Floor>) -> Option<Efficiency> {
        let record = self.bench.as_ref()?;
        Some(Efficiency::of(record, (hot, cold)))
    }
}
