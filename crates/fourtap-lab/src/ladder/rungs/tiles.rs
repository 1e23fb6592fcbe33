//! The four neighbours of a sample as a tile in shared memory, brought there in several ways.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
