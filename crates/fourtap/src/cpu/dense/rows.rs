//! Packing and unpacking of tensor rows of any strides and type.

use std::ops::Range;

use super::lanes::Lane;
use super::plan::Plan;
use crate::cpu::simd::{
    Access, Isa, Kernel, Lanes, MAX_LANES, Vectorized, load_some, store_strided,
};
use crate::dtype::{Element, Real};

/// Rows of contiguous numbers.
#[derive(Clone, Copy)]
pub(super) struct Rows<R> {
    pub first: *const R,
    /// Stride from one row to the next.
    pub stride: isize,
}

impl<R: Real> Rows<R> {
    /// The rows after the first `count`.
    pub fn after(self, count: usize) -> Self {
        Rows {
            first: self.first.wrapping_offset(count as isize * self.stride),
            ..self
        }
    }

    /// Whether no number is infinite or NaN.
    ///
    /// # Safety
    /// `count` rows of `channels` are readable.
    pub unsafe fn are_finite(&self, count: usize, channels: usize) -> bool {
        (0..count).all(|row| {
            // SAFETY: as the caller promises.
            let row = unsafe {
                let first = self.first.offset(row as isize * self.stride);
                std::slice::from_raw_parts(first, channels)
            };
            // Infinity times 0 is NaN, and NaN stays.
            let mut zero = R::ZERO;
            for &number in row {
                zero += number * R::ZERO;
            }
            zero == R::ZERO
        })
    }
}

/// Copies rows, widened and without gaps.
pub(super) struct Pack<E: Element> {
    /// The rows are readable here.
    pub from: *const E,
    /// Strides from one row and from one channel to the next.
    pub strides: [isize; 2],
    pub count: usize,
    pub channels: usize,
    /// Room for them.
    pub to: *mut E::Accumulator,
}

impl<E: Vectorized> Kernel for Pack<E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let lanes = E::Lanes::<I>::COUNT;
        for row in 0..self.count {
            let from = self.from.wrapping_offset(row as isize * self.strides[0]);
            for first in (0..self.channels).step_by(lanes) {
                let some = lanes.min(self.channels - first);
                // SAFETY: the channels lie in the row, and in its place in `to`.
                unsafe {
                    let numbers = load_some::<E, I>(from, self.strides[1], first, some);
                    let to = self.to.add(row * self.channels + first);
                    Access::<E::Accumulator>::store_first(numbers, to, some);
                }
            }
        }
    }
}

/// Transposes queries into lanes, one row per lane.
pub(super) struct Spread<'a, E: Element> {
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    pub head: usize,
    /// They lie in the problem.
    pub rows: Range<usize>,
    /// One per channel.
    pub to: &'a mut [Lane<E::Accumulator>],
}

impl<E: Vectorized> Kernel for Spread<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (plan, lanes) = (self.plan, E::Lanes::<I>::COUNT);
        let channels = self.to.len();
        for (lane, row) in self.rows.enumerate() {
            let [h, q] = plan.place(self.head, row);
            let from = plan.query.at([self.sequence, h, q]);
            for first in (0..channels).step_by(lanes) {
                let some = lanes.min(channels - first);
                let mut numbers = [E::Accumulator::ZERO; MAX_LANES];
                // SAFETY: the channels lie in the query and in `to`; the array has room for any vector.
                unsafe {
                    let vector = load_some::<E, I>(from, plan.query.strides[3], first, some);
                    Access::<E::Accumulator>::store(vector, numbers.as_mut_ptr());
                    for (i, &number) in numbers.iter().enumerate().take(some) {
                        self.to[first + i].0[lane] = number;
                    }
                }
            }
        }
    }
}

/// Divides sums, rounds them and transposes them from lanes to rows of `out`.
pub(super) struct Collect<'a, E: Element> {
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    pub head: usize,
    /// They lie in the problem, and nothing else writes them.
    pub rows: Range<usize>,
    /// One per channel.
    pub from: &'a [Lane<E::Accumulator>],
    /// The divisor of each row; a row divided by 0 is 0.
    pub divisors: &'a Lane<E::Accumulator>,
}

impl<E: Vectorized> Kernel for Collect<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (plan, lanes) = (self.plan, E::Lanes::<I>::COUNT);
        let (channels, stride) = (self.from.len(), plan.out.strides[3]);
        for (lane, row) in self.rows.enumerate() {
            let [h, q] = plan.place(self.head, row);
            let to = plan.out.at([self.sequence, h, q]);
            let divisor = self.divisors.0[lane];
            for first in (0..channels).step_by(lanes) {
                let some = lanes.min(channels - first);
                let mut numbers = [E::Accumulator::ZERO; MAX_LANES];
                // SAFETY: the channels lie in `from` and in the row; the array has room for any vector.
                unsafe {
                    if divisor != E::Accumulator::ZERO {
                        for (i, number) in numbers.iter_mut().enumerate().take(some) {
                            *number = self.from[first + i].0[lane] / divisor;
                        }
                    }
                    let vector: E::Lanes<I> = Access::<E::Accumulator>::load(numbers.as_ptr());
                    let to = to.offset(first as isize * stride);
                    match stride {
                        1 => Access::<E>::store_first(vector, to, some),
                        _ => store_strided::<E, _>(vector, to, stride, some),
                    }
                }
            }
        }
    }
}
