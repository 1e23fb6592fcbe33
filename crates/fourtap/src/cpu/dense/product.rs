//! Matrix products with queries in the lanes: `K Q^T`, whose rows are keys, and `V^T P^T`, whose rows are channels.

use super::lanes::Lane;
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, VectorReal};

/// What is done with a product: store it scaled, or add it.
pub(super) const SCALED: bool = false;
pub(super) const ADDED: bool = true;

/// `left`, of rows and steps, times `right`, of steps and lanes.
pub(super) struct Product<'a, R, const THEN: bool> {
    /// All rows and steps are readable here.
    pub left: *const R,
    /// Stride from one row of `left` to the next.
    pub row: isize,
    /// Stride from one step of `left` to the next.
    pub step: isize,
    /// One per step.
    pub right: &'a [Lane<R>],
    /// One per row.
    pub out: &'a mut [Lane<R>],
    /// One per lane: the product times these is stored (`SCALED`), or `out` times these is added to it (`ADDED`).
    pub factors: &'a Lane<R>,
    /// How many lanes are in use.
    pub lanes: usize,
}

impl<R: VectorReal, const THEN: bool> Kernel for Product<'_, R, THEN> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        let vectors = self.lanes.div_ceil(R::Vector::<I>::COUNT);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            // Six rows of four vectors fill 32 registers, six of two fill 16: the fewest loads per multiplication.
            // SAFETY: the vectors lie in the lanes.
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

impl<R: VectorReal, const THEN: bool> Product<'_, R, THEN> {
    /// All rows of `VECTORS` vectors of lanes; returns `VECTORS`.
    ///
    /// # Safety
    /// The vectors lie in the lanes.
    #[inline(always)]
    unsafe fn columns<I: Isa, const VECTORS: usize>(&mut self, vector: usize) -> usize {
        let mut row = 0;
        while row < self.out.len() {
            let left = self.out.len() - row;
            // With a single vector, six sums would wait for each other.
            // SAFETY: the rows lie in `left` and `out`.
            row += unsafe {
                if left >= 12 && VECTORS == 1 {
                    self.tile::<I, VECTORS, 12>(vector, row)
                } else if left >= 6 {
                    self.tile::<I, VECTORS, 6>(vector, row)
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
        // SAFETY: rows, steps and lanes are those of the product.
        unsafe {
            let mut left = self.left.offset(row as isize * self.row);
            let mut right = self.right.as_ptr().cast::<R>().add(first);
            for _ in 0..self.right.len() {
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
                right = right.add(size_of::<Lane<R>>() / size_of::<R>());
            }
            for v in 0..VECTORS {
                let factor: R::Vector<I> =
                    R::Vector::<I>::load(self.factors.0.as_ptr().add(first + v * lanes));
                for r in 0..ROWS {
                    let out = self
                        .out
                        .as_mut_ptr()
                        .add(row + r)
                        .cast::<R>()
                        .add(first + v * lanes);
                    let result = match THEN {
                        SCALED => sums[r][v].mul(factor),
                        ADDED => R::Vector::<I>::load(out).mul_add(factor, sums[r][v]),
                    };
                    R::Vector::<I>::store(result, out);
                }
            }
        }
        ROWS
    }
}
