//! Backward, gradient of value: each task owns a band of one level of one (image, head) and walks all queries in
//! order, adding what falls in its band to sums of its own. No two tasks write the same element and each element's
//! terms come in one order, so the result does not depend on how the work was split.

use std::ops::Range;

use super::geometry::Block;
use super::plan::{Plan, Slots};
use super::sampling::Sampling;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{
    Access, Isa, Kernel, Lanes, Vectorized, load_some, prefetch, store_strided,
};
use crate::dtype::{Element, Real};

/// Prefetch distance in queries.
const PREFETCH_QUERIES: usize = 16;

/// One level, laid out for walking its samples.
pub(super) struct LevelWalk<R, P> {
    pub slots: Vec<Slots<R, P>>,
    /// Points of the level.
    pub points: usize,
    /// Queries one pass over `slots` covers.
    pub queries: usize,
}

impl<R: Real, P> LevelWalk<R, P> {
    /// `places` as for [`Plan::pass`].
    pub fn new<E: Element<Accumulator = R>>(
        plan: &Plan<E>,
        level: usize,
        places: impl Fn(usize, &[[usize; 4]]) -> P,
    ) -> Self {
        let (queries, slots) = plan.level_slots(level, places);
        LevelWalk {
            slots,
            points: plan.points(level),
            queries,
        }
    }
}

/// A band of one level of one (image, head).
pub(super) struct Scatter<'a, E: Element, S: Sampling<E>> {
    pub plan: &'a Plan<E>,
    pub sampling: &'a S,
    pub walk: &'a LevelWalk<E::Accumulator, S::Places>,
    pub grad_out: Raw<E, 3>,
    pub grad_value: Raw<E, 4>,
    pub image: usize,
    pub head: usize,
    /// Pixels on axis S.
    pub band: Range<usize>,
    /// One sum per pixel and channel of the band, all 0.
    pub sums: &'a mut [E::Accumulator],
}

impl<E: Vectorized, S: Sampling<E>> Kernel for Scatter<'_, E, S> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let contiguous = self.grad_out.strides[2] == 1;
        let vectors = if contiguous && channels.is_multiple_of(lanes) {
            channels / lanes
        } else {
            ANY
        };
        // SAFETY: the band lies in the problem, and its channels fill that many vectors.
        unsafe {
            self.add_all::<I>(vectors);
            self.write_back::<I>();
        }
    }
}

/// In place of a number of vectors: any number, and channels need not be contiguous.
const ANY: usize = 0;

/// A block of samples and the pixels they fall on.
struct Samples<R> {
    /// The first of their queries.
    query: usize,
    count: usize,
    shares: [Block<R>; 4],
    /// On axis S.
    upper_left: Block<i64>,
    /// Which neighbours lie in the level.
    inside: Block<i32>,
}

impl<E: Vectorized, S: Sampling<E>> Scatter<'_, E, S> {
    /// # Safety
    /// The band lies in the problem, and its channels fill `vectors` vectors, if that is not [`ANY`].
    #[inline(always)]
    unsafe fn add_all<I: Isa>(&mut self, vectors: usize) {
        let sizes = self.plan.sizes;
        if self.walk.points == 0 {
            return;
        }
        for query in (0..sizes.queries).step_by(self.walk.queries) {
            let queries = (sizes.queries - query).min(self.walk.queries);
            self.prefetch(query + PREFETCH_QUERIES);
            let walk = self.walk;
            for slots in &walk.slots {
                // Fewer only in the last pass, and only where one block holds all points of several queries.
                let count = slots.count.min(queries * walk.points);
                // SAFETY: the queries lie in the problem.
                let (cells, weight) = unsafe {
                    self.sampling
                        .find([self.image, query, self.head], slots, count)
                };
                let samples = Samples {
                    query,
                    count,
                    shares: cells.shares(&weight),
                    upper_left: cells.pixels(&slots.grid),
                    inside: cells.inside,
                };
                // Only these loops are specialised for the number of vectors, of which there are many.
                // SAFETY: the queries lie in the problem, and have as many vectors.
                unsafe {
                    match vectors {
                        1 => self.add_block::<I, 1>(slots, &samples),
                        2 => self.add_block::<I, 2>(slots, &samples),
                        4 => self.add_block::<I, 4>(slots, &samples),
                        _ => self.add_block::<I, ANY>(slots, &samples),
                    }
                }
            }
        }
    }

    /// Adds the samples of a block that fall in the band.
    ///
    /// # Safety
    /// Their queries lie in the problem, and have as many vectors.
    #[inline(always)]
    unsafe fn add_block<I: Isa, const VECTORS: usize>(
        &mut self,
        slots: &Slots<E::Accumulator, S::Places>,
        samples: &Samples<E::Accumulator>,
    ) {
        let channels = self.plan.sizes.channels;
        let pixels = self.band.len() as u64;
        for i in 0..samples.count {
            let first = samples.upper_left[i] - self.band.start as i64;
            let below = first + slots.grid.width[i] as i64;
            let inside = samples.inside[i];
            if inside == 0 || first >= pixels as i64 || below + 1 < 0 {
                continue;
            }
            let q = samples.query + slots.samples[i][0];
            let grad_out = self.grad_out.at([self.image, q, self.head * channels]);
            // SAFETY: the query lies in the problem.
            let grad = unsafe { load_in_order::<E, I, VECTORS>(grad_out) };
            for (corner, pixel) in [first, first + 1, below, below + 1].into_iter().enumerate() {
                if inside >> corner & 1 != 0 && (pixel as u64) < pixels {
                    let share = E::Lanes::<I>::splat(samples.shares[corner][i]);
                    // SAFETY: the pixel lies in the band and the query in the problem.
                    unsafe {
                        let sums = self.sums.as_mut_ptr().add(pixel as usize * channels);
                        if VECTORS == ANY {
                            self.add_any::<I>(sums, grad_out, share);
                        } else {
                            add::<E, I, VECTORS>(sums, &grad, share);
                        }
                    }
                }
            }
        }
    }

    /// Prefetches what the pass from `query` on will read. The entries of one head and level lie so far apart that
    /// the hardware prefetcher does not see the pattern, and waiting for them took half the time.
    #[inline(always)]
    fn prefetch(&self, query: usize) {
        for query in query..query + self.walk.queries {
            let grad_out =
                self.grad_out
                    .at([self.image, query, self.head * self.plan.sizes.channels]);
            prefetch(grad_out, self.plan.sizes.channels * size_of::<E>());
            let row = [self.image, query, self.head];
            self.sampling
                .prefetch(row, &self.walk.slots[0], self.walk.points);
        }
    }

    /// Adds `share * grad_out` to a pixel's sums, however many channels there are and wherever they lie.
    ///
    /// # Safety
    /// The sums are the pixel's, and `grad_out` is readable.
    #[inline(always)]
    unsafe fn add_any<I: Isa>(
        &self,
        sums: *mut E::Accumulator,
        grad_out: *const E,
        share: E::Lanes<I>,
    ) {
        let (channels, lanes) = (self.plan.sizes.channels, E::Lanes::<I>::COUNT);
        let stride = self.grad_out.strides[2];
        for first in (0..channels).step_by(lanes) {
            let count = (channels - first).min(lanes);
            // SAFETY: `first..first + count` are channels of both.
            unsafe {
                let grad = load_some::<E, I>(grad_out, stride, first, count);
                let to = sums.add(first);
                let sum: E::Lanes<I> = Access::<E::Accumulator>::load_first(to, count);
                Access::<E::Accumulator>::store_first(grad.mul_add(share, sum), to, count);
            }
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

/// Adds `share * grad` to a pixel's sums.
///
/// # Safety
/// The sums are the pixel's, as many as `grad` has lanes.
#[inline(always)]
unsafe fn add<E: Vectorized, I: Isa, const VECTORS: usize>(
    sums: *mut E::Accumulator,
    grad: &[E::Lanes<I>; VECTORS],
    share: E::Lanes<I>,
) {
    for vector in 0..VECTORS {
        // SAFETY: as the caller promises.
        unsafe {
            let to = sums.add(vector * E::Lanes::<I>::COUNT);
            let sum: E::Lanes<I> = Access::<E::Accumulator>::load(to);
            Access::<E::Accumulator>::store(grad[vector].mul_add(share, sum), to);
        }
    }
}

/// # Safety
/// As many vectors are readable at `from`.
#[inline(always)]
unsafe fn load_in_order<E: Vectorized, I: Isa, const VECTORS: usize>(
    from: *const E,
) -> [E::Lanes<I>; VECTORS] {
    let mut vectors = [E::Lanes::<I>::splat(E::Accumulator::ZERO); VECTORS];
    for vector in 0..VECTORS {
        // SAFETY: as the caller promises.
        vectors[vector] = unsafe { Access::<E>::load(from.add(vector * E::Lanes::<I>::COUNT)) };
    }
    vectors
}
