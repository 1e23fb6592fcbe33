//! What tiles cannot do: rows with numbers that are infinite, NaN, or beyond what tiles multiply as f32 would. There are
//! hardly ever any, so this is short rather than fast. It changes nothing of any other row, not a bit.

use super::pack::Rows;
use super::split::Split;
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, load_some};

/// The product of a query and a key.
pub struct Dot<'a, E> {
    pub query: Rows<E>,
    pub key: Rows<E>,
    pub to: &'a mut f32,
}

impl<E: Split> Kernel for Dot<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let lanes = <E as Vectorized>::Lanes::<I>::COUNT;
        let channels = self.query.channels;
        let mut sum = E::Lanes::<I>::splat(0.0);
        for first in (0..channels).step_by(lanes) {
            let some = lanes.min(channels - first);
            let load = |rows: Rows<E>| (rows.row(0), rows.strides[1]);
            let ((query, of_query), (key, of_key)) = (load(self.query), load(self.key));
            // SAFETY: the channels lie in both rows.
            unsafe {
                let query = load_some::<E, I>(query, of_query, first, some);
                let key = load_some::<E, I>(key, of_key, first, some);
                sum = query.mul_add(key, sum);
            }
        }
        let none = E::Lanes::<I>::splat(0.0);
        *self.to = Lanes::<f32>::sums([sum, none, none, none])[0];
    }
}

/// Adds a value to sums, times a weight.
pub struct AddValue<'a, E> {
    pub value: Rows<E>,
    pub weight: f32,
    /// One for each channel at least.
    pub sums: &'a mut [f32],
}

impl<E: Split> Kernel for AddValue<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let lanes = <E as Vectorized>::Lanes::<I>::COUNT;
        let channels = self.value.channels;
        let sums = &mut self.sums[..channels];
        let weight = E::Lanes::<I>::splat(self.weight);
        for first in (0..channels).step_by(lanes) {
            let some = lanes.min(channels - first);
            let sums = sums[first..].as_mut_ptr();
            // SAFETY: the channels lie in the value and the sums.
            unsafe {
                let value =
                    load_some::<E, I>(self.value.row(0), self.value.strides[1], first, some);
                let sum: E::Lanes<I> = Access::<f32>::load_first(sums, some);
                Access::<f32>::store_first(value.mul_add(weight, sum), sums, some);
            }
        }
    }
}
