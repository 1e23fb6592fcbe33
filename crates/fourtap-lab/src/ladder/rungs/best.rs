//! What paid, together.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
