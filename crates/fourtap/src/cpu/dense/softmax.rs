//! Online softmax: logits come one step at a time.

use super::lanes::{Lane, QUERIES};
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, VectorReal};

/// Running maximum and sum of each row.
pub(super) struct Softmax<R> {
    /// The highest logit so far, as an exponent of 2.
    pub highest: Lane<R>,
    /// The sum of weights, relative to the weight of the highest logit.
    pub total: Lane<R>,
    /// The factor that rescales the sums of earlier steps to the new maximum.
    pub decay: Lane<R>,
}

impl<R: VectorReal> Softmax<R> {
    pub fn new() -> Self {
        Softmax {
            highest: Lane([R::NEG_INFINITY; QUERIES]),
            total: Lane([R::ZERO; QUERIES]),
            decay: Lane([R::ZERO; QUERIES]),
        }
    }
}

/// Turns the logits of a step into weights.
pub(super) struct Step<'a, R> {
    pub softmax: &'a mut Softmax<R>,
    /// One per key.
    pub logits: &'a mut [Lane<R>],
    /// How many lanes are in use.
    pub lanes: usize,
}

impl<R: VectorReal> Kernel for Step<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let Step {
            softmax,
            logits,
            lanes,
        } = self;
        let (keys, logits) = (logits.len(), logits.as_mut_ptr());
        for first in (0..lanes).step_by(R::Vector::<I>::COUNT) {
            // SAFETY: the vector lies in each `Lane`.
            unsafe {
                let at = |lane: &mut Lane<R>| lane.0.as_mut_ptr().add(first);
                let logit = |key: usize| logits.add(key).cast::<R>().add(first);
                let before: R::Vector<I> = R::Vector::<I>::load(at(&mut softmax.highest));
                // Four at a time, so that one comparison need not wait for another.
                let mut highest = [before; 4];
                for key in 0..keys {
                    highest[key % 4] = R::Vector::<I>::load(logit(key)).max(highest[key % 4]);
                }
                let [a, b, c, d] = highest;
                let highest = a.max(b).max(c.max(d));
                // Where no key was seen yet, any finite base gives weights of 0; minus infinity would give NaN.
                let base = highest.max(R::Vector::<I>::splat(R::LOWEST));
                let decay = before.sub(base).exp2();
                let mut total = R::Vector::<I>::splat(R::ZERO);
                for key in 0..keys {
                    let weight = R::Vector::<I>::load(logit(key)).sub(base).exp2();
                    total = total.add(weight);
                    R::Vector::<I>::store(weight, logit(key));
                }
                let all = R::Vector::<I>::load(at(&mut softmax.total)).mul_add(decay, total);
                R::Vector::<I>::store(all, at(&mut softmax.total));
                R::Vector::<I>::store(decay, at(&mut softmax.decay));
                R::Vector::<I>::store(highest, at(&mut softmax.highest));
            }
        }
    }
}
