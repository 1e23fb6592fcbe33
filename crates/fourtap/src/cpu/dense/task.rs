//! One task: some rows of one key head, and their keys and values.

use std::ops::Range;

use super::plan::Plan;
use super::rows::HeadRows;
use crate::cpu::Cpu;
use crate::cpu::simd::Vectorized;

/// Some rows of one key head. It runs many short kernels, each compiled once per accumulator type and not for every
/// element type.
pub(super) struct Task<'a, E: Vectorized> {
    pub cpu: Cpu,
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    /// Of keys and values.
    pub head: usize,
    /// Queries of all heads of the group, at most as many as the plan has blocks for.
    pub rows: Range<usize>,
}

impl<E: Vectorized> Task<'_, E> {
    /// Where the rows lie.
    pub fn head_rows(&self) -> HeadRows {
        self.plan.head_rows(self.sequence, self.head)
    }
}
