//! A checked call laid out for the kernels: pointers, strides and tables made once per call.

use std::ops::Range;

use super::coordinates::Coordinates;
use super::geometry::{BLOCK, Block, Cells, Grid};
use crate::cpu::raw::Raw;
use crate::dtype::{Element, Real};
use crate::msda::{Inputs, Problem, Sizes};
use crate::tensor::View;

/// Up to [`BLOCK`] samples of one image, of consecutive queries and heads.
#[derive(Clone)]
pub(super) struct Slots<R> {
    /// How many.
    pub count: usize,
    pub grid: Grid<R>,
    /// Bytes of `value` from the first head to this sample's.
    head_bytes: Block<i64>,
    /// Bytes from a pixel of `value` to the one below it.
    row_bytes: Block<i64>,
    /// Where the x of each sample lies, from the row of the first query and head.
    locations: Block<isize>,
    /// Where the weight of each sample lies, likewise.
    weights: Block<isize>,
    /// Length of the runs of samples whose locations and weights are contiguous; 0 if not even x and y are.
    run: usize,
    /// (query and head past the first, level, point) of each sample.
    pub samples: Block<[usize; 4]>,
}

impl<R: Real> Slots<R> {
    /// Where the samples lie in a tensor of these strides, from the row of the first query and head.
    pub fn places(&self, strides: &[isize]) -> Block<isize> {
        self.samples.map(|sample| {
            sample
                .iter()
                .zip(&strides[1..])
                .map(|(&index, stride)| index as isize * stride)
                .sum()
        })
    }
}

/// Some levels of all heads of one query.
pub(super) struct Pass<R> {
    /// The samples, by head, level and point.
    pub slots: Vec<Slots<R>>,
    /// Samples per head.
    pub per_head: usize,
}

impl<R> Pass<R> {
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

/// A call laid out for the kernels.
pub(super) struct Plan<E: Element> {
    pub sizes: Sizes,
    pub value: Raw<E, 4>,
    pub locations: Coordinates<E, 6>,
    pub weights: Coordinates<E, 5>,
    problem: Problem,
    zeros: Vec<E>,
}

impl<E: Element> Plan<E> {
    pub fn new(problem: &Problem, inputs: &Inputs<'_>) -> Self {
        let coordinates = |view: &View<'_>| (view.as_ptr().cast_mut(), *view.layout());
        let (locations, locations_layout) = coordinates(&inputs.sampling_locations);
        let (weights, weights_layout) = coordinates(&inputs.attention_weights);
        Plan {
            sizes: *problem.sizes(),
            value: Raw::of(&inputs.value),
            locations: Coordinates::new(locations, &locations_layout),
            weights: Coordinates::new(weights, &weights_layout),
            problem: problem.clone(),
            zeros: vec![E::default(); problem.sizes().channels],
        }
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The samples of one query, split into passes: a level too large for the near cache has its own, so that it does not
    /// evict the others.
    pub fn passes(&self, near_bytes: usize) -> Vec<Pass<E::Accumulator>> {
        let Sizes {
            heads,
            channels,
            levels,
            ..
        } = self.sizes;
        let bytes = |level: usize| {
            self.problem.levels()[level].pixels() * heads * channels * size_of::<E>()
        };
        let (far, near): (Vec<_>, Vec<_>) =
            (0..levels).partition(|&level| bytes(level) > near_bytes);
        let mut passes: Vec<_> = far.into_iter().map(|level| self.pass(&[level])).collect();
        // Without levels there is still one pass, to write zeros.
        if !near.is_empty() || passes.is_empty() {
            passes.push(self.pass(&near));
        }
        passes
    }

    fn pass(&self, levels: &[usize]) -> Pass<E::Accumulator> {
        let Sizes { heads, points, .. } = self.sizes;
        let samples = (0..heads).flat_map(|head| {
            levels
                .iter()
                .flat_map(move |&level| (0..points).map(move |point| [0, head, level, point]))
        });
        Pass {
            slots: self.slots(samples),
            per_head: levels.len() * points,
        }
    }

    /// The samples of one level and head of as many queries as fill a block, and how many queries that is.
    pub fn level_slots(&self, level: usize) -> (usize, Vec<Slots<E::Accumulator>>) {
        let points = self.sizes.points;
        let queries = (BLOCK / points.max(1)).max(1);
        (
            queries,
            self.slots(
                (0..queries).flat_map(|q| (0..points).map(move |point| [q, 0, level, point])),
            ),
        )
    }

    fn slots(&self, samples: impl Iterator<Item = [usize; 4]>) -> Vec<Slots<E::Accumulator>> {
        let mut blocks: Vec<Slots<E::Accumulator>> = Vec::new();
        for sample in samples {
            if blocks.last().is_none_or(|block| block.count == BLOCK) {
                blocks.push(Slots {
                    count: 0,
                    grid: Grid::empty(),
                    head_bytes: [0; BLOCK],
                    row_bytes: [0; BLOCK],
                    locations: [0; BLOCK],
                    weights: [0; BLOCK],
                    run: 0,
                    samples: [[0; 4]; BLOCK],
                });
            }
            let block = blocks.last_mut().expect("just pushed");
            let [_, head, level, _] = sample;
            let shape = self.problem.levels()[level];
            let i = block.count;
            block.count += 1;
            // `Levels` has shown that both fit.
            (block.grid.width[i], block.grid.height[i]) = (shape.width as i32, shape.height as i32);
            block.grid.start[i] = shape.start as i64;
            block.grid.scale[0][i] = Real::from_i32(shape.width as i32);
            block.grid.scale[1][i] = Real::from_i32(shape.height as i32);
            block.row_bytes[i] = (shape.width as i64).wrapping_mul(self.pixel_bytes());
            block.head_bytes[i] =
                (head as i64).wrapping_mul(self.value.strides[2] as i64 * size_of::<E>() as i64);
            block.samples[i] = sample;
        }
        for block in &mut blocks {
            block.locations = block.places(&self.locations.strides());
            block.weights = block.places(&self.weights.strides());
            let pairs = self.locations.strides()[5] == 1;
            let follow = |run: usize, places: &Block<isize>, width: isize| {
                let runs = places[..block.count].chunks(run);
                runs.flat_map(|run| run.windows(2))
                    .all(|pair| pair[1] == pair[0] + width)
            };
            // Only whole queries of a block are read, so a run that divides the points is never split.
            let longest = [block.count, 8, 4, 2].into_iter().find(|&run| {
                (run == block.count || self.sizes.points.is_multiple_of(run))
                    && follow(run, &block.locations, 2)
                    && follow(run, &block.weights, 1)
            });
            block.run = longest.filter(|_| pairs).unwrap_or(0);
        }
        blocks
    }

    /// Bytes from a pixel of `value` to the next.
    #[inline(always)]
    fn pixel_bytes(&self) -> i64 {
        self.value.strides[1] as i64 * size_of::<E>() as i64
    }

    /// Where the four neighbours of each sample lie in one image of `value`. One outside its level is
    /// [`Plan::zeros`] instead.
    #[inline(always)]
    pub fn neighbours(
        &self,
        image: usize,
        slots: &Slots<E::Accumulator>,
        cells: &Cells<E::Accumulator>,
    ) -> [Block<*const E>; 4] {
        let value = self.value.at([image]).cast_const().cast::<u8>();
        let pixel_bytes = self.pixel_bytes();
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

    /// Prefetches `samples` locations and weights of a row, which may lie outside the problem.
    #[inline(always)]
    pub fn prefetch(&self, row: [usize; 3], slots: &Slots<E::Accumulator>, samples: usize) {
        self.locations
            .prefetch(row, slots.locations[0], 2 * samples);
        self.weights.prefetch(row, slots.weights[0], samples);
    }

    /// x, y and attention weight of the first `count` samples of `slots`.
    ///
    /// # Safety
    /// `row` is inside the problem, and so are the queries of those samples.
    #[inline(always)]
    pub unsafe fn read(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator>,
        count: usize,
    ) -> [Block<E::Accumulator>; 3] {
        if slots.run == 0 {
            // SAFETY: as the caller promises.
            return unsafe { self.read_scattered(row, slots, count) };
        }
        let (locations, weights) = (self.locations.row(row), self.weights.row(row));
        // Part of a single run is one run; anything else is split between runs.
        // SAFETY: as the caller promises.
        unsafe {
            let [x, y] = self
                .locations
                .read_runs(locations, &slots.locations, slots.run, count);
            let [weight] = self
                .weights
                .read_runs(weights, &slots.weights, slots.run, count);
            [x, y, weight]
        }
    }

    /// # Safety
    /// As for `read`.
    unsafe fn read_scattered(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator>,
        count: usize,
    ) -> [Block<E::Accumulator>; 3] {
        let (locations, weights) = (self.locations.row(row), self.weights.row(row));
        let to_y = self.locations.strides()[5];
        // SAFETY: as the caller promises.
        unsafe {
            [
                self.locations
                    .read_scattered(locations, &slots.locations, count),
                self.locations
                    .read_scattered(locations + to_y, &slots.locations, count),
                self.weights.read_scattered(weights, &slots.weights, count),
            ]
        }
    }
}
