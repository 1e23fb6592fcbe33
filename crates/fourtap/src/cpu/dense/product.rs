//! Matrix products of a matrix of numbers, read one at a time, and one of vectors.
//!
//! With queries in the lanes: `K Q^T` and `V dO^T`, whose rows are keys, and `V^T P^T` and `K^T dS^T`, whose rows are channels. With
//! channels in the lanes: `P^T dO` and `dS^T Q`, whose rows are keys.

use super::lanes::{Lane, QUERIES};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, MAX_LANES, VectorReal};

/// What is done with a product: store it times factors, add it to what is there times factors, or just add it.
pub(super) const SCALED: u8 = 0;
pub(super) const DECAYED: u8 = 1;
pub(super) const ADDED: u8 = 2;

/// Rows of numbers, each a whole number of vectors apart from the next.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, R> {
    pub numbers: &'a [R],
    pub stride: usize,
}

/// The same, to write.
pub(super) struct MatrixMut<'a, R> {
    pub numbers: &'a mut [R],
    pub stride: usize,
}

impl<R> Matrix<'_, R> {
    pub fn rows(&self) -> usize {
        self.numbers.len() / self.stride
    }
}

impl<'a, R> From<&'a [Lane<R>]> for Matrix<'a, R> {
    fn from(lanes: &'a [Lane<R>]) -> Self {
        Matrix {
            numbers: Lane::numbers(lanes),
            stride: QUERIES,
        }
    }
}

impl<'a, R> From<&'a mut [Lane<R>]> for MatrixMut<'a, R> {
    fn from(lanes: &'a mut [Lane<R>]) -> Self {
        MatrixMut {
            numbers: Lane::numbers_mut(lanes),
            stride: QUERIES,
        }
    }
}

/// The stride of rows of so many columns, whose last vector may reach past the last column.
pub(super) const fn whole_vectors(columns: usize) -> usize {
    columns.next_multiple_of(MAX_LANES)
}

/// `left`, of rows and steps, times `right`, of steps and columns.
pub(super) struct Product<'a, R, const THEN: u8> {
    /// All rows and steps are readable here.
    pub left: *const R,
    /// Stride from one row of `left` to the next.
    pub row: isize,
    /// Stride from one step of `left` to the next.
    pub step: isize,
    /// One row per step.
    pub right: Matrix<'a, R>,
    /// One row per row.
    pub out: MatrixMut<'a, R>,
    /// One per column: the product times these is stored (`SCALED`), or `out` times these is added to it (`DECAYED`).
    pub factors: &'a [R],
    /// How many are in use; the rest of the last vector is garbage.
    pub columns: usize,
}

impl<R: VectorReal, const THEN: u8> Kernel for Product<'_, R, THEN> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        let whole = whole_vectors(self.columns);
        assert!(
            whole <= self.right.stride
                && whole <= self.out.stride
                && (THEN == ADDED || whole <= self.factors.len()),
            "vectors lie in their rows"
        );
        let vectors = self.columns.div_ceil(R::Vector::<I>::COUNT);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            // Six rows of four vectors fill 32 registers, six of two fill 16: the fewest loads per multiplication.
            // SAFETY: the vectors lie in the rows.
            vector += unsafe {
                if left >= 4 && I::REGISTERS >= 32 {
                    self.columns::<I, 4>(vector)
                } else if left >= 2 {
                    self.columns::<I, 2>(vector)
                } else {
                    self.columns::<I, 1>(vector)
                }
            };
        }
    }
}

impl<R: VectorReal, const THEN: u8> Product<'_, R, THEN> {
    /// All rows of `VECTORS` vectors of columns; returns `VECTORS`.
    ///
    /// # Safety
    /// The vectors lie in the rows.
    #[inline(always)]
    unsafe fn columns<I: Isa, const VECTORS: usize>(&mut self, vector: usize) -> usize {
        let rows = self.out.numbers.len() / self.out.stride;
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            // With a single vector, six sums would wait for each other.
            // SAFETY: the rows lie in `left` and `out`.
            row += unsafe {
                if left >= 12 && VECTORS == 1 {
                    self.tile::<I, VECTORS, 12>(vector, row)
                } else if left >= 6 {
                    self.tile::<I, VECTORS, 6>(vector, row)
                } else if left >= 4 {
                    self.tile::<I, VECTORS, 4>(vector, row)
                } else if left >= 2 {
                    self.tile::<I, VECTORS, 2>(vector, row)
                } else {
                    self.tile::<I, VECTORS, 1>(vector, row)
                }
            };
        }
        VECTORS
    }

    /// `ROWS` rows of `VECTORS` vectors, which stay in registers; returns `ROWS`.
    ///
    /// # Safety
    /// They lie in the product.
    #[inline(always)]
    unsafe fn tile<I: Isa, const VECTORS: usize, const ROWS: usize>(
        &mut self,
        vector: usize,
        row: usize,
    ) -> usize {
        let lanes = R::Vector::<I>::COUNT;
        let first = vector * lanes;
        let mut sums = [[R::Vector::<I>::splat(R::ZERO); VECTORS]; ROWS];
        // SAFETY: rows, steps and columns are those of the product.
        unsafe {
            let mut left = self.left.offset(row as isize * self.row);
            let mut right = self.right.numbers.as_ptr().add(first);
            for _ in 0..self.right.rows() {
                let mut columns = [R::Vector::<I>::splat(R::ZERO); VECTORS];
                for v in 0..VECTORS {
                    columns[v] = R::Vector::<I>::load(right.add(v * lanes));
                }
                for r in 0..ROWS {
                    let factor = R::Vector::<I>::splat(*left.offset(r as isize * self.row));
                    for v in 0..VECTORS {
                        sums[r][v] = columns[v].mul_add(factor, sums[r][v]);
                    }
                }
                left = left.wrapping_offset(self.step);
                right = right.wrapping_add(self.right.stride);
            }
            for r in 0..ROWS {
                let row = (row + r) * self.out.stride;
                let out = self.out.numbers.as_mut_ptr().add(row + first);
                for v in 0..VECTORS {
                    let out = out.add(v * lanes);
                    let result = if THEN == ADDED {
                        R::Vector::<I>::load(out).add(sums[r][v])
                    } else {
                        let factors = self.factors.as_ptr().add(first + v * lanes);
                        let factors: R::Vector<I> = R::Vector::<I>::load(factors);
                        match THEN {
                            DECAYED => R::Vector::<I>::load(out).mul_add(factors, sums[r][v]),
                            _ => sums[r][v].mul(factors),
                        }
                    };
                    R::Vector::<I>::store(result, out);
                }
            }
        }
        ROWS
    }
}
