//! What was measured, against what the hardware allows.

use serde::Serialize;

use super::Floor;
use crate::record::BenchRecord;

/// How a measured time stands to the floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Efficiency {
    /// Where it was measured.
    pub device: Option<String>,
    /// The kernels, in words.
    pub kernel: String,
    /// Milliseconds, the same inputs repeatedly.
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

impl Efficiency {
    /// A record, set against the floors.
    pub fn of(record: &BenchRecord, (hot, cold): (Option<&Floor>, Option<&Floor>)) -> Self {
        let hot_ms = record.median_ms();
        let cold_ms = record.cold.as_ref().map(|cold| cold.median_ms);
        let share = |floor: Option<&Floor>, time: Option<f64>| Some(floor?.milliseconds / time?);
        Efficiency {
            device: record.device.model.clone(),
            kernel: record.kernel.words.clone(),
            hot_ms,
            cold_ms,
            hot_share: share(hot, hot_ms),
            cold_share: share(cold, cold_ms),
            gathered_gb_s: record
                .gathered_gb_s()
                .filter(|_| record.problem.sampled_elements().is_some()),
        }
    }
}
