//! Forward: for each (image, query, head), samples in blocks, channels in vectors held in registers.

use super::geometry::{BLOCK, Block, locate};
use super::order::Share;
use super::plan::{Plan, Raw, Slots};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, load_strided, store_strided};
use crate::dtype::{Element, Real};

/// A range of (image, query) rows of `out`.
pub(super) struct Rows<'a, E: Element> {
    pub plan: &'a Plan<E>,
    pub slots: &'a [Slots<E::Accumulator>],
    pub out: Raw<E, 3>,
    pub rows: Share<'a>,
}

/// What a block of samples reads and how much of it.
#[derive(Clone)]
struct Taps<E: Element> {
    shares: [Block<E::Accumulator>; 4],
    neighbours: [Block<*const E>; 4],
}

impl<E: Element> Taps<E> {
    fn empty() -> Self {
        Taps { shares: [[E::Accumulator::ZERO; BLOCK]; 4], neighbours: [[std::ptr::null(); BLOCK]; 4] }
    }
}

impl<E: Vectorized> Kernel for Rows<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let sizes = self.plan.sizes;
        let lanes = E::Lanes::<I>::COUNT;
        let contiguous = self.plan.value.strides[3] == 1;
        let mut taps = vec![Taps::empty(); self.slots.len()];
        for rows in self.rows.rows() {
            let [[n, q], [next_n, next_q]] = rows.map(|row| [row / sizes.queries, row % sizes.queries]);
            for m in 0..sizes.heads {
                if let Some(slots) = self.slots.first() {
                    self.plan.prefetch([next_n, next_q, m], slots, sizes.levels * sizes.points);
                }
                // SAFETY: the row lies in the problem.
                unsafe { self.find([n, q, m], &mut taps) };
                let mut done = 0;
                while done < sizes.channels {
                    let left = sizes.channels - done;
                    // SAFETY: the row lies in the problem, and `done..done + step` in the channels.
                    unsafe {
                        done += if !contiguous {
                            self.chunk::<I, 1, STRIDED>([n, q, m], &taps, done, left.min(lanes))
                        } else if left >= 8 * lanes {
                            self.chunk::<I, 8, WHOLE>([n, q, m], &taps, done, 8 * lanes)
                        } else if left >= 4 * lanes {
                            self.chunk::<I, 4, WHOLE>([n, q, m], &taps, done, 4 * lanes)
                        } else if left >= 2 * lanes {
                            self.chunk::<I, 2, WHOLE>([n, q, m], &taps, done, 2 * lanes)
                        } else if left >= lanes {
                            self.chunk::<I, 1, WHOLE>([n, q, m], &taps, done, lanes)
                        } else {
                            self.chunk::<I, 1, FIRST>([n, q, m], &taps, done, left)
                        };
                    }
                }
            }
        }
    }
}

/// How channels are read: all lanes, the first few, or a stride apart.
const WHOLE: u8 = 0;
const FIRST: u8 = 1;
const STRIDED: u8 = 2;

impl<E: Vectorized> Rows<'_, E> {
    /// Finds what one (image, query, head) reads.
    ///
    /// # Safety
    /// The row lies in the problem.
    #[inline(always)]
    unsafe fn find(&self, [n, q, m]: [usize; 3], taps: &mut [Taps<E>]) {
        for (taps, slots) in taps.iter_mut().zip(self.slots) {
            // SAFETY: the row lies in the problem.
            let [x, y, weight] = unsafe { self.plan.read([n, q, m], slots, slots.count) };
            let cells = locate(&slots.grid, &x, &y);
            taps.shares = cells.shares(&weight);
            taps.neighbours = self.plan.neighbours([n, m], slots, &cells);
        }
    }

    /// Computes `count` channels from `first` on, and returns `count`.
    ///
    /// # Safety
    /// They lie in the problem and fit `VECTORS` vectors.
    #[inline(always)]
    unsafe fn chunk<I: Isa, const VECTORS: usize, const READ: u8>(
        &self,
        [n, q, m]: [usize; 3],
        taps: &[Taps<E>],
        first: usize,
        count: usize,
    ) -> usize {
        let lanes = E::Lanes::<I>::COUNT;
        let stride = self.plan.value.strides[3];
        // Two sets, so that additions to one need not wait for those to the other.
        let mut sums = [[E::Lanes::<I>::splat(E::Accumulator::ZERO); VECTORS]; 2];
        for (taps, slots) in taps.iter().zip(self.slots) {
            for i in 0..slots.count {
                for corner in 0..4 {
                    let share = E::Lanes::<I>::splat(taps.shares[corner][i]);
                    let from = taps.neighbours[corner][i];
                    for vector in 0..VECTORS {
                        let sum = &mut sums[corner % 2][vector];
                        // SAFETY: a neighbour is a pixel of the level, or one of zeros.
                        let channels: E::Lanes<I> = unsafe {
                            match READ {
                                WHOLE => Access::<E>::load(from.add(first + vector * lanes)),
                                FIRST => Access::<E>::load_first(from.add(first), count),
                                _ if from == self.plan.zeros() => Access::<E>::load_first(from, count),
                                _ => load_strided(from.offset(first as isize * stride), stride, count),
                            }
                        };
                        *sum = channels.mul_add(share, *sum);
                    }
                }
            }
        }
        let out = self.out.at([n, q, m * self.plan.sizes.channels + first]);
        for (vector, (&even, &odd)) in sums[0].iter().zip(&sums[1]).enumerate() {
            let sum = even.add(odd);
            // SAFETY: these channels of `out` lie in it, and no other row has them.
            unsafe {
                match self.out.strides[2] {
                    1 if READ == WHOLE => Access::<E>::store(sum, out.add(vector * lanes)),
                    1 => Access::<E>::store_first(sum, out, count),
                    stride => {
                        let out = out.offset((vector * lanes) as isize * stride);
                        store_strided::<E, _>(sum, out, stride, count.min(lanes));
                    }
                }
            }
        }
        count
    }
}
