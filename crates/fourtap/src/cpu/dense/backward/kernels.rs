//! The vector kernels of backward, beside the products it shares with forward.

use std::ops::Range;

use crate::cpu::dense::lanes::Lane;
use crate::cpu::dense::product::{Matrix, MatrixMut};
use crate::cpu::dense::rows::HeadRows;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, VectorReal, Vectorized, load_some, store_some};
use crate::dtype::{Element, Real};

/// Copies rows of a tensor with the axes B, Hq and Sq, widened.
pub(super) struct PackRows<'a, E: Element> {
    pub tensor: &'a Raw<E, 4>,
    pub of: HeadRows,
    /// They lie in the problem.
    pub rows: Range<usize>,
    pub channels: usize,
    pub to: MatrixMut<'a, E::Accumulator>,
}

impl<E: Vectorized> Kernel for PackRows<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (stride, lanes) = (self.tensor.strides[3], E::Lanes::<I>::COUNT);
        for (row, to) in self.rows.zip(self.to.numbers.chunks_mut(self.to.stride)) {
            let from = self.tensor.at(self.of.place(row));
            for first in (0..self.channels).step_by(lanes) {
                let some = lanes.min(self.channels - first);
                // SAFETY: the channels lie in the row, and in its place in `to`.
                unsafe {
                    let numbers = load_some::<E, I>(from, stride, first, some);
                    Access::<E::Accumulator>::store_first(numbers, to[first..].as_mut_ptr(), some);
                }
            }
        }
    }
}

/// The dot products of rows of a tensor and rows of numbers.
pub(super) struct Dots<'a, E: Element> {
    pub tensor: &'a Raw<E, 4>,
    pub of: HeadRows,
    /// They lie in the problem.
    pub rows: Range<usize>,
    pub channels: usize,
    pub with: Matrix<'a, E::Accumulator>,
    pub to: &'a mut Lane<E::Accumulator>,
}

impl<E: Vectorized> Kernel for Dots<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (stride, lanes) = (self.tensor.strides[3], E::Lanes::<I>::COUNT);
        let zero = E::Lanes::<I>::splat(E::Accumulator::ZERO);
        let with = self.with.numbers.chunks(self.with.stride);
        for ((row, with), to) in self.rows.zip(with).zip(&mut self.to.0) {
            let from = self.tensor.at(self.of.place(row));
            let mut sum = zero;
            for first in (0..self.channels).step_by(lanes) {
                let some = lanes.min(self.channels - first);
                // SAFETY: the channels lie in both rows.
                unsafe {
                    let numbers = load_some::<E, I>(from, stride, first, some);
                    let with: E::Lanes<I> =
                        Access::<E::Accumulator>::load_first(with[first..].as_ptr(), some);
                    sum = numbers.mul_add(with, sum);
                }
            }
            [*to, ..] = E::Lanes::<I>::sums([sum, zero, zero, zero]);
        }
    }
}

/// Turns the logits of a step into weights, and the gradients of the weights into those of the logits.
pub(super) struct Weigh<'a, R> {
    /// One per key.
    pub logits: &'a mut [Lane<R>],
    /// One per key, or none.
    pub grads: &'a mut [Lane<R>],
    /// The LSE as an exponent of 2.
    pub lse: &'a Lane<R>,
    pub delta: &'a Lane<R>,
    /// How many lanes are in use.
    pub lanes: usize,
}

impl<R: VectorReal> Kernel for Weigh<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        for first in (0..self.lanes).step_by(R::Vector::<I>::COUNT) {
            // SAFETY: the vector lies in each `Lane`.
            unsafe {
                let lse: R::Vector<I> = R::Vector::<I>::load(self.lse.0.as_ptr().add(first));
                let delta: R::Vector<I> = R::Vector::<I>::load(self.delta.0.as_ptr().add(first));
                for key in 0..self.logits.len() {
                    let at = self.logits[key].0.as_mut_ptr().add(first);
                    let logit: R::Vector<I> = R::Vector::<I>::load(at);
                    // Hidden keys are set to 0: minus infinity less an LSE of NaN is not minus infinity.
                    let weight = logit.sub(lse).exp2().where_seen(logit);
                    R::Vector::<I>::store(weight, at);
                    if key < self.grads.len() {
                        let at = self.grads[key].0.as_mut_ptr().add(first);
                        let grad = R::Vector::<I>::load(at).sub(delta).mul(weight);
                        R::Vector::<I>::store(grad.where_seen(logit), at);
                    }
                }
            }
        }
    }
}

/// Multiplies numbers with a factor.
pub(super) struct Scale<'a, R> {
    pub numbers: &'a mut [Lane<R>],
    pub factor: R,
}

impl<R: VectorReal> Kernel for Scale<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        for number in Lane::numbers_mut(self.numbers) {
            *number = *number * self.factor;
        }
    }
}

/// Multiplies rows of numbers with a factor, rounds them and writes them to rows of a tensor, which follow each other on its axis S.
pub(super) struct StoreRows<'a, E: Element> {
    pub from: Matrix<'a, E::Accumulator>,
    pub factor: E::Accumulator,
    pub channels: usize,
    /// The first row.
    pub to: *mut E,
    /// Strides from one row and from one channel to the next.
    pub strides: [isize; 2],
    /// They are writable, and nothing else writes them.
    pub count: usize,
}

impl<E: Vectorized> Kernel for StoreRows<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let lanes = E::Lanes::<I>::COUNT;
        let factor = E::Lanes::<I>::splat(self.factor);
        let rows = self.from.numbers.chunks(self.from.stride).take(self.count);
        for (row, from) in rows.enumerate() {
            let to = self.to.wrapping_offset(row as isize * self.strides[0]);
            for first in (0..self.channels).step_by(lanes) {
                let some = lanes.min(self.channels - first);
                // SAFETY: the channels lie in both rows.
                unsafe {
                    let numbers: E::Lanes<I> =
                        Access::<E::Accumulator>::load_first(from[first..].as_ptr(), some);
                    store_some::<E, I>(numbers.mul(factor), to, self.strides[1], first, some);
                }
            }
        }
    }
}

/// Adds numbers lane by lane: each key to its own, or all keys to one.
pub(super) struct AddLanes<'a, R> {
    /// One per key.
    pub from: &'a [Lane<R>],
    /// As many, or a single one.
    pub to: &'a mut [Lane<R>],
    /// How many lanes are in use; the others of `from` are garbage.
    pub lanes: usize,
}

impl<R: VectorReal> Kernel for AddLanes<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let last = self.to.len() - 1;
        for (key, Lane(from)) in self.from.iter().enumerate() {
            let Lane(to) = &mut self.to[key.min(last)];
            for (to, &from) in to[..self.lanes].iter_mut().zip(from) {
                *to += from;
            }
        }
    }
}
