//! One change to A3 at a time.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
