//! A block of rows, one per lane, through all steps.

use std::f64::consts::LN_2;
use std::ops::Range;

use super::lanes::{KEYS, Lane, QUERIES};
use super::mask::{self, AddBias, Hide, KeptBiases, MaskRow, Seen, SeenBits};
use super::plan::Plan;
use super::product::{ADDED, Product, SCALED};
use super::rows::{Collect, Rows, Spread};
use super::softmax::{Softmax, Step};
use super::task::Task;
use crate::cpu::simd::{VectorReal, Vectorized};
use crate::dtype::Element;

/// A block of rows and their softmax state so far.
pub(super) struct Block<'a, R> {
    rows: Range<usize>,
    /// The keys that some row sees.
    pub seen: Range<usize>,
    /// The keys that every row sees.
    seen_by_all: Range<usize>,
    /// One per channel.
    queries: &'a mut [Lane<R>],
    /// One per channel.
    sums: &'a mut [Lane<R>],
    softmax: Softmax<R>,
    /// Of each row, or one that is that of all; none without a mask.
    mask: Vec<MaskRow>,
}

impl<'a, R: VectorReal> Block<'a, R> {
    /// `rows`, at least one and at most [`QUERIES`], before the first step. `memory` has room for queries and sums.
    pub fn new<E: Vectorized<Accumulator = R>>(
        task: &Task<'_, E>,
        rows: Range<usize>,
        memory: &'a mut [Lane<R>],
    ) -> Self {
        let (queries, sums) = memory.split_at_mut(task.plan.sizes.channels);
        task.cpu.run(Spread {
            plan: task.plan,
            sequence: task.sequence,
            head: task.head,
            rows: rows.clone(),
            to: queries,
        });
        sums.fill(Lane([R::ZERO; QUERIES]));
        let places = rows.clone().map(|row| task.plan.place(task.head, row));
        let mask = task
            .plan
            .mask
            .as_ref()
            .map(|mask| mask::rows_of(mask, task.sequence, places));
        let first = task.plan.visible(rows.start);
        let last = task.plan.visible(rows.end - 1);
        Block {
            rows,
            seen: first.start..last.end,
            seen_by_all: last.start..first.end,
            queries,
            sums,
            softmax: Softmax::new(),
            mask: mask.unwrap_or_default(),
        }
    }

    /// Adds the visible keys of one step.
    ///
    /// # Safety
    /// The keys' rows and their values' are readable.
    pub unsafe fn step<E: Vectorized<Accumulator = R>>(
        &mut self,
        task: &Task<'_, E>,
        step: &Range<usize>,
        keys: Rows<R>,
        values: Rows<R>,
        weights: &mut [Lane<R>],
        biases: &mut KeptBiases<'_, R>,
    ) {
        let seen = self.seen.start.max(step.start)..self.seen.end.min(step.end);
        if seen.is_empty() {
            return;
        }
        let bits = match task.plan.mask {
            // SAFETY: these keys are the problem's; a step has no more.
            Some(mask) if mask.is_boolean() => Some(unsafe { SeenBits::new(&self.mask, &seen) }),
            _ => None,
        };
        let by_mask = match &bits {
            Some(bits) => bits.seen(self.mask.len(), seen.len()),
            None if self.mask.is_empty() => Seen::Everything,
            None => Seen::Some,
        };
        if by_mask == Seen::Nothing {
            return;
        }
        let (sizes, lanes) = (task.plan.sizes, self.rows.len());
        let keys = keys.after(seen.start - step.start);
        let values = values.after(seen.start - step.start);
        let weights = &mut weights[..seen.len()];
        task.cpu.run(Product::<_, SCALED> {
            left: keys.first,
            row: keys.stride,
            step: 1,
            right: self.queries,
            out: weights,
            factors: &Lane([task.plan.factor; QUERIES]),
            lanes,
        });
        let all = &self.seen_by_all;
        let in_every_band = all.start <= seen.start && seen.end <= all.end;
        if !in_every_band {
            self.hide(task.plan, &seen, weights);
        }
        match bits {
            Some(bits) if by_mask == Seen::Some => task.cpu.run(Hide {
                seen: bits,
                is_same_for_rows: self.mask.len() == 1,
                logits: weights,
            }),
            None if by_mask == Seen::Some => {
                let is_whole = seen.start.is_multiple_of(KEYS)
                    && (seen.len() == KEYS || seen.end == sizes.keys);
                let number = task.plan.bias_tile(task.head, self.rows.start, seen.start);
                task.cpu.run(AddBias {
                    rows: &self.mask,
                    keys: seen.clone(),
                    logits: weights,
                    biases,
                    tile: is_whole.then_some(number),
                });
            }
            _ => {}
        }
        let seen_by_all = in_every_band && by_mask == Seen::Everything;
        task.cpu.run(Step {
            softmax: &mut self.softmax,
            logits: weights,
            lanes,
        });
        // SAFETY: as the caller promises.
        unsafe {
            if !seen_by_all && !values.are_finite(seen.len(), sizes.value_channels) {
                return self.add_seen(task.plan, &seen, values, weights);
            }
        }
        task.cpu.run(Product::<_, ADDED> {
            left: values.first,
            row: 1,
            step: values.stride,
            right: weights,
            out: self.sums,
            factors: &self.softmax.decay,
            lanes,
        });
    }

    /// Sets the logits of keys outside of the band to minus infinity. Visible ranges only move forward from row to row, so a
    /// key is hidden from the first rows, whose range ends before it, and from the last.
    fn hide<E: Element>(&self, plan: &Plan<'_, E>, keys: &Range<usize>, logits: &mut [Lane<R>]) {
        let row = |lane: usize| plan.visible(self.rows.start + lane);
        let count = self.rows.len();
        let (mut past, mut reached) = (0, 0);
        for (key, Lane(logits)) in keys.clone().zip(logits) {
            while past < count && row(past).end <= key {
                past += 1;
            }
            while reached < count && row(reached).start <= key {
                reached += 1;
            }
            logits[..past].fill(R::NEG_INFINITY);
            logits[reached..count].fill(R::NEG_INFINITY);
        }
    }

    /// Adds only the values that each row sees: a weight of 0 does not hide an infinite value or NaN.
    ///
    /// # Safety
    /// The values of these keys are readable.
    unsafe fn add_seen<E: Element>(
        &mut self,
        plan: &Plan<'_, E>,
        keys: &Range<usize>,
        values: Rows<R>,
        weights: &[Lane<R>],
    ) {
        for (lane, row) in self.rows.clone().enumerate() {
            let visible = plan.visible(row);
            let mask = self.mask.get(lane).or(self.mask.first());
            // SAFETY: the key is one of the problem's.
            let hides = |key: usize| mask.is_some_and(|mask| unsafe { mask.hides(key) });
            for (channel, Lane(sums)) in self.sums.iter_mut().enumerate() {
                let mut sum = R::ZERO;
                for (index, _) in keys
                    .clone()
                    .enumerate()
                    .filter(|(_, key)| visible.contains(key) && !hides(*key))
                {
                    // SAFETY: the key is one of these, the channel one of its value's.
                    let value = unsafe { *values.after(index).first.add(channel) };
                    sum += weights[index].0[lane] * value;
                }
                sums[lane] = sums[lane].fused(self.softmax.decay.0[lane], sum);
            }
        }
    }

    /// Writes the outputs.
    ///
    /// # Safety
    /// The rows lie in the problem, and nothing else writes them.
    pub unsafe fn store<E: Vectorized<Accumulator = R>>(self, task: &Task<'_, E>) {
        let plan = task.plan;
        task.cpu.run(Collect {
            plan,
            sequence: task.sequence,
            head: task.head,
            rows: self.rows.clone(),
            from: self.sums,
            divisors: &self.softmax.total,
        });
        let Some(lse) = plan.lse else { return };
        for (lane, row) in self.rows.enumerate() {
            let [h, q] = plan.place(task.head, row);
            let (highest, total) = (self.softmax.highest.0[lane], self.softmax.total.0[lane]);
            let logarithm = match total == R::ZERO {
                true => f64::NEG_INFINITY,
                false => highest.to_f64() * LN_2 + total.to_f64().ln(),
            };
            // SAFETY: as the caller promises.
            unsafe { *lse.at([task.sequence, h, q]) = R::from_f64(logarithm) };
        }
    }
}
