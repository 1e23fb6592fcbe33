//! Forward: for each (image, query, head), samples in blocks, channels in vectors held in registers.

use std::ops::Range;

use super::geometry::{BLOCK, Block};
use super::plan::{Pass, Plan};
use super::sampling::Sampling;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{
    Access, Isa, Kernel, Lanes, MAX_LANES, Vectorized, load_dealt, load_some, store_strided,
};
use crate::dtype::{Element, Real};

/// Some (image, query) rows of `out`.
pub(super) struct Rows<'a, E: Element, S: Sampling<E>> {
    pub plan: &'a Plan<E>,
    pub sampling: &'a S,
    pub passes: &'a [Pass<E::Accumulator, S::Places>],
    pub out: Raw<E, 3>,
    pub rows: Range<usize>,
}

/// The neighbours that a block of samples reads, and their weights.
#[derive(Clone)]
struct Taps<E: Element> {
    shares: [Block<E::Accumulator>; 4],
    neighbours: [Block<*const E>; 4],
}

impl<E: Element> Taps<E> {
    fn empty() -> Self {
        Taps {
            shares: [[E::Accumulator::ZERO; BLOCK]; 4],
            neighbours: [[std::ptr::null(); BLOCK]; 4],
        }
    }
}

impl<E: Vectorized, S: Sampling<E>> Kernel for Rows<'_, E, S> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let sizes = self.plan.sizes;
        let row_length = sizes.heads * sizes.channels;
        // Between passes, sums are kept in `out` itself if it holds the accumulator type, otherwise here.
        let in_out = E::DTYPE == E::Accumulator::DTYPE && self.out.strides[2] == 1;
        let waiting = if in_out || self.passes.len() < 2 {
            0
        } else {
            self.rows.len() * row_length
        };
        // Never read before the first pass has written it.
        let mut waiting: Vec<E::Accumulator> = Vec::with_capacity(waiting);
        for (number, pass) in self.passes.iter().enumerate() {
            let mut taps = vec![Taps::empty(); pass.slots.len()];
            for row in self.rows.clone() {
                let [n, q] = [row / sizes.queries, row % sizes.queries];
                let sums = match in_out {
                    true => self.out.at([n, q]).cast(),
                    false => waiting
                        .as_mut_ptr()
                        .wrapping_add((row - self.rows.start) * row_length),
                };
                let place = OutputRow {
                    n,
                    q,
                    sums,
                    first: number == 0,
                    last: number + 1 == self.passes.len(),
                };
                // SAFETY: the row lies in the problem.
                unsafe {
                    self.find([n, q], pass, &mut taps);
                    for m in 0..sizes.heads {
                        self.head::<I>(&place, m, pass, &taps);
                    }
                }
            }
        }
    }
}

/// A row of the output, during one pass.
struct OutputRow<A> {
    n: usize,
    q: usize,
    /// Where its sums are kept between passes.
    sums: *mut A,
    /// Whether this is the first pass.
    first: bool,
    /// Whether this is the last pass.
    last: bool,
}

/// How channels are read: pairs of vectors, one vector, or some lanes of one, possibly strided.
const PAIRS: u8 = 0;
const WHOLE: u8 = 1;
const SOME: u8 = 2;

impl<E: Vectorized, S: Sampling<E>> Rows<'_, E, S> {
    /// Finds what one (image, query) reads.
    ///
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    unsafe fn find(
        &self,
        [n, q]: [usize; 2],
        pass: &Pass<E::Accumulator, S::Places>,
        taps: &mut [Taps<E>],
    ) {
        for (taps, slots) in taps.iter_mut().zip(&pass.slots) {
            // SAFETY: the row lies in the problem.
            let (cells, weight) = unsafe { self.sampling.find([n, q, 0], slots, slots.count) };
            taps.shares = cells.shares(&weight);
            taps.neighbours = self.plan.neighbours(n, slots, &cells);
        }
    }

    /// All channels of a head, as many at a time as fit in registers.
    ///
    /// # Safety
    /// The row lies in the problem, and `taps` are its.
    #[inline(always)]
    unsafe fn head<I: Isa>(
        &self,
        place: &OutputRow<E::Accumulator>,
        m: usize,
        pass: &Pass<E::Accumulator, S::Places>,
        taps: &[Taps<E>],
    ) {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let contiguous = self.plan.value.strides[3] == 1;
        let mut done = 0;
        while done < channels {
            let left = channels - done;
            // SAFETY: `done..done + count` lie in the channels and fit the vectors.
            done += unsafe {
                if !contiguous {
                    self.chunk::<I, 1, SOME>(place, m, pass, taps, done, left.min(lanes))
                } else if left >= 8 * lanes {
                    self.chunk::<I, 8, PAIRS>(place, m, pass, taps, done, 8 * lanes)
                } else if left >= 4 * lanes {
                    self.chunk::<I, 4, PAIRS>(place, m, pass, taps, done, 4 * lanes)
                } else if left >= 2 * lanes {
                    self.chunk::<I, 2, PAIRS>(place, m, pass, taps, done, 2 * lanes)
                } else if left >= lanes {
                    self.chunk::<I, 1, WHOLE>(place, m, pass, taps, done, lanes)
                } else {
                    self.chunk::<I, 1, SOME>(place, m, pass, taps, done, left)
                }
            };
        }
    }

    /// Computes `count` channels from `first` on, and returns `count`.
    ///
    /// # Safety
    /// They lie in the problem and fit `VECTORS` vectors.
    #[inline(always)]
    unsafe fn chunk<I: Isa, const VECTORS: usize, const READ: u8>(
        &self,
        place: &OutputRow<E::Accumulator>,
        m: usize,
        pass: &Pass<E::Accumulator, S::Places>,
        taps: &[Taps<E>],
        first: usize,
        count: usize,
    ) -> usize {
        let lanes = E::Lanes::<I>::COUNT;
        let stride = self.plan.value.strides[3];
        let channel = m * self.plan.sizes.channels + first;
        let waiting = place.sums.wrapping_add(channel);
        // Two sets of sums, to shorten the chain of dependent additions.
        let mut sums = [[E::Lanes::<I>::splat(E::Accumulator::ZERO); VECTORS]; 2];
        if !place.first {
            for vector in 0..VECTORS {
                // SAFETY: the pass before stored them.
                sums[0][vector] = unsafe {
                    match READ {
                        PAIRS | WHOLE => {
                            Access::<E::Accumulator>::load(waiting.add(vector * lanes))
                        }
                        _ => Access::<E::Accumulator>::load_first(waiting, count),
                    }
                };
            }
        }
        for (block, lanes_of_block) in pass.of_head(m) {
            let taps = &taps[block];
            for i in lanes_of_block {
                for corner in 0..4 {
                    let share = E::Lanes::<I>::splat(taps.shares[corner][i]);
                    let from = taps.neighbours[corner][i];
                    let sums = &mut sums[corner % 2];
                    // SAFETY: a neighbour is a pixel of the level, or the pixel of zeros.
                    unsafe {
                        let channels: [E::Lanes<I>; VECTORS] = match READ {
                            PAIRS | WHOLE => load_dealt::<E, I, VECTORS>(from.add(first)),
                            _ if from == self.plan.zeros() => {
                                [Access::<E>::load_first(from, count); VECTORS]
                            }
                            _ => [load_some::<E, I>(from, stride, first, count); VECTORS],
                        };
                        for vector in 0..VECTORS {
                            sums[vector] = channels[vector].mul_add(share, sums[vector]);
                        }
                    }
                }
            }
        }
        let [mut sums, others] = sums;
        for vector in 0..VECTORS {
            sums[vector] = sums[vector].add(others[vector]);
        }
        // SAFETY: these channels of `out`, or of the sums that wait, lie in it, and no other row has them.
        unsafe {
            if place.last {
                self.store::<I, VECTORS, READ>(
                    sums,
                    self.out.at([place.n, place.q, channel]),
                    count,
                );
            } else {
                for (vector, sum) in sums.into_iter().enumerate() {
                    match READ {
                        PAIRS | WHOLE => {
                            Access::<E::Accumulator>::store(sum, waiting.add(vector * lanes))
                        }
                        _ => Access::<E::Accumulator>::store_first(sum, waiting, count),
                    }
                }
            }
        }
        count
    }

    /// Rounds sums to `out`.
    ///
    /// # Safety
    /// `count` channels from `out` on belong to the caller alone.
    #[inline(always)]
    unsafe fn store<I: Isa, const VECTORS: usize, const READ: u8>(
        &self,
        sums: [E::Lanes<I>; VECTORS],
        out: *mut E,
        count: usize,
    ) {
        let (lanes, stride) = (E::Lanes::<I>::COUNT, self.out.strides[2]);
        // SAFETY: as the caller promises.
        unsafe {
            if READ == PAIRS {
                for (pair, sums) in sums.as_chunks::<2>().0.iter().enumerate() {
                    if stride == 1 {
                        Access::<E>::store_pair(*sums, out.add(2 * pair * lanes));
                        continue;
                    }
                    let mut in_order = [E::default(); 2 * MAX_LANES];
                    Access::<E>::store_pair(*sums, in_order.as_mut_ptr());
                    for (i, element) in in_order[..2 * lanes].iter().enumerate() {
                        *out.offset((2 * pair * lanes + i) as isize * stride) = *element;
                    }
                }
            } else if stride == 1 {
                Access::<E>::store_first(sums[0], out, count);
            } else {
                store_strided::<E, _>(sums[0], out, stride, count);
            }
        }
    }
}
