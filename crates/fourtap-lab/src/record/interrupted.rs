//! That a run was ended before it was done.

use serde::{Deserialize, Serialize};

use super::Origin;

/// What `fourtap bench` writes last after Ctrl-C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptedRecord {
    /// This program.
    #[serde(flatten)]
    pub origin: Origin,
    /// Benchmarks that were measured.
    pub measured: usize,
    /// Benchmarks that were to be measured.
    pub planned: usize,
}

impl InterruptedRecord {
    /// As in "interrupted after 3 of 12 benchmarks".
    pub fn in_words(&self) -> String {
        format!(
            "interrupted after {} of {} benchmarks",
            self.measured, self.planned
        )
    }
}
