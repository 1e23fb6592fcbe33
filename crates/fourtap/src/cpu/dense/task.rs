//! One task: blocks of rows of one head of keys, which use each step's keys and values one after another while they
//! are near.

use std::ops::Range;

use super::block::Block;
use super::plan::{Plan, Workspace};
use super::rows::{Pack, Rows};
use super::{KEYS, Lane, QUERIES};
use crate::cpu::Cpu;
use crate::cpu::raw::Raw;
use crate::cpu::simd::Vectorized;
use crate::dtype::{Element, Real};

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
    /// Computes the rows.
    ///
    /// # Safety
    /// They lie in the problem, and nobody else writes them.
    pub unsafe fn run(&self, memory: &mut Vec<Lane<E::Accumulator>>) {
        let (plan, sizes) = (self.plan, self.plan.sizes);
        // Does nothing from a worker's second task on. What a task leaves behind, the next one overwrites.
        memory.resize(plan.workspace(), Lane([E::Accumulator::ZERO; QUERIES]));
        let Workspace {
            weights,
            keys: room_for_keys,
            values: room_for_values,
            blocks,
        } = Workspace::new(memory, &sizes);
        let starts = self.rows.clone().step_by(QUERIES);
        let mut blocks: Vec<_> = starts
            .zip(blocks.chunks_exact_mut(sizes.channels + sizes.value_channels))
            .map(|(start, memory)| {
                let rows = start..(start + QUERIES).min(self.rows.end);
                Block::new(self, rows, memory)
            })
            .collect();
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return;
        };
        let (mut start, end) = (first.seen.start, last.seen.end);
        while start < end {
            let keys = start..((start / KEYS + 1) * KEYS).min(end);
            start = keys.end;
            let key_rows = self.rows_of(&plan.key, &keys, sizes.channels, room_for_keys);
            let values = self.rows_of(&plan.value, &keys, sizes.value_channels, room_for_values);
            for block in &mut blocks {
                // SAFETY: the last row sees keys up to `end`, so these lie in the problem.
                unsafe { block.step(self, &keys, key_rows, values, weights) };
            }
        }
        for block in blocks {
            // SAFETY: as the caller promises.
            unsafe { block.store(self) };
        }
    }

    /// Rows of keys or values as they lie, or copied to `room` if they cannot be used so.
    fn rows_of(
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
