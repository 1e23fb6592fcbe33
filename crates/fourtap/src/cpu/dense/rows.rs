//! Packing and unpacking of tensor rows of any strides and type.

use std::ops::Range;

use super::lanes::Lane;
use super::product::Matrix;
use crate::cpu::Cpu;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, MAX_LANES, Vectorized, load_some, store_some};
use crate::dtype::{Element, Real};

/// The rows that share a head of keys: the queries of all query heads of a group, or of a single one. The heads of a query, which see
/// the same keys, are neighbours.
#[derive(Clone, Copy)]
pub(super) struct HeadRows {
    pub sequence: usize,
    pub first_head: usize,
    /// Query heads.
    pub heads: usize,
}

impl HeadRows {
    /// Index of a row on the axes B, Hq and Sq.
    #[inline(always)]
    pub fn place(&self, row: usize) -> [usize; 3] {
        let head = self.first_head + row % self.heads;
        [self.sequence, head, self.query(row)]
    }

    /// Index of a row on the axis Sq.
    #[inline(always)]
    pub fn query(&self, row: usize) -> usize {
        row / self.heads
    }
}

/// Rows of contiguous numbers.
#[derive(Clone, Copy)]
pub(super) struct Rows<R> {
    pub first: *const R,
    /// Stride from one row to the next.
    pub stride: isize,
}

impl<R: Real> Rows<R> {
    /// Rows of keys or values in place, or packed into `room` if they have gaps or need widening.
    pub fn load<E: Vectorized<Accumulator = R>>(
        cpu: &Cpu,
        tensor: &Raw<E, 4>,
        [sequence, head]: [usize; 2],
        keys: &Range<usize>,
        channels: usize,
        room: &mut [Lane<R>],
    ) -> Self {
        let [.., row, channel] = tensor.strides;
        let from = tensor.at([sequence, head, keys.start]);
        // Rows with gaps are packed: measured to cost less than reading them in place again for each block.
        let dense = channel == 1 && row == channels as isize;
        if E::DTYPE == R::DTYPE && dense {
            return Rows {
                first: from.cast(),
                stride: row,
            };
        }
        let room = Lane::numbers_mut(room).as_mut_ptr();
        cpu.run(Pack {
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

    /// The rows of a matrix.
    pub fn of(matrix: Matrix<'_, R>) -> Self {
        Rows {
            first: matrix.numbers.as_ptr(),
            stride: matrix.stride as isize,
        }
    }

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
            // Infinity times 0 is NaN, and NaN stays. Without a sum, which would have to be in order.
            let mut finite = true;
            for &number in row {
                finite &= number * R::ZERO == R::ZERO;
            }
            finite
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

/// Transposes rows of a tensor with the axes B, Hq and Sq into lanes, one row per lane.
pub(super) struct Spread<'a, E: Element> {
    pub tensor: &'a Raw<E, 4>,
    pub of: HeadRows,
    /// They lie in the problem.
    pub rows: Range<usize>,
    /// One per channel.
    pub to: &'a mut [Lane<E::Accumulator>],
}

impl<E: Vectorized> Kernel for Spread<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (tensor, lanes) = (self.tensor, E::Lanes::<I>::COUNT);
        let channels = self.to.len();
        for (lane, row) in self.rows.enumerate() {
            let from = tensor.at(self.of.place(row));
            for first in (0..channels).step_by(lanes) {
                let some = lanes.min(channels - first);
                let mut numbers = [E::Accumulator::ZERO; MAX_LANES];
                // SAFETY: the channels lie in the row and in `to`; the array has room for any vector.
                unsafe {
                    let vector = load_some::<E, I>(from, tensor.strides[3], first, some);
                    Access::<E::Accumulator>::store(vector, numbers.as_mut_ptr());
                    for (i, &number) in numbers.iter().enumerate().take(some) {
                        self.to[first + i].0[lane] = number;
                    }
                }
            }
        }
    }
}

/// Divides sums, rounds them and transposes them from lanes to rows of a tensor.
pub(super) struct Collect<'a, E: Element> {
    /// One per channel.
    pub from: &'a [Lane<E::Accumulator>],
    /// The divisor of each row; a row divided by 0 is 0.
    pub divisors: &'a Lane<E::Accumulator>,
    pub of: HeadRows,
    /// They lie in the problem, and nothing else writes them.
    pub rows: Range<usize>,
    pub tensor: &'a Raw<E, 4>,
}

impl<E: Vectorized> Kernel for Collect<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (tensor, lanes) = (self.tensor, E::Lanes::<I>::COUNT);
        let channels = self.from.len();
        for (lane, row) in self.rows.enumerate() {
            let to = tensor.at(self.of.place(row));
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
                    store_some::<E, I>(vector, to, tensor.strides[3], first, some);
                }
            }
        }
    }
}
