//! Forward: for each (image, query, head), samples in blocks, channels in vectors held in registers.

use std::ops::Range;

use super::geometry::locate;
use super::plan::{Plan, Raw, Slots};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, load_strided, store_strided};
use crate::dtype::{Element, Real};

/// The most vectors of channels held in registers at a time.
const MOST_VECTORS: usize = 8;

/// What a neighbour outside the level reads instead. Room for [`MOST_VECTORS`] of the widest vectors.
static ZEROS: [u64; 128] = [0; 128];

/// A range of (image, query) rows of `out`.
pub(super) struct Rows<'a, E: Element> {
    pub plan: &'a Plan<E>,
    pub slots: &'a [Slots<E::Accumulator>],
    pub out: Raw<E, 3>,
    pub rows: Range<usize>,
}

impl<E: Vectorized> Kernel for Rows<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let sizes = self.plan.sizes;
        let lanes = E::Lanes::<I>::COUNT;
        let contiguous = self.plan.value.strides[3] == 1;
        for row in self.rows.clone() {
            let [n, q] = [row / sizes.queries, row % sizes.queries];
            for m in 0..sizes.heads {
                let mut done = 0;
                while done < sizes.channels {
                    let left = sizes.channels - done;
                    // SAFETY: the row lies in the problem, and `done..done + step` in the channels.
                    unsafe {
                        done += if !contiguous {
                            self.chunk::<I, 1, STRIDED>([n, q, m], done, left.min(lanes))
                        } else if left >= 8 * lanes {
                            self.chunk::<I, 8, WHOLE>([n, q, m], done, 8 * lanes)
                        } else if left >= 4 * lanes {
                            self.chunk::<I, 4, WHOLE>([n, q, m], done, 4 * lanes)
                        } else if left >= 2 * lanes {
                            self.chunk::<I, 2, WHOLE>([n, q, m], done, 2 * lanes)
                        } else if left >= lanes {
                            self.chunk::<I, 1, WHOLE>([n, q, m], done, lanes)
                        } else {
                            self.chunk::<I, 1, FIRST>([n, q, m], done, left)
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
    /// Computes `count` channels from `first` on, and returns `count`.
    ///
    /// # Safety
    /// They lie in the problem and fit `VECTORS` vectors.
    #[inline(always)]
    unsafe fn chunk<I: Isa, const VECTORS: usize, const READ: u8>(
        &self,
        [n, q, m]: [usize; 3],
        first: usize,
        count: usize,
    ) -> usize {
        let lanes = E::Lanes::<I>::COUNT;
        let value = self.plan.value.at([n, 0, m, first]).cast_const();
        let channel_stride = self.plan.value.strides[3];
        // Two sets, so that additions to one need not wait for those to the other.
        let mut sums = [[E::Lanes::<I>::splat(E::Accumulator::ZERO); VECTORS]; 2];
        for slots in self.slots {
            // SAFETY: the row lies in the problem.
            let [x, y, weight] = unsafe { self.plan.read([n, q, m], slots, slots.count) };
            let cells = locate(&slots.grid, &x, &y);
            let shares = cells.shares(&weight);
            for i in 0..slots.count {
                let neighbours = self.plan.neighbours(value, cells.pixel[i], slots.grid.width[i]);
                for (corner, &neighbour) in neighbours.iter().enumerate() {
                    let outside = cells.inside[i] >> corner & 1 == 0;
                    let from = if outside { zeros() } else { neighbour };
                    let share = E::Lanes::<I>::splat(shares[corner][i]);
                    for vector in 0..VECTORS {
                        let sum = &mut sums[corner % 2][vector];
                        // SAFETY: a corner is a pixel of the level, or zeros enough for all vectors.
                        let channels: E::Lanes<I> = unsafe {
                            let from = from.add(vector * lanes);
                            match READ {
                                WHOLE => Access::<E>::load(from),
                                FIRST => Access::<E>::load_first(from, count),
                                _ if outside => Access::<E>::load(from),
                                _ => load_strided(from, channel_stride, count),
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

#[inline(always)]
fn zeros<E>() -> *const E {
    (&raw const ZEROS).cast()
}

const _: () = assert!(MOST_VECTORS * 64 <= size_of_val(&ZEROS));
