//! From projections to samples: places in pixels, and the softmax of the logits.

use std::ops::Range;

use super::placed::{Chunk, SampleArrays};
use super::softmax::{HEADS, softmax};
use crate::cpu::msda::coordinates::Coordinates;
use crate::cpu::msda::geometry::{BLOCK, Block};
use crate::cpu::raw;
use crate::cpu::simd::{Isa, Kernel, Vectorized};
use crate::dtype::{Element, Real};
use crate::msda::projections::{Interpolation, ProjectedProblem, Projections};

/// The projections laid out for the kernels, with tables of all samples of a head.
pub(super) struct Projected<E: Element> {
    pub queries: usize,
    pub heads: usize,
    /// Samples of a head (K).
    pub samples: usize,
    offsets: Coordinates<E, 5>,
    logits: Coordinates<E, 4>,
    references: Coordinates<E, 5>,
    /// Where the x of each sample's reference lies, from those of the row.
    reference_places: Vec<isize>,
    /// Coordinates of the reference points of a row, at most.
    reference_numbers: usize,
    /// Width and height of each sample's level, with room for a whole block, as all tables have.
    pub sizes: [Vec<E::Accumulator>; 2],
    /// For boxes: how many pixels an offset of 1 stands for, in a box as wide and high as the image.
    pub steps: Option<[Vec<E::Accumulator>; 2]>,
    /// Added to every place: -1/2, or 1/2 for the nearest pixel.
    shift: E::Accumulator,
    pub interpolation: Interpolation,
}

impl<E: Element> Projected<E> {
    pub fn new(problem: &ProjectedProblem, inputs: &Projections<'_>) -> Self {
        let (sizes, references) = (problem.sizes(), problem.references());
        let half = E::Accumulator::HALF;
        let mut projected = Projected {
            queries: sizes.queries,
            heads: sizes.heads,
            samples: problem.samples(),
            offsets: Coordinates::new(
                inputs.sampling_offsets.as_ptr().cast_mut(),
                problem.sampling_offsets(),
            ),
            logits: Coordinates::new(
                inputs.attention_logits.as_ptr().cast_mut(),
                problem.attention_logits(),
            ),
            references: Coordinates::with_strides(
                inputs.reference_points.as_ptr().cast_mut(),
                references.dtype,
                references.strides,
            ),
            reference_places: Vec::new(),
            reference_numbers: 4 * sizes.levels.max(1) * references.turns,
            sizes: [Vec::new(), Vec::new()],
            steps: references.boxes.then(|| [Vec::new(), Vec::new()]),
            shift: match problem.interpolation() {
                Interpolation::Bilinear => E::Accumulator::ZERO - half,
                Interpolation::Nearest => half,
            },
            interpolation: problem.interpolation(),
        };
        for (index, level) in problem.levels().iter().enumerate() {
            let factor = E::Accumulator::from_f64(problem.factors()[index]);
            for point in 0..problem.points(index) {
                let place = [index, point % references.turns];
                let place = raw::offset(&place, &references.strides[2..]);
                projected.reference_places.push(place);
                for (xy, size) in [level.width, level.height].into_iter().enumerate() {
                    // `Levels` has shown that both fit.
                    let size = E::Accumulator::from_i32(size as i32);
                    projected.sizes[xy].push(size);
                    if let Some(steps) = &mut projected.steps {
                        steps[xy].push(size * factor);
                    }
                }
            }
        }
        let length = projected.table_length();
        let tables = projected
            .sizes
            .iter_mut()
            .chain(projected.steps.iter_mut().flatten());
        tables.for_each(|table| table.resize(length, E::Accumulator::ZERO));
        projected
    }

    /// Length of a table of all samples of a head, with room for a whole block from any of them on.
    pub fn table_length(&self) -> usize {
        self.samples + BLOCK
    }

    /// Length of [`Scratch`].
    pub fn scratch_length(&self) -> usize {
        TABLES * self.table_length() + self.reference_numbers
    }

    /// Reads the reference points of a row.
    ///
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    pub unsafe fn read_references(
        &self,
        [n, q]: [usize; 2],
        tables: &mut ReferenceTables<'_, E::Accumulator>,
    ) {
        let row = self.references.row([n, q, 0]);
        let to_next = self.references.strides()[4];
        for (sample, place) in self.reference_places.iter().enumerate() {
            for xy in 0..2 {
                // SAFETY: the row lies in the problem, and so do the references of its samples.
                unsafe {
                    let at = row + place + xy as isize * to_next;
                    tables.centres[xy][sample] = self.references.get(at);
                    if let Some(steps) = &self.steps {
                        let extent: E::Accumulator = self.references.get(at + 2 * to_next);
                        tables.steps[xy][sample] = extent * steps[xy][sample];
                    }
                }
            }
        }
    }

    /// The offsets of up to a block of samples.
    ///
    /// # Safety
    /// The row (image, query, head) and the samples lie in the problem.
    #[inline(always)]
    pub unsafe fn read_offsets(
        &self,
        row: [usize; 3],
        sample: usize,
        count: usize,
    ) -> [Block<E::Accumulator>; 2] {
        let [.., by_sample, by_coordinate] = self.offsets.strides();
        let row = self.offsets.row(row);
        // SAFETY: as the caller promises.
        unsafe {
            if by_sample == 2 && by_coordinate == 1 {
                let first = row + 2 * sample as isize;
                return self.offsets.read_runs(first, &[0; BLOCK], BLOCK, count);
            }
            let places = places(sample, count, by_sample);
            [
                self.offsets.read_scattered(row, &places, count),
                self.offsets
                    .read_scattered(row + by_coordinate, &places, count),
            ]
        }
    }

    /// The logits of up to a block of samples.
    ///
    /// # Safety
    /// As for `read_offsets`.
    #[inline(always)]
    unsafe fn read_logits(
        &self,
        row: [usize; 3],
        sample: usize,
        count: usize,
    ) -> Block<E::Accumulator> {
        let by_sample = self.logits.strides()[3];
        let row = self.logits.row(row);
        // SAFETY: as the caller promises.
        unsafe {
            if by_sample == 1 {
                let first = row + sample as isize;
                let [logits] = self.logits.read_runs(first, &[0; BLOCK], BLOCK, count);
                return logits;
            }
            self.logits
                .read_scattered(row, &places(sample, count, by_sample), count)
        }
    }
}

/// Where the samples from one on lie, if they are `stride` apart.
#[inline(always)]
pub(super) fn places(sample: usize, count: usize, stride: isize) -> Block<isize> {
    let mut places = [0; BLOCK];
    for (i, place) in places.iter_mut().enumerate().take(count) {
        *place = (sample + i) as isize * stride;
    }
    places
}

/// Tables in [`Scratch`] besides those of reference points.
const OTHER_TABLES: usize = 3 * HEADS;

/// All of them.
const TABLES: usize = 4 + OTHER_TABLES;

/// What is known of all samples of a row, whatever their heads.
pub(super) struct ReferenceTables<'a, R> {
    /// x and y of the reference points.
    pub centres: [&'a mut [R]; 2],
    /// How many pixels an offset of 1 stands for.
    pub steps: [&'a mut [R]; 2],
}

/// Working memory of a task: tables of all samples of a head.
pub(super) struct Scratch<'a, R> {
    pub references: ReferenceTables<'a, R>,
    pub others: [&'a mut [R]; OTHER_TABLES],
    /// One number for each coordinate of the reference points of a row.
    pub by_reference: &'a mut [R],
}

impl<'a, R: Real> Scratch<'a, R> {
    /// # Panics
    /// If `memory` is shorter than [`Projected::scratch_length`].
    pub fn new<E: Element>(projected: &Projected<E>, memory: &'a mut [R]) -> Self {
        let length = projected.table_length();
        let (tables, by_reference) = memory.split_at_mut(TABLES * length);
        let mut tables = tables.chunks_exact_mut(length);
        let mut next = || tables.next().expect("as long as it says");
        let mut scratch = Scratch {
            references: ReferenceTables {
                centres: [next(), next()],
                steps: [next(), next()],
            },
            others: std::array::from_fn(|_| next()),
            by_reference,
        };
        // Unless boxes say something else.
        let [x, y] = &mut scratch.references.steps;
        x.fill(R::ONE);
        y.fill(R::ONE);
        scratch
    }
}

/// A whole block of a table, from `first` on.
#[inline(always)]
pub(super) fn block<R>(table: &[R], first: usize) -> &Block<R> {
    table[first..].first_chunk().expect("room for a block")
}

/// The same, to write.
#[inline(always)]
pub(super) fn block_mut<R>(table: &mut [R], first: usize) -> &mut Block<R> {
    table[first..].first_chunk_mut().expect("room for a block")
}

/// Places the samples of some (image, query) rows.
pub(super) struct Place<'a, E: Element> {
    pub projected: &'a Projected<E>,
    pub chunks: &'a [Chunk],
    /// Whether blocks may be written whole, over what is written after them.
    pub whole_blocks: bool,
    pub to: &'a SampleArrays<'a, E::Accumulator>,
    pub scratch: &'a mut [E::Accumulator],
    pub rows: Range<usize>,
}

impl<E: Vectorized> Kernel for Place<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let projected = self.projected;
        let Scratch {
            mut references,
            mut others,
            ..
        } = Scratch::new(projected, self.scratch);
        let [x, y, weights] = others.as_chunks_mut::<HEADS>().0 else {
            unreachable!("three tables for each head");
        };
        for row in self.rows {
            let [n, q] = [row / projected.queries, row % projected.queries];
            // SAFETY: the row lies in the problem.
            unsafe { projected.read_references([n, q], &mut references) };
            for first in (0..projected.heads).step_by(HEADS) {
                let count = (projected.heads - first).min(HEADS);
                for i in 0..count {
                    // SAFETY: the head lies in the problem.
                    unsafe {
                        let row = [n, q, first + i];
                        projected.find_places(row, &references, [&mut *x[i], &mut *y[i]]);
                        projected.copy_logits(row, weights[i]);
                    }
                }
                // SAFETY: the processor has the instructions.
                unsafe { softmax::<E, I>(&mut weights[..count], projected.blocks()) };
                for i in 0..count {
                    for chunk in self.chunks {
                        let from = [&*x[i], &*y[i], &*weights[i]];
                        let row = [n, q, first + i];
                        // SAFETY: the samples are this task's; those that a whole block overwrites are kept later.
                        unsafe { self.to.keep(chunk, row, from, self.whole_blocks) };
                    }
                }
            }
        }
    }
}

impl<E: Vectorized> Projected<E> {
    /// Blocks of samples of a head.
    fn blocks(&self) -> usize {
        self.samples.div_ceil(BLOCK)
    }

    /// x and y of the samples of a row (image, query, head), in pixels; for the nearest pixel, numbers yet to be cut off.
    ///
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    unsafe fn find_places(
        &self,
        row: [usize; 3],
        references: &ReferenceTables<'_, E::Accumulator>,
        to: [&mut [E::Accumulator]; 2],
    ) {
        for sample in (0..self.samples).step_by(BLOCK) {
            let count = (self.samples - sample).min(BLOCK);
            // SAFETY: the samples lie in the problem.
            let offsets = unsafe { self.read_offsets(row, sample, count) };
            for xy in 0..2 {
                let centres = block(references.centres[xy], sample);
                let steps = block(references.steps[xy], sample);
                let sizes = block(&self.sizes[xy], sample);
                // Not where they go at once: compilers would have to show first that nothing else lies there.
                let mut places = [E::Accumulator::ZERO; BLOCK];
                for i in 0..BLOCK {
                    let moved = offsets[xy][i] * steps[i];
                    places[i] = centres[i].fused(sizes[i], moved + self.shift);
                }
                *block_mut(to[xy], sample) = places;
            }
        }
    }

    /// The logits of a row (image, query, head), in whole blocks: minus infinity for those that are not there, so that they
    /// get no weight.
    ///
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    unsafe fn copy_logits(&self, row: [usize; 3], to: &mut [E::Accumulator]) {
        for sample in (0..self.samples).step_by(BLOCK) {
            let count = (self.samples - sample).min(BLOCK);
            // SAFETY: the samples lie in the problem.
            let logits = unsafe { self.read_logits(row, sample, count) };
            let mut whole = [E::Accumulator::NEG_INFINITY; BLOCK];
            for i in 0..BLOCK {
                whole[i] = if i < count { logits[i] } else { whole[i] };
            }
            *block_mut(to, sample) = whole;
        }
    }
}
