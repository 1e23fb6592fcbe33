//! Backward, gradients of locations and weights: for each (image, query, head) and sample, the dot products of
//! `grad_out` with the four neighbours.

use super::geometry::{BLOCK, Block, Cells, locate};
use super::order::Share;
use super::plan::{Coordinates, Plan, Raw, Slots};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, load_strided};
use crate::dtype::{Element, Real};
use crate::tensor::ViewMut;

/// A gradient of locations or weights, and where each block of samples lies in it.
pub(super) struct Destination<const RANK: usize> {
    tensor: Coordinates<RANK>,
    places: Vec<Block<isize>>,
}

impl<const RANK: usize> Destination<RANK> {
    pub fn new<R: Real>(tensor: &ViewMut<'_>, slots: &[Slots<R>]) -> Self {
        let places = slots.iter().map(|slots| slots.places(tensor.layout().strides())).collect();
        Destination { tensor: Coordinates::new(tensor.as_mut_ptr(), tensor.layout()), places }
    }

    /// # Safety
    /// The row lies in the tensor, and only the caller uses it.
    #[inline(always)]
    unsafe fn write<R: Real>(
        &self,
        row: [usize; 3],
        offset: isize,
        block: usize,
        count: usize,
        numbers: &Block<R>,
    ) {
        // SAFETY: as the caller promises.
        unsafe { self.tensor.write(self.tensor.row(row) + offset, &self.places[block], count, numbers) }
    }
}

/// A range of (image, query) rows.
pub(super) struct SampleGradients<'a, E: Element> {
    pub plan: &'a Plan<E>,
    pub slots: &'a [Slots<E::Accumulator>],
    pub grad_out: Raw<E, 3>,
    pub grad_locations: &'a Option<Destination<6>>,
    pub grad_weights: &'a Option<Destination<5>>,
    pub rows: Share<'a>,
}

impl<E: Vectorized> Kernel for SampleGradients<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let sizes = self.plan.sizes;
        let contiguous = self.plan.value.strides[3] == 1 && self.grad_out.strides[2] == 1;
        for row in self.rows.rows() {
            let [n, q] = [row / sizes.queries, row % sizes.queries];
            for m in 0..sizes.heads {
                for block in 0..self.slots.len() {
                    // SAFETY: the row lies in the problem.
                    unsafe {
                        if contiguous {
                            self.block::<I, true>([n, q, m], block);
                        } else {
                            self.block::<I, false>([n, q, m], block);
                        }
                    }
                }
            }
        }
    }
}

impl<E: Vectorized> SampleGradients<'_, E> {
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    unsafe fn block<I: Isa, const CONTIGUOUS: bool>(&self, [n, q, m]: [usize; 3], block: usize) {
        let slots = &self.slots[block];
        // SAFETY: the row lies in the problem.
        let [x, y, weight] = unsafe { self.plan.read([n, q, m], slots, slots.count) };
        let cells = locate(&slots.grid, &x, &y);
        let neighbours = self.plan.neighbours([n, m], slots, &cells);
        let grad_out = self.grad_out.at([n, q, m * self.plan.sizes.channels]).cast_const();
        let mut dots = [[E::Accumulator::ZERO; BLOCK]; 4];
        for i in 0..slots.count {
            let corners = [0, 1, 2, 3].map(|corner| neighbours[corner][i]);
            // SAFETY: a neighbour is a pixel of the level, or one of zeros.
            let products = unsafe { self.dots::<I, CONTIGUOUS>(grad_out, corners) };
            for corner in 0..4 {
                dots[corner][i] = products[corner];
            }
        }
        let [by_x, by_y, by_weight] = combine(&cells, &slots.grid.scale, &weight, &dots);
        // SAFETY: these entries belong to this row alone.
        unsafe {
            if let Some(to) = self.grad_locations {
                to.write([n, q, m], 0, block, slots.count, &by_x);
                to.write([n, q, m], to.tensor.strides()[5], block, slots.count, &by_y);
            }
            if let Some(to) = self.grad_weights {
                to.write([n, q, m], 0, block, slots.count, &by_weight);
            }
        }
    }

    /// The products of `grad_out` with each corner, summed over the channels.
    ///
    /// # Safety
    /// All are readable.
    #[inline(always)]
    unsafe fn dots<I: Isa, const CONTIGUOUS: bool>(
        &self,
        grad_out: *const E,
        corners: [*const E; 4],
    ) -> [E::Accumulator; 4] {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let mut sums = [E::Lanes::<I>::splat(E::Accumulator::ZERO); 4];
        let mut first = 0;
        while first < channels {
            let count = (channels - first).min(lanes);
            // SAFETY: `first..first + count` are channels of both.
            unsafe {
                let load = |from: *const E, stride: isize| -> E::Lanes<I> {
                    let from = from.offset(first as isize * stride);
                    match (CONTIGUOUS, count == lanes) {
                        (true, true) => Access::<E>::load(from),
                        (true, false) => Access::<E>::load_first(from, count),
                        (false, _) => load_strided(from, stride, count),
                    }
                };
                let grad = load(grad_out, if CONTIGUOUS { 1 } else { self.grad_out.strides[2] });
                for (sum, corner) in sums.iter_mut().zip(corners) {
                    let zeros = corner == self.plan.zeros();
                    let channels = load(corner, if CONTIGUOUS || zeros { 1 } else { self.plan.value.strides[3] });
                    *sum = channels.mul_add(grad, *sum);
                }
            }
            first += lanes;
        }
        Lanes::sums(sums)
    }
}

/// From the dot products to the gradients by x, y and weight; exactly 0 where a sample takes no part.
#[inline(always)]
fn combine<R: Real>(
    cells: &Cells<R>,
    scale: &[Block<R>; 2],
    weight: &Block<R>,
    dots: &[Block<R>; 4],
) -> [Block<R>; 3] {
    let mut gradients = [[R::ZERO; BLOCK]; 3];
    for i in 0..BLOCK {
        let [x, y] = [cells.past[0][i], cells.past[1][i]];
        let corner = |corner: usize| if cells.inside[i] >> corner & 1 != 0 { dots[corner][i] } else { R::ZERO };
        let [a, b, c, d] = [corner(0), corner(1), corner(2), corner(3)];
        let all = [
            weight[i] * scale[0][i] * ((R::ONE - y) * (b - a) + y * (d - c)),
            weight[i] * scale[1][i] * ((R::ONE - x) * (c - a) + x * (d - b)),
            (R::ONE - y) * ((R::ONE - x) * a + x * b) + y * ((R::ONE - x) * c + x * d),
        ];
        for (gradient, one) in gradients.iter_mut().zip(all) {
            gradient[i] = if cells.inside[i] != 0 { one } else { R::ZERO };
        }
    }
    gradients
}
