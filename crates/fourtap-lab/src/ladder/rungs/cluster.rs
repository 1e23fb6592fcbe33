//! Blocks that read each other's shared memory, and levels copied by the copy engine.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
