//! What this processor can do at most.

use super::Probe;

/// What can be found out about this processor.
pub fn probes() -> Vec<Probe> {
    Vec::new()
}
