//! One task: a block of rows of one head of keys, all steps.

use std::f64::consts::LN_2;
use std::ops::Range;

use super::plan::{Plan, Workspace};
use super::product::{ADDED, Product, SCALED};
use super::rows::{Collect, Pack, Rows, Spread};
use super::softmax::{Softmax, Step};
use super::{KEYS, Lane, QUERIES};
use crate::cpu::Cpu;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{Vectorized, prefetch};
use crate::dtype::{Element, Real};

/// A block of rows of one head of keys. The kernels it runs are many and short, so that each is compiled once for the
/// type it computes in, not for every type of element.
pub(super) struct Block<'a, E: Vectorized> {
    pub cpu: Cpu,
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    /// Of keys and values.
    pub head: usize,
    /// Queries of all heads of the group, at least one, at most [`QUERIES`].
    pub rows: Range<usize>,
}

impl<E: Vectorized> Block<'_, E> {
    /// Computes the rows.
    ///
    /// # Safety
    /// They lie in the problem, and nobody else writes them.
    pub unsafe fn run(&self, memory: &mut Vec<Lane<E::Accumulator>>) {
        let plan = self.plan;
        // Does nothing from a worker's second task on. What a task leaves behind, the next one overwrites.
        let zeros = Lane([E::Accumulator::ZERO; QUERIES]);
        memory.resize(plan.workspace(), zeros);
        let space = Workspace::new(memory, &plan.sizes);
        self.cpu.run(Spread {
            plan,
            sequence: self.sequence,
            head: self.head,
            rows: self.rows.clone(),
            to: space.queries,
        });
        for channel in 0..plan.sizes.value_channels {
            // SAFETY: the workspace has a sum for each channel.
            unsafe { *space.sums.add(channel) = zeros };
        }
        let mut softmax = Softmax::new();
        let first = plan.visible(self.rows.start);
        let last = plan.visible(self.rows.end - 1);
        let mut start = first.start;
        while start < last.end {
            let keys = start..((start / KEYS + 1) * KEYS).min(last.end);
            let all_seen = last.start <= keys.start && keys.end <= first.end;
            start = keys.end;
            // SAFETY: the last row sees keys up to `last.end`, so these lie in the problem.
            unsafe { self.step(&space, &mut softmax, keys, all_seen) };
        }
        self.cpu.run(Collect {
            plan,
            sequence: self.sequence,
            head: self.head,
            rows: self.rows.clone(),
            from: space.sums,
            divisors: &softmax.total,
        });
        // SAFETY: as the caller promises.
        unsafe { self.store_lse(&softmax) };
    }

    /// Takes some keys into account.
    ///
    /// # Safety
    /// They lie in the problem, at most [`KEYS`].
    unsafe fn step(
        &self,
        space: &Workspace<E::Accumulator>,
        softmax: &mut Softmax<E::Accumulator>,
        keys: Range<usize>,
        all_seen: bool,
    ) {
        let (plan, sizes, lanes) = (self.plan, self.plan.sizes, self.rows.len());
        self.prefetch(&plan.value, &keys, sizes.value_channels);
        let key_rows = self.rows_of(&plan.key, &keys, sizes.channels, space.keys);
        self.cpu.run(Product::<_, SCALED> {
            left: key_rows.first,
            row: key_rows.stride,
            step: 1,
            rows: keys.len(),
            steps: sizes.channels,
            right: space.queries,
            out: space.weights,
            factors: &Lane([plan.factor; QUERIES]),
            lanes,
        });
        if !all_seen {
            // SAFETY: the logits of these keys were just computed.
            unsafe { self.hide(space, keys.clone()) };
        }
        self.cpu.run(Step {
            softmax,
            logits: space.weights,
            keys: keys.len(),
            lanes,
        });
        let channels = sizes.value_channels;
        let values = self.rows_of(&plan.value, &keys, channels, space.values);
        // SAFETY: the weights of these keys were just computed, and these are their values.
        unsafe {
            if !all_seen && !values.are_finite(keys.len(), channels) {
                return self.add_seen(space, &softmax.decay, keys, values);
            }
        }
        self.cpu.run(Product::<_, ADDED> {
            left: values.first,
            row: 1,
            step: values.stride,
            rows: channels,
            steps: keys.len(),
            right: space.weights,
            out: space.sums,
            factors: &softmax.decay,
            lanes,
        });
    }

    /// Asks for values while keys are worked on.
    fn prefetch(&self, tensor: &Raw<E, 4>, keys: &Range<usize>, channels: usize) {
        for key in keys.clone() {
            prefetch(
                tensor.at([self.sequence, self.head, key]),
                channels * size_of::<E>(),
            );
        }
    }

    /// Rows of keys or values as they lie, or copied to `room` if they cannot be used so.
    fn rows_of(
        &self,
        tensor: &Raw<E, 4>,
        keys: &Range<usize>,
        channels: usize,
        room: *mut E::Accumulator,
    ) -> Rows<E::Accumulator> {
        let [.., row, channel] = tensor.strides;
        let from = tensor.at([self.sequence, self.head, keys.start]);
        // Rows that lie apart by a power of two push each other out of the cache: copying them costs less.
        let dense = channel == 1 && row == channels as isize;
        if E::DTYPE == E::Accumulator::DTYPE && dense {
            return Rows {
                first: from.cast(),
                stride: row,
            };
        }
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

    /// Makes the logits of keys that a row does not see minus infinity. Ranges of keys move one way from row to row, so a
    /// key is hidden from the first rows, past whose range it lies, and from the last.
    ///
    /// # Safety
    /// The logits of these keys are there.
    unsafe fn hide(&self, space: &Workspace<E::Accumulator>, keys: Range<usize>) {
        let row = |lane: usize| self.plan.visible(self.rows.start + lane);
        let count = self.rows.len();
        let (mut past, mut reached) = (0, 0);
        for (index, key) in keys.enumerate() {
            while past < count && row(past).end <= key {
                past += 1;
            }
            while reached < count && row(reached).start <= key {
                reached += 1;
            }
            // SAFETY: the caller's logits, which nobody else uses.
            let logits = unsafe { &mut (*space.weights.add(index)).0 };
            logits[..past].fill(E::Accumulator::NEG_INFINITY);
            logits[reached..count].fill(E::Accumulator::NEG_INFINITY);
        }
    }

    /// Adds values row by row, only those the row sees: a weight of 0 does not hide an infinite value or NaN.
    ///
    /// # Safety
    /// The weights of these keys, and their values, are there.
    unsafe fn add_seen(
        &self,
        space: &Workspace<E::Accumulator>,
        decay: &Lane<E::Accumulator>,
        keys: Range<usize>,
        values: Rows<E::Accumulator>,
    ) {
        for lane in 0..self.rows.len() {
            let visible = self.plan.visible(self.rows.start + lane);
            let seen = visible.start.max(keys.start)..visible.end.min(keys.end);
            for channel in 0..self.plan.sizes.value_channels {
                let mut sum = E::Accumulator::ZERO;
                for index in seen.clone().map(|key| key - keys.start) {
                    // SAFETY: the key is one of the step's, the channel one of the value's.
                    sum += unsafe {
                        let value = values.first.offset(index as isize * values.stride);
                        (*space.weights.add(index)).0[lane] * *value.add(channel)
                    };
                }
                // SAFETY: as above.
                let total = unsafe { &mut (*space.sums.add(channel)).0[lane] };
                *total = total.fused(decay.0[lane], sum);
            }
        }
    }

    /// Writes `lse`, if it is wanted.
    ///
    /// # Safety
    /// The rows lie in the problem, and nobody else writes them.
    unsafe fn store_lse(&self, softmax: &Softmax<E::Accumulator>) {
        let Some(lse) = self.plan.lse else { return };
        for (lane, row) in self.rows.clone().enumerate() {
            let [h, q] = self.plan.place(self.head, row);
            let (highest, total) = (softmax.highest.0[lane], softmax.total.0[lane]);
            let logarithm = match total == E::Accumulator::ZERO {
                true => f64::NEG_INFINITY,
                false => highest.to_f64() * LN_2 + total.to_f64().ln(),
            };
            // SAFETY: as the caller promises.
            unsafe { *lse.at([self.sequence, h, q]) = Element::from_f64(logarithm) };
        }
    }
}
