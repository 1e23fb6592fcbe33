//! Backward, gradient of value: each task owns a band of one level of one (image, head) and walks all queries in
//! order, adding what falls in its band to sums of its own. No two tasks touch the same element and each element's
//! terms come in one order, so the result does not depend on how the work was split.

use std::ops::Range;

use super::geometry::locate;
use super::plan::{Plan, Raw, Slots};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, load_strided, store_strided};
use crate::dtype::Element;

/// One level, laid out for walking its samples.
pub(super) struct LevelWalk<R> {
    pub slots: Vec<Slots<R>>,
    /// Queries one pass over `slots` covers.
    pub queries: usize,
}

/// A band of one level of one (image, head).
pub(super) struct Scatter<'a, E: Element> {
    pub plan: &'a Plan<E>,
    pub walk: &'a LevelWalk<E::Accumulator>,
    pub grad_out: Raw<E, 3>,
    pub grad_value: Raw<E, 4>,
    pub image: usize,
    pub head: usize,
    /// Pixels on axis S.
    pub band: Range<usize>,
    /// One sum a pixel and channel of the band, all 0.
    pub sums: &'a mut [E::Accumulator],
}

impl<E: Vectorized> Kernel for Scatter<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        // SAFETY: the band lies in the problem.
        unsafe {
            if self.grad_out.strides[2] == 1 {
                self.add_all::<I, true>();
            } else {
                self.add_all::<I, false>();
            }
            self.write_back::<I>();
        }
    }
}

impl<E: Vectorized> Scatter<'_, E> {
    /// # Safety
    /// The band lies in the problem.
    #[inline(always)]
    unsafe fn add_all<I: Isa, const CONTIGUOUS: bool>(&mut self) {
        let sizes = self.plan.sizes;
        let pixels = self.band.len() as u64;
        for query in (0..sizes.queries).step_by(self.walk.queries) {
            let queries = (sizes.queries - query).min(self.walk.queries);
            for slots in &self.walk.slots {
                // Fewer only in the last pass, and only where one block holds all points of several queries.
                let count = slots.count.min(queries * sizes.points);
                // SAFETY: the queries lie in the problem.
                let [x, y, weight] = unsafe { self.plan.read([self.image, query, self.head], slots, count) };
                let cells = locate(&slots.grid, &x, &y);
                let shares = cells.shares(&weight);
                let upper_left = cells.pixels(&slots.grid);
                for i in 0..count {
                    let first = upper_left[i] - self.band.start as i64;
                    let below = first + slots.grid.width[i] as i64;
                    if cells.inside[i] == 0 || first >= pixels as i64 || below + 1 < 0 {
                        continue;
                    }
                    let q = query + slots.samples[i][0];
                    let grad_out = self.grad_out.at([self.image, q, self.head * sizes.channels]);
                    for (corner, pixel) in [first, first + 1, below, below + 1].into_iter().enumerate() {
                        if cells.inside[i] >> corner & 1 != 0 && (pixel as u64) < pixels {
                            // SAFETY: the pixel lies in the band and the query in the problem.
                            unsafe { self.add::<I, CONTIGUOUS>(grad_out, pixel as usize, shares[corner][i]) };
                        }
                    }
                }
            }
        }
    }

    /// Adds `share * grad_out` to a pixel's sums.
    ///
    /// # Safety
    /// The pixel lies in the band, and `grad_out` is readable.
    #[inline(always)]
    unsafe fn add<I: Isa, const CONTIGUOUS: bool>(&mut self, grad_out: *const E, pixel: usize, share: E::Accumulator) {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let share = E::Lanes::<I>::splat(share);
        let stride = if CONTIGUOUS { 1 } else { self.grad_out.strides[2] };
        let mut first = 0;
        while first < channels {
            let count = (channels - first).min(lanes);
            // SAFETY: `first..first + count` are channels of `grad_out` and of the pixel's sums.
            unsafe {
                let from = grad_out.offset(first as isize * stride);
                let to = self.sums.as_mut_ptr().add(pixel * channels + first);
                if CONTIGUOUS && count == lanes {
                    let grad: E::Lanes<I> = Access::<E>::load(from);
                    let sum: E::Lanes<I> = Access::<E::Accumulator>::load(to);
                    Access::<E::Accumulator>::store(grad.mul_add(share, sum), to);
                } else {
                    let grad: E::Lanes<I> = match CONTIGUOUS {
                        true => Access::<E>::load_first(from, count),
                        false => load_strided(from, stride, count),
                    };
                    let sum: E::Lanes<I> = Access::<E::Accumulator>::load_first(to, count);
                    Access::<E::Accumulator>::store_first(grad.mul_add(share, sum), to, count);
                }
            }
            first += lanes;
        }
    }

    /// Rounds the sums to the gradient's type.
    ///
    /// # Safety
    /// The band lies in the problem.
    #[inline(always)]
    unsafe fn write_back<I: Isa>(&mut self) {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let stride = self.grad_value.strides[3];
        for (sums, pixel) in self.sums.chunks_exact(channels).zip(self.band.clone()) {
            let to = self.grad_value.at([self.image, pixel, self.head]);
            for first in (0..channels).step_by(lanes) {
                let count = (channels - first).min(lanes);
                // SAFETY: these channels of the gradient lie in it, and no other task has them.
                unsafe {
                    let to = to.offset(first as isize * stride);
                    let from = sums.as_ptr().add(first);
                    let sum: E::Lanes<I> = match count == lanes {
                        true => Access::<E::Accumulator>::load(from),
                        false => Access::<E::Accumulator>::load_first(from, count),
                    };
                    match stride {
                        1 if count == lanes => Access::<E>::store(sum, to),
                        1 => Access::<E>::store_first(sum, to, count),
                        _ => store_strided::<E, _>(sum, to, stride, count),
                    }
                }
            }
        }
    }
}
