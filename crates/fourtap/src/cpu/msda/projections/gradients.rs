//! Backward: from the gradients by places and weights to those by offsets, logits and reference points.

use std::ops::Range;

use super::place::{Projected, ReferenceTables, Scratch, block, block_mut, places};
use super::placed::{Chunk, SampleArrays};
use super::reference_gradients::ReferenceGradients;
use crate::cpu::msda::coordinates::Coordinates;
use crate::cpu::msda::geometry::{BLOCK, Block};
use crate::cpu::simd::{Isa, Kernel, Vectorized};
use crate::dtype::{Element, Real};
use crate::error::Result;
use crate::msda::projections::{Interpolation, ProjectedProblem, ProjectionGradients};

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

/// The number, or 0 unless the condition holds.
#[inline(always)]
pub(super) fn only<R: Real>(condition: bool, number: R) -> R {
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
            terms[i] += terms[i + half];
        }
        half /= 2;
    }
    terms[0]
}
