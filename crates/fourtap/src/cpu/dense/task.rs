//! One task: some rows of one head of keys, and where their keys and values are.

use std::ops::Range;

use super::lanes::Lane;
use super::plan::Plan;
use super::rows::{Pack, Rows};
use crate::cpu::Cpu;
use crate::cpu::raw::Raw;
use crate::cpu::simd::Vectorized;
use crate::dtype::Element;

/// Some rows of one head of keys. The kernels it runs are many and short, so that each is compiled once for the type it
/// computes in, not for every type of element.
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
    /// Rows of keys or values as they lie, or copied to `room` if they cannot be used so.
    pub fn rows_of(
        &self,
        tensor: &Raw<E, 4>,
        keys: &Range<usize>,
        channels: usize,
        room: &mut [Lane<E::Accumulator>],
    ) -> Rows<E::Accumulator> {
        let [.., row, channel] = tensor.strides;
        let from = tensor.at([self.sequence, self.head, keys.start]);
        // Rows that lie apart are copied: seen to cost less than reading them where they lie, again for each block.
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
