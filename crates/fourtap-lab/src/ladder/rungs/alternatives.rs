//! Another arithmetic, another layout, fewer bits.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
