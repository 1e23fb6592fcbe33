//! One task: its blocks use each step's keys and values one after another while they are near.

use std::ops::Range;

use super::block::Block;
use super::layout::{KEYS, Layout, Line, ROWS, Shared};
use super::pack::{Rows, pack_keys, pack_values};
use super::split::{NUMBERS, Split};
use crate::cpu::Cpu;
use crate::cpu::amx::{self, SIDE, Tiles};
use crate::cpu::dense::plan::Plan;
use crate::cpu::dense::rows::HeadRows;
use crate::cpu::raw::Raw;

/// Some rows of one head of keys.
pub struct Task<'a, E: Split> {
    pub cpu: Cpu,
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    /// Of keys and values.
    pub head: usize,
    pub layout: Layout,
    /// Whether queries change their sign, so that `factor` is positive.
    pub negated: bool,
    /// What makes of a product of query and key the power of two its weight is.
    pub factor: f32,
    pub logit_steps: Vec<amx::Step>,
    pub value_steps: Vec<amx::Step>,
    pub tiles: Tiles,
}

/// The keys of a step.
pub struct Step {
    /// A multiple of [`KEYS`]; the other numbers of this type count from here.
    pub base: usize,
    /// Those that some row of the task sees, counted from the first there is.
    pub keys: Range<usize>,
    /// How many keys there are, of which [`KEYS`] at most are the step's.
    pub count: usize,
    pub extraordinary_keys: Vec<usize>,
    pub extraordinary_values: Vec<usize>,
}

impl Step {
    /// Those of `range` that there are.
    pub fn keys_in(&self, range: &Range<usize>) -> Range<usize> {
        range.start..range.end.min(self.count)
    }
}

impl<E: Split> Task<'_, E> {
    /// Keys of the task's head from one on.
    pub fn keys_from(&self, key: usize) -> Rows<E> {
        self.rows_from(&self.plan.key, key, self.plan.sizes.channels)
    }

    /// The values of these keys.
    pub fn values_from(&self, key: usize) -> Rows<E> {
        self.rows_from(&self.plan.value, key, self.plan.sizes.value_channels)
    }

    fn rows_from(&self, tensor: &Raw<E, 4>, row: usize, channels: usize) -> Rows<E> {
        let [.., from_row_to_row, from_channel_to_channel] = tensor.strides;
        Rows {
            first: tensor.at([self.sequence, self.head, row]),
            strides: [from_row_to_row, from_channel_to_channel],
            channels,
        }
    }

    /// Where the rows lie.
    pub fn head_rows(&self) -> HeadRows {
        self.plan.head_rows(self.sequence, self.head)
    }

    /// The query of a row.
    pub fn query(&self, row: usize) -> Rows<E> {
        Rows {
            first: self.plan.query.at(self.head_rows().place(row)),
            strides: [0, self.plan.query.strides[3]],
            channels: self.plan.sizes.channels,
        }
    }

    /// Computes `rows`, at most as many as `memory` has blocks for.
    ///
    /// # Safety
    /// They lie in the problem, and nobody else writes them.
    pub unsafe fn run(&self, rows: Range<usize>, memory: &mut [Line]) {
        let (mut shared, memory) = Shared::of(memory, &self.layout);
        let mut blocks: Vec<_> = rows
            .clone()
            .step_by(ROWS)
            .zip(memory.chunks_exact_mut(self.layout.block()))
            .map(|(start, memory)| Block::new(self, start..(start + ROWS).min(rows.end), memory))
            .collect();
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
            return;
        };
        let (mut start, end) = (first.seen.start, last.seen.end);
        while start < end {
            let keys = start..((start / KEYS + 1) * KEYS).min(end);
            start = keys.end;
            let step = self.pack(keys, &mut shared);
            for block in &mut blocks {
                block.step(self, &step, &mut shared);
            }
        }
        for block in blocks {
            // SAFETY: as the caller promises.
            unsafe { block.store(self) };
        }
    }

    /// Packs the keys and values of a step.
    fn pack(&self, keys: Range<usize>, shared: &mut Shared<'_>) -> Step {
        let (plan, layout) = (self.plan, &self.layout);
        let base = keys.start / KEYS * KEYS;
        let rows =
            (keys.start - base) / NUMBERS * NUMBERS..(keys.end - base).next_multiple_of(NUMBERS);
        let count = KEYS.min(plan.sizes.keys - base);
        let (to_keys, to_values) = (shared.keys.as_mut_ptr(), shared.values.as_mut_ptr());
        // SAFETY: the first `count` rows from `base` on lie in the problem, there is room for all of a step's, and whoever
        // runs this has the instructions.
        unsafe {
            let from = self.keys_from(base);
            let extraordinary_keys = pack_keys(from, rows.clone(), count, to_keys, layout.key_part);
            let from = self.values_from(base);
            let room = [layout.value_part, KEYS / NUMBERS];
            let extraordinary_values = pack_values(from, rows, count, to_values, room);
            Step {
                base,
                keys,
                count,
                extraordinary_keys,
                extraordinary_values,
            }
        }
    }
}

const _: () = assert!(KEYS.is_multiple_of(NUMBERS) && NUMBERS == 2 * SIDE);
