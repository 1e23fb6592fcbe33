//! A block of rows through all steps.

use std::f64::consts::LN_2;
use std::ops::Range;

use super::layout::{KEYS, Kept, Layout, Line, Shared, numbers};
use super::pack::pack_query;
use super::patch::{AddValue, Dot};
use super::softmax::weigh;
use super::split::{NUMBERS, Split};
use super::store::Round;
use super::task::{Step, Task};
use crate::cpu::amx::{PRODUCT, Product, SIDE};
use crate::cpu::dense::mask::{self, ApplyToRow, MaskRow};
use crate::dtype::{Element, bf16};

/// A block of rows, and what is known of them so far.
pub struct Block<'a> {
    rows: Range<usize>,
    /// The keys that some row sees.
    pub seen: Range<usize>,
    /// The keys that every row sees.
    seen_by_all: Range<usize>,
    /// Rows that tiles cannot multiply, counted from the first.
    extraordinary: Vec<usize>,
    kept: Kept<'a>,
    /// Of each row, or one that is that of all; none without a mask.
    mask: Vec<MaskRow>,
}

impl<'a> Block<'a> {
    /// `rows`, at least one and at most [`super::layout::ROWS`], before the first step.
    pub fn new<E: Split>(task: &Task<'_, E>, rows: Range<usize>, memory: &'a mut [Line]) -> Self {
        let layout = &task.layout;
        let kept = Kept::of(memory, layout);
        kept.queries.fill(Line::ZERO);
        kept.sums.fill(Line::ZERO);
        kept.highest.fill(Line([f32::NEG_INFINITY; SIDE]));
        kept.totals.fill(Line::ZERO);
        let mut extraordinary = Vec::new();
        for (index, row) in rows.clone().enumerate() {
            let line = index / SIDE * SIDE * layout.channel_steps + index % SIDE;
            let to = kept.queries[line..].as_mut_ptr();
            // SAFETY: the row lies in the problem, its lines in the block, and whoever runs this has the instructions.
            let is_ordinary =
                unsafe { pack_query(task.query(row), task.negated, to, layout.query_part) };
            if !is_ordinary {
                extraordinary.push(index);
            }
        }
        let of = task.head_rows();
        let places = rows.clone().map(|row| of.place(row));
        let mask = task.plan.mask.as_ref();
        let mask = mask.map(|mask| mask::rows_of(mask, places));
        let first = task.plan.visible(rows.start);
        let last = task.plan.visible(rows.end - 1);
        Block {
            rows,
            seen: first.start..last.end,
            seen_by_all: last.start..first.end,
            extraordinary,
            kept,
            mask: mask.unwrap_or_default(),
        }
    }

    /// Takes those of the step's keys into account that it sees.
    pub fn step<E: Split>(&mut self, task: &Task<'_, E>, step: &Step, shared: &mut Shared<'_>) {
        let seen = self.seen.start.max(step.keys.start)..self.seen.end.min(step.keys.end);
        if seen.is_empty() {
            return;
        }
        // Of the step, in whole tiles; so a key has its place whatever keys are seen beside it.
        let range = (seen.start - step.base) / PRODUCT * PRODUCT
            ..(seen.end - step.base).next_multiple_of(PRODUCT);
        let keys = step.keys_in(&range);
        let keys = step.base + keys.start..step.base + keys.end;
        // SAFETY: these keys are the problem's.
        if unsafe { mask::hide_everything(&self.mask, &keys) } {
            return;
        }
        self.multiply_keys(task, range.clone(), shared);
        self.patch_logits(task, step, &range, shared.logits);
        let all = &self.seen_by_all;
        if step.base + range.start < all.start || all.end < step.base + range.end {
            self.hide(task, step.base, &range, shared.logits);
        }
        self.apply_mask(task, step.base, keys, shared.logits);
        // SAFETY: the range is of the step, its logits are there, and whoever runs this has the instructions.
        unsafe {
            weigh(
                &mut self.kept,
                self.rows.len(),
                range.clone(),
                task.factor,
                shared.logits,
                shared.weights,
                &task.layout,
            );
        }
        self.multiply_values(task, range.clone(), shared);
        self.patch_sums(task, step, &range, shared.weights);
    }

    fn multiply_keys<E: Split>(
        &self,
        task: &Task<'_, E>,
        range: Range<usize>,
        shared: &mut Shared<'_>,
    ) {
        let tile_lines = SIDE * task.layout.channel_steps;
        for first in range.step_by(PRODUCT) {
            let product = Product {
                left: self.kept.queries.as_ptr().cast(),
                left_row: size_of::<Line>(),
                left_tile: tile_lines * size_of::<Line>(),
                right: shared.keys[first / SIDE * tile_lines..].as_ptr().cast(),
                out: shared.logits[first / SIDE..].as_mut_ptr().cast(),
                out_row: KEYS * size_of::<f32>(),
                steps: &task.logit_steps,
            };
            // SAFETY: queries and keys have these tiles, and the logits 32 columns from the first on.
            unsafe { product.compute::<false>(&task.tiles) };
        }
    }

    fn multiply_values<E: Split>(
        &mut self,
        task: &Task<'_, E>,
        range: Range<usize>,
        shared: &Shared<'_>,
    ) {
        let each = task.layout.weighed().count();
        let steps = range.start / NUMBERS * each..range.end / NUMBERS * each;
        for tile in (0..task.layout.value_tiles).step_by(2) {
            let product = Product {
                left: shared.weights.as_ptr().cast(),
                left_row: KEYS * size_of::<bf16>(),
                left_tile: SIDE * KEYS * size_of::<bf16>(),
                right: shared.values[tile * KEYS / 2..].as_ptr().cast(),
                out: self.kept.sums[tile..].as_mut_ptr().cast(),
                out_row: task.layout.value_tiles * size_of::<Line>(),
                steps: &task.value_steps[steps.clone()],
            };
            // SAFETY: weights and values have the tiles of these steps, and the sums 32 columns from the first on.
            unsafe { product.compute::<true>(&task.tiles) };
        }
    }

    /// Makes the logits of keys that a row does not see minus infinity, those after the last key included.
    fn hide<E: Split>(
        &self,
        task: &Task<'_, E>,
        base: usize,
        range: &Range<usize>,
        logits: &mut [Line],
    ) {
        let logits = numbers(logits);
        for (logits, row) in logits.chunks_exact_mut(KEYS).zip(self.rows.clone()) {
            let visible = task.plan.visible(row);
            let inside = |key: usize| key.saturating_sub(base).clamp(range.start, range.end);
            let (start, end) = (inside(visible.start), inside(visible.end));
            logits[range.start..start].fill(f32::NEG_INFINITY);
            logits[end.max(start)..range.end].fill(f32::NEG_INFINITY);
        }
    }

    /// Hides keys that a mask hides, and adds biases.
    fn apply_mask<E: Split>(
        &self,
        task: &Task<'_, E>,
        base: usize,
        keys: Range<usize>,
        logits: &mut [Line],
    ) {
        let Some(first) = self.mask.first() else {
            return;
        };
        for (index, logits) in numbers(logits)
            .chunks_exact_mut(KEYS)
            .take(self.rows.len())
            .enumerate()
        {
            task.cpu.run(ApplyToRow {
                row: *self.mask.get(index).unwrap_or(first),
                keys: keys.clone(),
                logits: &mut logits[keys.start - base..keys.end - base],
                factor: task.factor,
            });
        }
    }

    /// Computes the logits again that tiles cannot.
    fn patch_logits<E: Split>(
        &self,
        task: &Task<'_, E>,
        step: &Step,
        range: &Range<usize>,
        logits: &mut [Line],
    ) {
        if self.extraordinary.is_empty() && step.extraordinary_keys.is_empty() {
            return;
        }
        let logits = numbers(logits);
        let keys = step.keys_in(range);
        let mut patch = |index: usize, key: usize| {
            let mut logit = 0.0;
            task.cpu.run(Dot {
                query: task.query(self.rows.start + index),
                key: task.keys_from(step.base + key),
                to: &mut logit,
            });
            logits[index * KEYS + key] = if task.negated { -logit } else { logit };
        };
        for &index in &self.extraordinary {
            keys.clone().for_each(|key| patch(index, key));
        }
        for &key in step
            .extraordinary_keys
            .iter()
            .filter(|key| keys.contains(key))
        {
            (0..self.rows.len()).for_each(|index| patch(index, key));
        }
    }

    /// Adds the values that tiles cannot, which are packed as 0, to the rows that see them.
    fn patch_sums<E: Split>(
        &mut self,
        task: &Task<'_, E>,
        step: &Step,
        range: &Range<usize>,
        weights: &[Line],
    ) {
        for &key in &step.extraordinary_values {
            for (index, row) in self.rows.clone().enumerate() {
                let mask = self.mask.get(index).or(self.mask.first());
                // SAFETY: the key is one of the problem's.
                let is_hidden = mask.is_some_and(|mask| unsafe { mask.hides(step.base + key) });
                let visible = task.plan.visible(row);
                if !range.contains(&key) || !visible.contains(&(step.base + key)) || is_hidden {
                    continue;
                }
                let part = |part: usize| {
                    let weights = weights[part * Layout::WEIGHT_PART..]
                        .as_ptr()
                        .cast::<bf16>();
                    // SAFETY: the key is one of the step, the row one of the block.
                    unsafe { *weights.add(index * KEYS + key) }.to_f32()
                };
                let tiles = task.layout.value_tiles;
                task.cpu.run(AddValue {
                    value: task.values_from(step.base + key),
                    weight: (0..task.layout.weight_parts).map(part).sum(),
                    sums: numbers(&mut self.kept.sums[index * tiles..][..tiles]),
                });
            }
        }
    }

    /// Writes the outputs.
    ///
    /// # Safety
    /// The rows lie in the problem, and nobody else writes them.
    pub unsafe fn store<E: Split>(self, task: &Task<'_, E>) {
        let (plan, tiles) = (task.plan, task.layout.value_tiles);
        let of = task.head_rows();
        for (index, row) in self.rows.enumerate() {
            let place = of.place(row);
            let highest = self.kept.highest[index / SIDE].0[index % SIDE];
            let total = self.kept.totals[index / SIDE].0[index % SIDE];
            let sums = numbers(&mut self.kept.sums[index * tiles..][..tiles]);
            for sum in &mut sums[..plan.sizes.value_channels] {
                *sum = if total == 0.0 { 0.0 } else { *sum / total };
            }
            task.cpu.run(Round {
                from: &sums[..plan.sizes.value_channels],
                to: plan.out.at(place),
                stride: plan.out.strides[3],
            });
            let Some(lse) = plan.lse else { continue };
            let logarithm = match total == 0.0 {
                true => f64::NEG_INFINITY,
                false => f64::from(highest) * LN_2 + f64::from(total).ln(),
            };
            // SAFETY: as the caller promises.
            unsafe { *lse.at(place) = f32::from_f64(logarithm) };
        }
    }
}
