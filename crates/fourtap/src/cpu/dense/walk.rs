//! The steps of a task: all its blocks use the keys and values of a step while these are in cache.

use super::block::Block;
use super::lanes::{KEYS, Lane, QUERIES};
use super::plan::Workspace;
use super::rows::Rows;
use super::task::Task;
use crate::cpu::simd::Vectorized;
use crate::dense::Sizes;
use crate::dtype::Real;

impl<E: Vectorized> Task<'_, E> {
    /// Computes the rows.
    ///
    /// # Safety
    /// They lie in the problem, and nothing else writes them.
    pub unsafe fn run(&self, memory: &mut Vec<Lane<E::Accumulator>>) {
        let (plan, sizes) = (self.plan, self.plan.sizes);
        // Does nothing from a worker's second task on. A task overwrites what the one before it left.
        memory.resize(plan.workspace(), Lane([E::Accumulator::ZERO; QUERIES]));
        let Workspace {
            weights,
            mut biases,
            keys: room_for_keys,
            values: room_for_values,
            blocks,
        } = plan.split(memory);
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
        let (mut start, end) = (first.seen.some.start, last.seen.some.end);
        while start < end {
            let keys = start..((start / KEYS + 1) * KEYS).min(end);
            start = keys.end;
            let head = [self.sequence, self.head];
            let Sizes {
                channels,
                value_channels,
                ..
            } = sizes;
            let key_rows = Rows::load(&self.cpu, &plan.key, head, &keys, channels, room_for_keys);
            let values = Rows::load(
                &self.cpu,
                &plan.value,
                head,
                &keys,
                value_channels,
                room_for_values,
            );
            for block in &mut blocks {
                // SAFETY: the last row sees keys up to `end`, so these lie in the problem.
                unsafe { block.step(self, &keys, key_rows, values, weights, &mut biases) };
            }
        }
        for block in blocks {
            // SAFETY: as the caller promises.
            unsafe { block.store(self) };
        }
    }
}
