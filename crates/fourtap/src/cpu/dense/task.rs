//! One task: some rows of one key head, and their keys and values.

use std::ops::Range;

use super::lanes::Lane;
use super::plan::Plan;
use super::rows::{Pack, Rows};
use crate::cpu::Cpu;
use crate::cpu::raw::Raw;
use crate::cpu::simd::Vectorized;
use crate::dtype::Element;

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
    /// Rows of keys or values in place, or packed into `room` if they have gaps or need widening.
    pub fn rows_of(
        &self,
        tensor: &Raw<E, 4>,
        keys: &Range<usize>,
        channels: usize,
        room: &mut [Lane<E::Accumulator>],
    ) -> Rows<E::Accumulator> {
        let [.., row, channel] = tensor.strides;
        let from = tensor.at([self.sequence, self.head, keys.start]);
        // Rows with gaps are packed: measured to cost less than reading them in place again for each block.
        let dense = channel == 1 && row == channels as isize;
        if E::DTYPE == E::Accumulator::DTYPE && dense {
            return Rows {
                first: from.cast(),
                stride: row,
            };
        }
        let room = room.as_mut_ptr().cast();
        self.cpu.run(Pack {
            from,
            strides: [row, channel],
            count: keys.len(),
            channels,
            to: room,
        });
        Rows {
            first: room,
            stride: channels as isize,
        }
    }
}
