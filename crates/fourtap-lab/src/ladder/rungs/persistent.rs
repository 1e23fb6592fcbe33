//! One block a multiprocessor that keeps what it reads: persistent rungs, and work in an order that caches like.

use super::super::Rung;

/// The family.
pub const RUNGS: &[Rung] = &[];
