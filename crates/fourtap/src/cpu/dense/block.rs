//! A block of rows, one per lane, through all steps.

use std::f64::consts::LN_2;
use std::ops::Range;

use super::lanes::{KEYS, Lane, QUERIES};
use super::mask::KeptBiases;
use super::product::{DECAYED, Product, SCALED};
use super::rows::{Collect, Rows, Spread};
use super::seen::SeenByRows;
use super::softmax::{Softmax, Step};
use super::task::Task;
use crate::cpu::simd::{VectorReal, Vectorized};

/// A block of rows and their softmax state so far.
pub(super) struct Block<'a, R> {
    pub seen: SeenByRows<'a>,
    /// One per channel.
    queries: &'a mut [Lane<R>],
    /// One per channel.
    sums: &'a mut [Lane<R>],
    softmax: Softmax<R>,
}

impl<'a, R: VectorReal> Block<'a, R> {
    /// `rows`, at least one and at most [`QUERIES`], before the first step. `memory` has room for queries and sums.
    pub fn new<E: Vectorized<Accumulator = R>>(
        task: &Task<'a, E>,
        rows: Range<usize>,
        memory: &'a mut [Lane<R>],
    ) -> Self {
        let (plan, of) = (task.plan, task.head_rows());
        let (queries, sums) = memory.split_at_mut(plan.sizes.channels);
        task.cpu.run(Spread {
            tensor: &plan.query,
            of,
            rows: rows.clone(),
            to: queries,
        });
        sums.fill(Lane([R::ZERO; QUERIES]));
        Block {
            seen: SeenByRows::new(plan.problem, plan.mask.as_ref(), of, rows),
            queries,
            sums,
            softmax: Softmax::new(),
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
        // SAFETY: as the caller promises.
        let Some(seen) = (unsafe { self.seen.in_step(step) }) else {
            return;
        };
        let (sizes, rows) = (task.plan.sizes, self.seen.rows.clone());
        let keys = keys.after(seen.keys.start - step.start);
        let values = values.after(seen.keys.start - step.start);
        let weights = &mut weights[..seen.keys.len()];
        task.cpu.run(Product::<_, SCALED> {
            left: keys.first,
            row: keys.stride,
            step: 1,
            right: (&*self.queries).into(),
            out: (&mut *weights).into(),
            factors: &[task.plan.factor; QUERIES],
            columns: rows.len(),
        });
        let Range { start, end } = seen.keys;
        let is_whole = start.is_multiple_of(KEYS) && (seen.keys.len() == KEYS || end == sizes.keys);
        let number = task.plan.bias_tile(task.head, rows.start, start);
        let tile = is_whole.then_some(number);
        self.seen.apply(&task.cpu, &seen, weights, biases, tile);
        task.cpu.run(Step {
            softmax: &mut self.softmax,
            logits: weights,
            lanes: rows.len(),
        });
        // SAFETY: as the caller promises.
        unsafe {
            let is_ordinary =
                seen.are_seen_by_all || values.are_finite(weights.len(), sizes.value_channels);
            if !is_ordinary {
                return self.add_seen(&seen.keys, values, weights);
            }
        }
        task.cpu.run(Product::<_, DECAYED> {
            left: values.first,
            row: 1,
            step: values.stride,
            right: (&*weights).into(),
            out: (&mut *self.sums).into(),
            factors: &self.softmax.decay.0,
            columns: rows.len(),
        });
    }

    /// Adds only the values that each row sees: a weight of 0 does not hide an infinite value or NaN.
    ///
    /// # Safety
    /// The values of these keys are readable.
    unsafe fn add_seen(&mut self, keys: &Range<usize>, values: Rows<R>, weights: &[Lane<R>]) {
        for lane in 0..self.seen.rows.len() {
            // SAFETY: the key is one of the problem's.
            let seen = keys.clone().map(|key| unsafe { self.seen.sees(lane, key) });
            let seen: Vec<usize> = (seen.enumerate())
                .filter_map(|(index, is_seen)| is_seen.then_some(index))
                .collect();
            for (channel, Lane(sums)) in self.sums.iter_mut().enumerate() {
                let mut sum = R::ZERO;
                for &index in &seen {
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
        let SeenByRows { of, rows, .. } = self.seen;
        task.cpu.run(Collect {
            from: self.sums,
            divisors: &self.softmax.total,
            of,
            rows: rows.clone(),
            tensor: &plan.out,
        });
        let Some(lse) = plan.lse else { return };
        for (lane, row) in rows.enumerate() {
            let (highest, total) = (self.softmax.highest.0[lane], self.softmax.total.0[lane]);
            let logarithm = match total == R::ZERO {
                true => f64::NEG_INFINITY,
                false => highest.to_f64() * LN_2 + total.to_f64().ln(),
            };
            // SAFETY: as the caller promises.
            unsafe { *lse.at(of.place(row)) = R::from_f64(logarithm) };
        }
    }
}
