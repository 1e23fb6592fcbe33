//! How fast others are.

use crate::record::BenchRecord;

/// Somebody else's time for the same problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer<'a> {
    /// Who.
    pub name: &'a str,
    /// Milliseconds.
    pub ms: f64,
    /// How and when, in words.
    pub measured: &'a str,
}

/// How many times faster than the fastest peer, hot.
pub fn times_best_peer(record: &BenchRecord) -> Option<f64> {
    let best = record.operator().peers(record).first().copied()?;
    Some(best.ms / record.median_ms()?)
}
