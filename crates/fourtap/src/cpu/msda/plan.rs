//! A checked call laid out for the kernels: pointers, strides and tables made once per call.

use std::ops::Range;

use super::geometry::{BLOCK, Block, Cells, Grid};
use crate::cpu::raw::{self, Raw};
use crate::dtype::{Element, Real};
use crate::msda::{Levels, Sizes};
use crate::tensor::View;

/// Up to [`BLOCK`] samples of one image, of consecutive queries and heads.
#[derive(Clone)]
pub(super) struct Slots<R, P> {
    /// How many.
    pub count: usize,
    pub grid: Grid<R>,
    /// Bytes of `value` from the first head to this sample's.
    head_bytes: Block<i64>,
    /// Bytes from a pixel of `value` to the one below it.
    row_bytes: Block<i64>,
    /// Where coordinates and weights of the samples lie.
    pub places: P,
    /// (query and head past the first, level, point) of each sample.
    pub samples: Block<[usize; 4]>,
}

/// Where `samples` lie in a tensor of these strides, from the row of the first query and head.
pub(super) fn places(samples: &Block<[usize; 4]>, strides: &[isize]) -> Block<isize> {
    samples.map(|sample| raw::offset(&sample, &strides[1..]))
}

/// Some levels of all heads of one query.
pub(super) struct Pass<R, P> {
    /// The samples, by head, level and point.
    pub slots: Vec<Slots<R, P>>,
    /// Samples per head.
    pub per_head: usize,
}

impl<R, P> Pass<R, P> {
    /// The samples of a head.
    #[inline(always)]
    pub fn of_head(&self, head: usize) -> HeadSamples {
        HeadSamples {
            next: head * self.per_head,
            end: (head + 1) * self.per_head,
        }
    }
}

/// Gives the block and the lanes of each of a head's samples.
pub(super) struct HeadSamples {
    next: usize,
    end: usize,
}

impl Iterator for HeadSamples {
    type Item = (usize, Range<usize>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end {
            return None;
        }
        let (block, lane) = (self.next / BLOCK, self.next % BLOCK);
        let lanes = lane..(lane + self.end - self.next).min(BLOCK);
        self.next += lanes.len();
        Some((block, lanes))
    }
}

/// A call laid out for the kernels, but for where its samples come from: a [`Sampling`](super::sampling::Sampling).
pub(super) struct Plan<E: Element> {
    pub sizes: Sizes,
    pub levels: Levels,
    /// Among the samples of a head: the first of each level, and after them how many there are.
    pub first_samples: Vec<usize>,
    pub value: Raw<E, 4>,
    zeros: Vec<E>,
}

impl<E: Element> Plan<E> {
    pub fn new(
        sizes: &Sizes,
        levels: &Levels,
        first_samples: Vec<usize>,
        value: &View<'_>,
    ) -> Self {
        Plan {
            sizes: *sizes,
            levels: levels.clone(),
            first_samples,
            value: Raw::of(value),
            zeros: vec![E::default(); sizes.channels],
        }
    }

    /// Points of a level.
    pub fn points(&self, level: usize) -> usize {
        self.first_samples[level + 1] - self.first_samples[level]
    }

    /// The levels that each pass over the samples of a query reads: one too large for the near cache has its own, so that
    /// it does not evict the others.
    pub fn pass_levels(&self, near_bytes: usize) -> Vec<Vec<usize>> {
        let Sizes {
            heads,
            channels,
            levels,
            ..
        } = self.sizes;
        let bytes = |level: usize| self.levels[level].pixels() * heads * channels * size_of::<E>();
        let (far, near): (Vec<_>, Vec<_>) =
            (0..levels).partition(|&level| bytes(level) > near_bytes);
        let mut passes: Vec<_> = far.into_iter().map(|level| vec![level]).collect();
        // Without levels there is still one pass, to write zeros.
        if !near.is_empty() || passes.is_empty() {
            passes.push(near);
        }
        passes
    }

    /// The samples of one query on these levels. `places` says where those of a block lie, given their number and what
    /// they are.
    pub fn pass<P>(
        &self,
        levels: &[usize],
        places: impl Fn(usize, &[[usize; 4]]) -> P,
    ) -> Pass<E::Accumulator, P> {
        let samples = (0..self.sizes.heads).flat_map(|head| {
            levels.iter().flat_map(move |&level| {
                (0..self.points(level)).map(move |point| [0, head, level, point])
            })
        });
        Pass {
            slots: self.slots(samples, places),
            per_head: levels.iter().map(|&level| self.points(level)).sum(),
        }
    }

    /// The samples of one level and head of as many queries as fill a block, and how many queries that is.
    pub fn level_slots<P>(
        &self,
        level: usize,
        places: impl Fn(usize, &[[usize; 4]]) -> P,
    ) -> (usize, Vec<Slots<E::Accumulator, P>>) {
        let points = self.points(level);
        let queries = (BLOCK / points.max(1)).max(1);
        let samples = (0..queries).flat_map(|q| (0..points).map(move |point| [q, 0, level, point]));
        (queries, self.slots(samples, places))
    }

    fn slots<P>(
        &self,
        samples: impl Iterator<Item = [usize; 4]>,
        places: impl Fn(usize, &[[usize; 4]]) -> P,
    ) -> Vec<Slots<E::Accumulator, P>> {
        let samples: Vec<_> = samples.collect();
        let blocks = samples.chunks(BLOCK).enumerate();
        blocks
            .map(|(number, samples)| {
                let mut block = Slots {
                    count: samples.len(),
                    grid: Grid::empty(),
                    head_bytes: [0; BLOCK],
                    row_bytes: [0; BLOCK],
                    places: places(number * BLOCK, samples),
                    samples: [[0; 4]; BLOCK],
                };
                for (i, &sample) in samples.iter().enumerate() {
                    let [_, head, level, _] = sample;
                    let shape = self.levels[level];
                    // `Levels` has shown that both fit.
                    let (width, height) = (shape.width as i32, shape.height as i32);
                    (block.grid.width[i], block.grid.height[i]) = (width, height);
                    block.grid.start[i] = shape.start as i64;
                    block.grid.scale[0][i] = Real::from_i32(width);
                    block.grid.scale[1][i] = Real::from_i32(height);
                    block.row_bytes[i] = (shape.width as i64).wrapping_mul(self.bytes(1));
                    block.head_bytes[i] = (head as i64).wrapping_mul(self.bytes(2));
                    block.samples[i] = sample;
                }
                block
            })
            .collect()
    }

    /// Bytes from one index of an axis of `value` to the next. Wrapping: an axis of one element may have any stride.
    #[inline(always)]
    fn bytes(&self, axis: usize) -> i64 {
        (self.value.strides[axis] as i64).wrapping_mul(size_of::<E>() as i64)
    }

    /// Where the four neighbours of each sample lie in one image of `value`. One outside its level is
    /// [`Plan::zeros`] instead.
    #[inline(always)]
    pub fn neighbours<P>(
        &self,
        image: usize,
        slots: &Slots<E::Accumulator, P>,
        cells: &Cells<E::Accumulator>,
    ) -> [Block<*const E>; 4] {
        let value = self.value.at([image]).cast_const().cast::<u8>();
        let pixel_bytes = self.bytes(1);
        let pixels = cells.pixels(&slots.grid);
        let mut neighbours = [[self.zeros(); BLOCK]; 4];
        for i in 0..BLOCK {
            let upper = pixels[i]
                .wrapping_mul(pixel_bytes)
                .wrapping_add(slots.head_bytes[i]);
            let lower = upper.wrapping_add(slots.row_bytes[i]);
            let all = [
                upper,
                upper.wrapping_add(pixel_bytes),
                lower,
                lower.wrapping_add(pixel_bytes),
            ];
            for corner in 0..4 {
                // Wrapping, because one outside the level may have no valid address.
                let address = value.wrapping_offset(all[corner] as isize).cast();
                let inside = cells.inside[i] >> corner & 1 != 0;
                neighbours[corner][i] = if inside { address } else { self.zeros() };
            }
        }
        neighbours
    }

    /// A pixel of zeros. Its channels are contiguous whatever the strides of `value`.
    #[inline(always)]
    pub fn zeros(&self) -> *const E {
        self.zeros.as_ptr()
    }
}
