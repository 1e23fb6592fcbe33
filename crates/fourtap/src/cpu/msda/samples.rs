//! Backward, gradients of locations and weights: for each (image, query, head) and sample, the dot products of
//! `grad_out` with the four neighbours.

use std::ops::Range;

use super::coordinates::Coordinates;
use super::geometry::{BLOCK, Block, Cells};
use super::plan::{self, Pass, Plan, Slots};
use super::sampling::Sampling;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{Isa, Kernel, Lanes, Vectorized, load_dealt, load_some};
use crate::dtype::{Element, Real};
use crate::tensor::ViewMut;

/// What becomes of the gradients by x, y and weight.
pub(super) trait Destination<R, P>: Sync {
    /// Takes those of a block of samples.
    ///
    /// # Safety
    /// The row (image, query) lies in the problem, and only the caller uses it.
    unsafe fn write(
        &self,
        row: [usize; 2],
        pass_and_block: [usize; 2],
        slots: &Slots<R, P>,
        gradients: &[Block<R>; 3],
    );
}

/// `grad_locations` and `grad_weights`, each if it is wanted.
pub(super) struct GivenGradients<E> {
    pub locations: Option<Gradient<E, 6>>,
    pub weights: Option<Gradient<E, 5>>,
}

/// A gradient of locations or weights, and where each block of samples lies in it.
pub(super) struct Gradient<E, const RANK: usize> {
    tensor: Coordinates<E, RANK>,
    /// By pass and block.
    places: Vec<Vec<Block<isize>>>,
}

impl<E: Element, const RANK: usize> Gradient<E, RANK> {
    pub fn new<R: Real, P>(tensor: &ViewMut<'_>, passes: &[Pass<R, P>]) -> Self {
        let of_pass = |pass: &Pass<R, P>| {
            pass.slots
                .iter()
                .map(|slots| plan::places(&slots.samples, tensor.layout().strides()))
                .collect()
        };
        let places = passes.iter().map(of_pass).collect();
        Gradient {
            tensor: Coordinates::new(tensor.as_mut_ptr(), tensor.layout()),
            places,
        }
    }

    /// # Safety
    /// The row lies in the tensor, and only the caller uses it.
    #[inline(always)]
    unsafe fn write<R: Real>(
        &self,
        [n, q]: [usize; 2],
        offset: isize,
        [pass, block]: [usize; 2],
        count: usize,
        numbers: &Block<R>,
    ) {
        let row = self.tensor.row([n, q, 0]) + offset;
        // SAFETY: as the caller promises.
        unsafe {
            self.tensor
                .write(row, &self.places[pass][block], count, numbers)
        }
    }
}

impl<E: Element, R: Real, P> Destination<R, P> for GivenGradients<E> {
    #[inline(always)]
    unsafe fn write(
        &self,
        row: [usize; 2],
        pass_and_block: [usize; 2],
        slots: &Slots<R, P>,
        [by_x, by_y, by_weight]: &[Block<R>; 3],
    ) {
        let count = slots.count;
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(to) = &self.locations {
                to.write(row, 0, pass_and_block, count, by_x);
                to.write(row, to.tensor.strides()[5], pass_and_block, count, by_y);
            }
            if let Some(to) = &self.weights {
                to.write(row, 0, pass_and_block, count, by_weight);
            }
        }
    }
}

/// Some (image, query) rows.
pub(super) struct SampleGradients<'a, E: Element, S: Sampling<E>, T> {
    pub plan: &'a Plan<E>,
    pub sampling: &'a S,
    pub passes: &'a [Pass<E::Accumulator, S::Places>],
    pub grad_out: Raw<E, 3>,
    pub to: &'a T,
    pub rows: Range<usize>,
}

impl<E: Vectorized, S: Sampling<E>, T: Destination<E::Accumulator, S::Places>> Kernel
    for SampleGradients<'_, E, S, T>
{
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let sizes = self.plan.sizes;
        let (channels, lanes) = (sizes.channels, E::Lanes::<I>::COUNT);
        let contiguous = self.plan.value.strides[3] == 1 && self.grad_out.strides[2] == 1;
        let vectors = if contiguous && channels.is_multiple_of(lanes) {
            channels / lanes
        } else {
            ANY
        };
        for (number, pass) in self.passes.iter().enumerate() {
            for row in self.rows.clone() {
                let row = [row / sizes.queries, row % sizes.queries];
                for block in 0..pass.slots.len() {
                    // SAFETY: the row lies in the problem, and its channels fill that many vectors.
                    unsafe { self.block::<I>(row, [number, block], vectors) }
                }
            }
        }
    }
}

impl<E: Vectorized, S: Sampling<E>, T: Destination<E::Accumulator, S::Places>>
    SampleGradients<'_, E, S, T>
{
    /// # Safety
    /// The row lies in the problem, and its channels fill `vectors` vectors, if that is not [`ANY`].
    #[inline(always)]
    unsafe fn block<I: Isa>(&self, [n, q]: [usize; 2], [pass, block]: [usize; 2], vectors: usize) {
        let slots = &self.passes[pass].slots[block];
        // SAFETY: the row lies in the problem.
        let (cells, weight) = unsafe { self.sampling.find([n, q, 0], slots, slots.count) };
        let neighbours = self.plan.neighbours(n, slots, &cells);
        // Only these loops are specialised for the number of vectors, of which there are many.
        // SAFETY: a neighbour is a pixel of the level, or the pixel of zeros; the row has as many vectors.
        let dots = unsafe {
            match vectors {
                1 => self.dots::<I, 1>([n, q], slots, &neighbours),
                2 => self.dots::<I, 2>([n, q], slots, &neighbours),
                4 => self.dots::<I, 4>([n, q], slots, &neighbours),
                _ => self.dots::<I, ANY>([n, q], slots, &neighbours),
            }
        };
        let gradients = combine(&cells, &S::scale(&slots.grid), &weight, &dots);
        // SAFETY: these entries belong to this row alone.
        unsafe { self.to.write([n, q], [pass, block], slots, &gradients) }
    }

    /// The products of `grad_out` with the neighbours of each sample, summed over the channels.
    ///
    /// # Safety
    /// The row lies in the problem and has as many vectors, and the neighbours are readable.
    #[inline(always)]
    unsafe fn dots<I: Isa, const VECTORS: usize>(
        &self,
        [n, q]: [usize; 2],
        slots: &Slots<E::Accumulator, S::Places>,
        neighbours: &[Block<*const E>; 4],
    ) -> [Block<E::Accumulator>; 4] {
        let mut dots = [[E::Accumulator::ZERO; BLOCK]; 4];
        for i in 0..slots.count {
            let head = slots.samples[i][1];
            let grad_out = self
                .grad_out
                .at([n, q, head * self.plan.sizes.channels])
                .cast_const();
            let corners = [0, 1, 2, 3].map(|corner| neighbours[corner][i]);
            // SAFETY: as the caller promises.
            let four = unsafe {
                match VECTORS {
                    ANY => self.products_any::<I>(grad_out, corners),
                    _ => products::<E, I, VECTORS>(grad_out, corners),
                }
            };
            for corner in 0..4 {
                dots[corner][i] = four[corner];
            }
        }
        dots
    }

    /// The products of `grad_out` with each corner, summed over the channels, however many there are and wherever
    /// they lie.
    ///
    /// # Safety
    /// All are readable.
    #[inline(always)]
    unsafe fn products_any<I: Isa>(
        &self,
        grad_out: *const E,
        corners: [*const E; 4],
    ) -> [E::Accumulator; 4] {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let mut sums = [E::Lanes::<I>::splat(E::Accumulator::ZERO); 4];
        for first in (0..channels).step_by(lanes) {
            let count = (channels - first).min(lanes);
            // SAFETY: `first..first + count` are channels of both.
            unsafe {
                let grad = load_some::<E, I>(grad_out, self.grad_out.strides[2], first, count);
                for corner in 0..4 {
                    let stride = match corners[corner] == self.plan.zeros() {
                        true => 1,
                        false => self.plan.value.strides[3],
                    };
                    let channels = load_some::<E, I>(corners[corner], stride, first, count);
                    sums[corner] = channels.mul_add(grad, sums[corner]);
                }
            }
        }
        Lanes::sums(sums)
    }
}

/// The products of `grad_out` with each corner, summed over the channels.
///
/// # Safety
/// All are readable, for as many vectors.
#[inline(always)]
unsafe fn products<E: Vectorized, I: Isa, const VECTORS: usize>(
    grad_out: *const E,
    corners: [*const E; 4],
) -> [E::Accumulator; 4] {
    let mut sums = [E::Lanes::<I>::splat(E::Accumulator::ZERO); 4];
    // SAFETY: as the caller promises.
    unsafe {
        // Products are summed over all channels, so the lane of a channel does not matter.
        let grad = load_dealt::<E, I, VECTORS>(grad_out);
        for corner in 0..4 {
            let channels = load_dealt::<E, I, VECTORS>(corners[corner]);
            for vector in 0..VECTORS {
                sums[corner] = channels[vector].mul_add(grad[vector], sums[corner]);
            }
        }
    }
    Lanes::sums(sums)
}

/// In place of a number of vectors: any number, and channels need not be contiguous.
const ANY: usize = 0;

/// From the dot products to the gradients by x, y and weight; exactly 0 where a sample takes no part.
#[inline(always)]
fn combine<R: Real>(
    cells: &Cells<R>,
    scale: &[Block<R>; 2],
    weight: &Block<R>,
    dots: &[Block<R>; 4],
) -> [Block<R>; 3] {
    // Loops without branches, which compilers vectorise.
    let mut inner = [[R::ZERO; BLOCK]; 4];
    for corner in 0..4 {
        for i in 0..BLOCK {
            let inside = cells.inside[i] >> corner & 1 != 0;
            inner[corner][i] = if inside { dots[corner][i] } else { R::ZERO };
        }
    }
    let mut gradients = [[R::ZERO; BLOCK]; 3];
    for i in 0..BLOCK {
        let [x, y] = [cells.past[0][i], cells.past[1][i]];
        let [a, b, c, d] = [inner[0][i], inner[1][i], inner[2][i], inner[3][i]];
        let by_x = weight[i] * scale[0][i] * ((R::ONE - y) * (b - a) + y * (d - c));
        let by_y = weight[i] * scale[1][i] * ((R::ONE - x) * (c - a) + x * (d - b));
        let takes_part = cells.inside[i] != 0;
        gradients[0][i] = if takes_part { by_x } else { R::ZERO };
        gradients[1][i] = if takes_part { by_y } else { R::ZERO };
        gradients[2][i] =
            (R::ONE - y) * ((R::ONE - x) * a + x * b) + y * ((R::ONE - x) * c + x * d);
    }
    gradients
}
