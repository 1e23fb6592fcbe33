//! Backward: from the gradients by places and weights to those by offsets, logits and reference points.

use std::ops::Range;

use super::place::{Projected, ReferenceTables, Scratch, block, block_mut, places};
use super::placed::{Chunk, SampleArrays};
use crate::cpu::msda::coordinates::Coordinates;
use crate::cpu::msda::geometry::{BLOCK, Block};
use crate::cpu::raw::Raw;
use crate::cpu::simd::{Isa, Kernel, Vectorized};
use crate::cpu::workspace::workspaces;
use crate::dtype::{Element, Real};
use crate::error::Result;
use crate::msda::projections::{Interpolation, ProjectedProblem, ProjectionGradients};
use crate::tensor::ViewMut;

/// The gradients by offsets, logits and reference points, each if it is wanted.
pub(super) struct ProjectedGradients<E: Element> {
    offsets: Option<Coordinates<E, 5>>,
    logits: Option<Coordinates<E, 4>>,
    references: Option<ReferenceGradients<E>>,
}

impl<E: Element> ProjectedGradients<E> {
    pub fn new(problem: &ProjectedProblem, gradients: &ProjectionGradients<'_>) -> Result<Self> {
        let references = (gradients.reference_points.as_ref())
            .map(|gradient| ReferenceGradients::new(problem, gradient));
        Ok(ProjectedGradients {
            offsets: (gradients.sampling_offsets.as_ref())
                .map(|gradient| Coordinates::new(gradient.as_mut_ptr(), gradient.layout())),
            logits: (gradients.attention_logits.as_ref())
                .map(|gradient| Coordinates::new(gradient.as_mut_ptr(), gradient.layout())),
            references: references.transpose()?,
        })
    }

    pub fn are_wanted(&self) -> bool {
        self.offsets.is_some() || self.logits.is_some() || self.references.is_some()
    }

    /// Sums what the rows add to reference points that stand for several of them.
    pub fn sum_references(&self) {
        if let Some(references) = &self.references {
            references.sum_rows();
        }
    }
}

/// The gradient by reference points.
///
/// A row has a sum for each of its reference points' coordinates. Where a reference point stands for several rows, these
/// sums are kept and added in the order of the rows, so that the result does not depend on how the work was split.
struct ReferenceGradients<E: Element> {
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
    fn new(problem: &ProjectedProblem, gradient: &ViewMut<'_>) -> Result<Self> {
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
    fn coordinates(&self) -> usize {
        self.shape[2..].iter().product()
    }

    /// From the sums of the samples of a row to those of its reference points.
    #[inline(always)]
    fn fold(
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
    unsafe fn write_row(&self, [n, q]: [usize; 2], sums: &[E::Accumulator]) {
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

    fn sum_rows(&self) {
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

/// Finishes the gradients of some (image, query) rows.
pub(super) struct Finish<'a, E: Element> {
    pub projected: &'a Projected<E>,
    pub chunks: &'a [Chunk],
    /// x, y and weight.
    pub samples: &'a SampleArrays<'a, E::Accumulator>,
    /// The gradients by them.
    pub by_sample: &'a SampleArrays<'a, E::Accumulator>,
    pub to: &'a ProjectedGradients<E>,
    pub scratch: &'a mut [E::Accumulator],
    pub rows: Range<usize>,
}

impl<E: Vectorized> Kernel for Finish<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        let projected = self.projected;
        let memory = std::mem::take(&mut self.scratch);
        let Scratch {
            mut references,
            mut others,
            by_reference,
        } = Scratch::new(projected, memory);
        // By x and y of the centres, and by width and height.
        let sums = others
            .first_chunk_mut::<4>()
            .expect("more tables than that");
        for row in self.rows.clone() {
            let [n, q] = [row / projected.queries, row % projected.queries];
            // SAFETY: the row lies in the problem.
            unsafe { projected.read_references([n, q], &mut references) };
            for sums in &mut *sums {
                sums.fill(E::Accumulator::ZERO);
            }
            for m in 0..projected.heads {
                // SAFETY: the row is this task's, and it has placed the samples.
                unsafe {
                    if let Some(to) = &self.to.logits {
                        self.logits([n, q, m], to);
                    }
                    if let Some(to) = &self.to.offsets {
                        self.offsets([n, q, m], &references, to);
                    }
                    if self.to.references.is_some() {
                        self.add_to_references([n, q, m], sums);
                    }
                }
            }
            if let Some(to) = &self.to.references {
                let by_reference = &mut by_reference[..to.coordinates()];
                to.fold(projected, sums, by_reference);
                // SAFETY: the row lies in the problem, and is this task's.
                unsafe { to.write_row([n, q], by_reference) };
            }
        }
    }
}

impl<E: Vectorized> Finish<'_, E> {
    /// Finishes the gradient by the logits of a row (image, query, head). They move all its weights, whose sum stays 1.
    ///
    /// # Safety
    /// The row is the caller's, and its samples were placed.
    #[inline(always)]
    unsafe fn logits(&self, row: [usize; 3], to: &Coordinates<E, 4>) {
        let mut mean = [E::Accumulator::ZERO; BLOCK];
        for chunk in self.chunks {
            // SAFETY: as the caller promises.
            let (weight, by_weight) = unsafe { self.weights(row, chunk) };
            for i in 0..BLOCK {
                mean[i] += only(i < chunk.count, weight[i] * by_weight[i]);
            }
        }
        let mean = total(mean);
        for chunk in self.chunks {
            // SAFETY: as the caller promises.
            let (weight, by_weight) = unsafe { self.weights(row, chunk) };
            let mut by_logit = [E::Accumulator::ZERO; BLOCK];
            for i in 0..BLOCK {
                by_logit[i] = weight[i] * (by_weight[i] - mean);
            }
            let places = places(chunk.sample, chunk.count, to.strides()[3]);
            // SAFETY: as the caller promises.
            unsafe { to.write(to.row(row), &places, chunk.count, &by_logit) };
        }
    }

    /// Finishes the gradient by the offsets of a row (image, query, head).
    ///
    /// # Safety
    /// The row is the caller's, and its samples were placed.
    #[inline(always)]
    unsafe fn offsets(
        &self,
        row: [usize; 3],
        references: &ReferenceTables<'_, E::Accumulator>,
        to: &Coordinates<E, 5>,
    ) {
        let [.., by_sample, by_coordinate] = to.strides();
        let first = to.row(row);
        for chunk in self.chunks {
            // SAFETY: as the caller promises.
            let by_place = unsafe { self.by_place(row, chunk) };
            let places = places(chunk.sample, chunk.count, by_sample);
            for xy in 0..2 {
                let steps = block(references.steps[xy], chunk.sample);
                let by_offset = product(&by_place[xy], steps);
                let first = first + xy as isize * by_coordinate;
                // SAFETY: as the caller promises.
                unsafe { to.write(first, &places, chunk.count, &by_offset) };
            }
        }
    }

    /// Adds the gradients by the places of a row (image, query, head) to `sums`, and those by the offsets' factors for boxes.
    ///
    /// # Safety
    /// The row lies in the problem, and its samples were placed.
    #[inline(always)]
    unsafe fn add_to_references(&self, row: [usize; 3], sums: &mut [&mut [E::Accumulator]; 4]) {
        let projected = self.projected;
        for chunk in self.chunks {
            let (sample, count) = (chunk.sample, chunk.count);
            // SAFETY: as the caller promises.
            let by_place = unsafe { self.by_place(row, chunk) };
            for xy in 0..2 {
                add_first(block_mut(sums[xy], sample), count, &by_place[xy]);
            }
            if projected.steps.is_none() {
                continue;
            }
            // SAFETY: the samples lie in the problem.
            let offsets = unsafe { projected.read_offsets(row, sample, count) };
            for xy in 0..2 {
                let by_extent = product(&by_place[xy], &offsets[xy]);
                add_first(block_mut(sums[2 + xy], sample), count, &by_extent);
            }
        }
    }

    /// The weights of a chunk of samples, and the gradients by them.
    ///
    /// # Safety
    /// The samples of the row (image, query, head) were placed.
    #[inline(always)]
    unsafe fn weights(
        &self,
        row: [usize; 3],
        chunk: &Chunk,
    ) -> (Block<E::Accumulator>, Block<E::Accumulator>) {
        // SAFETY: as the caller promises.
        unsafe {
            let [.., weight] = self.samples.read(&chunk.position, row);
            let [.., by_weight] = self.by_sample.read(&chunk.position, row);
            (weight, by_weight)
        }
    }

    /// The gradients by the places of a chunk of samples.
    ///
    /// # Safety
    /// The samples of the row (image, query, head) were placed.
    #[inline(always)]
    unsafe fn by_place(&self, row: [usize; 3], chunk: &Chunk) -> [Block<E::Accumulator>; 2] {
        match self.projected.interpolation {
            // SAFETY: as the caller promises.
            Interpolation::Bilinear => unsafe {
                let [by_x, by_y, _] = self.by_sample.read(&chunk.position, row);
                [by_x, by_y]
            },
            Interpolation::Nearest => [[E::Accumulator::ZERO; BLOCK]; 2],
        }
    }
}

#[inline(always)]
fn only<R: Real>(condition: bool, number: R) -> R {
    if condition { number } else { R::ZERO }
}

/// The gradients by numbers that places are moved with, 0 where the place has no gradient, be the number what it may: a
/// point takes no part because of a NaN or infinity.
#[inline(always)]
fn product<R: Real>(by_place: &Block<R>, factor: &Block<R>) -> Block<R> {
    let mut products = [R::ZERO; BLOCK];
    for i in 0..BLOCK {
        products[i] = only(by_place[i] != R::ZERO, by_place[i] * factor[i]);
    }
    products
}

#[inline(always)]
fn add_first<R: Real>(sums: &mut Block<R>, count: usize, terms: &Block<R>) {
    for i in 0..BLOCK {
        sums[i] += only(i < count, terms[i]);
    }
}

/// The sum over a block, in a fixed order.
#[inline(always)]
fn total<R: Real>(mut terms: Block<R>) -> R {
    let mut half = BLOCK / 2;
    while half > 0 {
        for i in 0..half {
            terms[i] = terms[i] + terms[i + half];
        }
        half /= 2;
    }
    terms[0]
}
