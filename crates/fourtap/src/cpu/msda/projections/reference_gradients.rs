//! Backward, gradient of the reference points.

use super::gradients::only;
use super::place::Projected;
use crate::cpu::msda::coordinates::Coordinates;
use crate::cpu::raw::Raw;
use crate::cpu::workspace::workspaces;
use crate::dtype::{Element, Real};
use crate::error::Result;
use crate::msda::projections::ProjectedProblem;
use crate::tensor::ViewMut;

/// The gradient by reference points.
///
/// A row has a sum for each of its reference points' coordinates. Where a reference point stands for several rows, these
/// sums are kept and added in the order of the rows, so that the result does not depend on how the work was split.
pub(super) struct ReferenceGradients<E: Element> {
    tensor: Coordinates<E, 5>,
    /// Sizes of all five axes.
    shape: [usize; 5],
    images: usize,
    queries: usize,
    /// For each sample of a head: its reference point among those of the row.
    points: Vec<usize>,
    /// Where a reference point stands for several rows: the sums of each row.
    by_row: Option<RowSums<E::Accumulator>>,
}

/// Numbers of each row.
struct RowSums<R> {
    /// By row and coordinate, in `memory`.
    sums: Raw<R, 2>,
    #[expect(dead_code, reason = "owns what `sums` points to")]
    memory: Vec<R>,
}

impl<E: Element> ReferenceGradients<E> {
    pub fn new(problem: &ProjectedProblem, gradient: &ViewMut<'_>) -> Result<Self> {
        let (found, sizes) = (gradient.shape(), problem.sizes());
        let given = gradient.layout().strides();
        let (mut shape, mut strides) = ([1; 5], [0; 5]);
        let last = found.rank() - 1;
        shape[..last].copy_from_slice(&found.sizes()[..last]);
        strides[..last].copy_from_slice(&given[..last]);
        (shape[4], strides[4]) = (found.sizes()[last], given[last]);
        let turns = problem.references().turns;
        let points = (0..sizes.levels).flat_map(|level| {
            let first = if shape[2] == 1 { 0 } else { level * turns };
            (0..problem.points(level)).map(move |point| first + point % turns)
        });
        let of_row = shape[2] * shape[3] * shape[4];
        let by_row = match shape[..2] == [sizes.images, sizes.queries] {
            true => None,
            false => Some(RowSums::new(sizes.images * sizes.queries, of_row)?),
        };
        Ok(ReferenceGradients {
            tensor: Coordinates::with_strides(gradient.as_mut_ptr(), gradient.dtype(), strides),
            shape,
            images: sizes.images,
            queries: sizes.queries,
            points: points.collect(),
            by_row,
        })
    }

    /// How many coordinates the reference points of a row have.
    pub fn coordinates(&self) -> usize {
        self.shape[2..].iter().product()
    }

    /// From the sums of the samples of a row to those of its reference points.
    #[inline(always)]
    pub fn fold(
        &self,
        projected: &Projected<E>,
        sums: &[&mut [E::Accumulator]; 4],
        by_reference: &mut [E::Accumulator],
    ) {
        let coordinates = self.shape[4];
        by_reference.fill(E::Accumulator::ZERO);
        for (sample, point) in self.points.iter().enumerate() {
            let by_point = &mut by_reference[point * coordinates..][..coordinates];
            for xy in 0..2 {
                by_point[xy] += sums[xy][sample] * projected.sizes[xy][sample];
                if let Some(steps) = &projected.steps {
                    // A factor may be infinite in f32: then the sample has no place, and its sum is 0.
                    let sum = sums[2 + xy][sample];
                    by_point[2 + xy] += only(sum != E::Accumulator::ZERO, sum * steps[xy][sample]);
                }
            }
        }
    }

    /// Takes the sums of a row.
    ///
    /// # Safety
    /// The row lies in the problem, only the caller uses it, and `sums` has all its coordinates.
    #[inline(always)]
    pub unsafe fn write_row(&self, [n, q]: [usize; 2], sums: &[E::Accumulator]) {
        // SAFETY: as the caller promises.
        unsafe {
            match &self.by_row {
                Some(by_row) => {
                    let to = by_row.sums.at([n * self.queries + q]);
                    to.copy_from_nonoverlapping(sums.as_ptr(), sums.len());
                }
                None => self.write([n, q], |coordinate| sums[coordinate].to_f64()),
            }
        }
    }

    /// Writes what `sum` says of each coordinate of a row of the tensor.
    ///
    /// # Safety
    /// The row lies in the tensor, and only the caller uses it.
    unsafe fn write(&self, [n, q]: [usize; 2], sum: impl Fn(usize) -> f64) {
        let [.., levels, turns, coordinates] = self.shape;
        let strides = self.tensor.strides();
        let mut number = 0;
        for level in 0..levels {
            let row = self.tensor.row([n, q, level]);
            for turn in 0..turns {
                for coordinate in 0..coordinates {
                    let at = row + turn as isize * strides[3] + coordinate as isize * strides[4];
                    // SAFETY: as the caller promises.
                    unsafe { self.tensor.set(at, sum(number)) };
                    number += 1;
                }
            }
        }
    }

    pub fn sum_rows(&self) {
        let Some(by_row) = &self.by_row else { return };
        let [images, queries, ..] = self.shape;
        // All of an axis if one stands for all of it.
        let stands_for = |index: usize, size: usize, all: usize| match size == all {
            true => index..index + 1,
            false => 0..all,
        };
        for n in 0..images {
            for q in 0..queries {
                let sum = |coordinate: usize| {
                    let mut sum = 0.0;
                    for n in stands_for(n, images, self.images) {
                        for q in stands_for(q, queries, self.queries) {
                            let row = n * self.queries + q;
                            // SAFETY: the row has such a coordinate, and nothing writes it any more.
                            sum += unsafe { *by_row.sums.at([row, coordinate]) }.to_f64();
                        }
                    }
                    sum
                };
                // SAFETY: the row lies in the tensor, and nothing else uses it.
                unsafe { self.write([n, q], sum) };
            }
        }
    }
}

impl<R: Real> RowSums<R> {
    fn new(rows: usize, of_row: usize) -> Result<Self> {
        let length = rows * of_row;
        let mut memory = workspaces(1, length)?.pop().unwrap_or_default();
        memory.resize(length, R::ZERO);
        Ok(RowSums {
            sums: Raw {
                first: memory.as_mut_ptr(),
                strides: [of_row as isize, 1],
            },
            memory,
        })
    }
}
