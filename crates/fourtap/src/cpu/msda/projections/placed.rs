//! Samples that were placed: x and y in pixels, and the weight. Also where each of them is kept.

use std::marker::PhantomData;
use std::ops::Range;

use super::place::block;
use crate::bool_view::BoolView;
use crate::cpu::msda::geometry::{BLOCK, Block, Cells, Grid, locate, locate_nearest};
use crate::cpu::msda::plan::{Pass, Plan, Slots};
use crate::cpu::msda::samples::Destination;
use crate::cpu::msda::sampling::Sampling;
use crate::cpu::raw::Raw;
use crate::dtype::{Element, Real};
use crate::msda::projections::{Interpolation, Projections};

/// Where samples are kept: so far from the first of all.
#[derive(Clone, Copy)]
pub(super) struct Position {
    first: usize,
    by_image: usize,
    by_query: usize,
    by_head: usize,
}

/// Up to [`BLOCK`] samples of a head that are kept one after another.
pub(super) struct Chunk {
    /// The first, among all of the head.
    pub sample: usize,
    pub count: usize,
    pub position: Position,
}

/// Chunks of the samples in `range`, the first of which is kept at `position`.
fn chunks(range: Range<usize>, position: Position) -> impl Iterator<Item = Chunk> {
    range.clone().step_by(BLOCK).map(move |sample| Chunk {
        sample,
        count: (range.end - sample).min(BLOCK),
        position: Position {
            first: position.first + sample - range.start,
            ..position
        },
    })
}

/// The samples of some rows, pass by pass, each row in the order in which the pass reads it.
pub(super) struct RowLayout<E: Element> {
    /// Rows there is room for.
    pub rows: usize,
    pub passes: Vec<Pass<E::Accumulator, Position>>,
    pub chunks: Vec<Chunk>,
    /// All samples, and room after those of each pass: whole blocks can be written and read, into the next row and past the
    /// last.
    pub length: usize,
}

impl<E: Element> RowLayout<E> {
    pub fn new(plan: &Plan<E>, near_bytes: usize, rows: usize) -> Self {
        let mut layout = RowLayout {
            rows,
            passes: Vec::new(),
            chunks: Vec::new(),
            length: 0,
        };
        for levels in plan.pass_levels(near_bytes) {
            let by_head: usize = levels.iter().map(|&level| plan.points(level)).sum();
            let by_query = plan.sizes.heads * by_head;
            let mut position = Position {
                first: layout.length,
                by_image: plan.sizes.queries * by_query,
                by_query,
                by_head,
            };
            layout.length += rows * by_query + BLOCK;
            let of_block = |block: usize, _: &[[usize; 4]]| Position {
                first: position.first + block,
                ..position
            };
            layout.passes.push(plan.pass(&levels, of_block));
            for range in joined(plan, &levels) {
                let count = range.len();
                layout.chunks.extend(chunks(range, position));
                position.first += count;
            }
        }
        layout
    }
}

/// The samples of these levels, those of neighbouring levels in one range.
fn joined<E: Element>(plan: &Plan<E>, levels: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &level in levels {
        let range = plan.first_samples[level]..plan.first_samples[level + 1];
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

/// All samples of a call, by image, head, level and query, as the gradient of value reads them.
pub(super) struct LevelLayout {
    positions: Vec<Position>,
    pub chunks: Vec<Chunk>,
    /// All samples, and room after them so that whole blocks can be read.
    pub length: usize,
}

impl LevelLayout {
    pub fn new<E: Element>(plan: &Plan<E>) -> Self {
        let sizes = &plan.sizes;
        let of_head = sizes.queries * plan.first_samples[sizes.levels];
        let position = |level: usize| Position {
            first: sizes.queries * plan.first_samples[level],
            by_image: sizes.heads * of_head,
            by_query: plan.points(level),
            by_head: of_head,
        };
        let positions: Vec<_> = (0..sizes.levels).map(position).collect();
        let of_level = |level: usize| plan.first_samples[level]..plan.first_samples[level + 1];
        LevelLayout {
            chunks: (0..sizes.levels)
                .flat_map(|level| chunks(of_level(level), positions[level]))
                .collect(),
            positions,
            length: sizes.images * sizes.heads * of_head + BLOCK,
        }
    }

    /// Where blocks of samples of a level are kept.
    pub fn places(&self, level: usize) -> impl Fn(usize, &[[usize; 4]]) -> Position {
        let position = self.positions[level];
        move |block, _| Position {
            first: position.first + block,
            ..position
        }
    }
}

/// `value_mask`.
pub(super) struct Mask<'a> {
    view: BoolView<'a>,
    /// Whether any pixel of an image is masked.
    any: Vec<bool>,
}

impl<'a> Mask<'a> {
    pub fn new(inputs: &Projections<'a>) -> Option<Self> {
        let view = inputs.value_mask?;
        let shape = view.shape();
        let [images, pixels] = [shape.sizes()[0], shape.sizes()[1]];
        // SAFETY: the view was checked with the call.
        let masks_any = |image: usize| (0..pixels).any(|pixel| unsafe { view.get([image, pixel]) });
        Some(Mask {
            any: (0..images).map(masks_any).collect(),
            view,
        })
    }

    /// Makes neighbours that are masked count as outside, which adds what zeros would add. Not so of a weight that is NaN, unless
    /// it is about `gradients_of_value`, which masked pixels have none of.
    ///
    /// # Safety
    /// The image and the neighbours that are inside lie in the problem.
    #[inline(always)]
    unsafe fn apply<R: Real>(
        &self,
        image: usize,
        grid: &Grid<R>,
        weight: &Block<R>,
        gradients_of_value: bool,
        cells: &mut Cells<R>,
    ) {
        if !self.any[image] {
            return;
        }
        let pixels = cells.pixels(grid);
        let (first, strides) = (self.view.as_ptr(), self.view.strides());
        let image = first.wrapping_offset(image as isize * strides[0]);
        for i in 0..BLOCK {
            let is_number = weight[i].partial_cmp(&R::ZERO).is_some();
            if !is_number && !gradients_of_value {
                continue;
            }
            let mut inside = cells.inside[i];
            let below = pixels[i] + grid.width[i] as i64;
            let all = [pixels[i], pixels[i] + 1, below, below + 1];
            for (corner, pixel) in all.into_iter().enumerate() {
                if inside >> corner & 1 != 0 {
                    // SAFETY: the pixel lies in the mask, as the caller promises.
                    let masked = unsafe { *image.offset(pixel as isize * strides[1]) != 0 };
                    inside &= !((masked as i32) << corner);
                }
            }
            cells.inside[i] = inside;
        }
    }
}

/// Three numbers of each sample, each in an array of its own: x, y and weight, or the gradients by them.
pub(super) struct SampleArrays<'a, R> {
    /// By number and position.
    numbers: Raw<R, 2>,
    /// The first row (image, query) that is kept.
    first: usize,
    memory: PhantomData<&'a mut [R]>,
}

impl<'a, R: Real> SampleArrays<'a, R> {
    /// In `memory`, the samples of rows (image, query) from number `first` on.
    pub fn new(memory: &'a mut [R], first: usize) -> Self {
        let length = memory.len() / 3;
        SampleArrays {
            numbers: Raw {
                first: memory.as_mut_ptr(),
                strides: [length as isize, 1],
            },
            first,
            memory: PhantomData,
        }
    }

    #[inline(always)]
    fn index(&self, position: &Position, [n, q, m]: [usize; 3]) -> usize {
        position.first + n * position.by_image + q * position.by_query + m * position.by_head
            - self.first * position.by_query
    }

    /// The three numbers of a block of samples of a row (image, query, head).
    ///
    /// # Safety
    /// They are kept here, with room for a whole block, and nothing writes them.
    #[inline(always)]
    pub unsafe fn read(&self, position: &Position, row: [usize; 3]) -> [Block<R>; 3] {
        let index = self.index(position, row);
        let mut blocks = [[R::ZERO; BLOCK]; 3];
        for (number, block) in blocks.iter_mut().enumerate() {
            // SAFETY: as the caller promises.
            *block = unsafe { self.numbers.at([number, index]).cast::<Block<R>>().read() };
        }
        blocks
    }

    /// Keeps a chunk of samples of a row (image, query, head), taken from tables of the three numbers of all samples of the
    /// head, which have room for whole blocks.
    ///
    /// # Safety
    /// The row is the caller's. If `whole_blocks`, there is room for them, and the samples that they overwrite are kept later.
    #[inline(always)]
    pub unsafe fn keep(&self, chunk: &Chunk, row: [usize; 3], from: [&[R]; 3], whole_blocks: bool) {
        let index = self.index(&chunk.position, row);
        for (number, table) in from.into_iter().enumerate() {
            let from = block(table, chunk.sample);
            let to = self.numbers.at([number, index]);
            // SAFETY: as the caller promises. Copies of fixed size are a few stores.
            unsafe {
                match chunk.count {
                    4 => to.copy_from_nonoverlapping(from.as_ptr(), 4),
                    8 => to.copy_from_nonoverlapping(from.as_ptr(), 8),
                    _ if whole_blocks => to.cast::<Block<R>>().write(*from),
                    count => to.copy_from_nonoverlapping(from.as_ptr(), count),
                }
            }
        }
    }
}

impl<R: Real> Destination<R, Position> for SampleArrays<'_, R> {
    #[inline(always)]
    unsafe fn write(
        &self,
        [n, q]: [usize; 2],
        _: [usize; 2],
        slots: &Slots<R, Position>,
        gradients: &[Block<R>; 3],
    ) {
        let index = self.index(&slots.places, [n, q, 0]);
        for (number, gradient) in gradients.iter().enumerate() {
            let to = self.numbers.at([number, index]).cast::<Block<R>>();
            // SAFETY: blocks of a pass are kept one after another, with room after the last.
            unsafe { to.write(*gradient) };
        }
    }
}

/// Placed samples as the kernels read them.
pub(super) struct Placed<'a, R> {
    /// x, y and weight.
    pub arrays: &'a SampleArrays<'a, R>,
    pub interpolation: Interpolation,
    pub mask: Option<&'a Mask<'a>>,
    /// Whether they are read for the gradient of `value`.
    pub gradients_of_value: bool,
}

impl<E: Element> Sampling<E> for Placed<'_, E::Accumulator> {
    type Places = Position;

    #[inline(always)]
    unsafe fn find(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator, Position>,
        _: usize,
    ) -> (Cells<E::Accumulator>, Block<E::Accumulator>) {
        // SAFETY: the samples of the row were placed, as the caller promises; there is always room for a whole block.
        let [x, y, weight] = unsafe { self.arrays.read(&slots.places, row) };
        let mut cells = match self.interpolation {
            Interpolation::Bilinear => locate(&slots.grid, &x, &y),
            Interpolation::Nearest => locate_nearest(&slots.grid, &x, &y),
        };
        if let Some(mask) = self.mask {
            // SAFETY: the image lies in the problem, and levels tile its pixels.
            unsafe {
                let of_value = self.gradients_of_value;
                mask.apply(row[0], &slots.grid, &weight, of_value, &mut cells);
            }
        }
        (cells, weight)
    }

    #[inline(always)]
    fn scale(_: &Grid<E::Accumulator>) -> [Block<E::Accumulator>; 2] {
        [[E::Accumulator::ONE; BLOCK]; 2]
    }

    /// Nothing to do: they lie one after another.
    #[inline(always)]
    fn prefetch(&self, _: [usize; 3], _: &Slots<E::Accumulator, Position>, _: usize) {}
}
