//! Sums to rows of `out`.

use crate::cpu::simd::{Access, Isa, Kernel, Lanes, Vectorized, store_strided};

use super::split::Split;

/// Rounds numbers to a row.
pub struct Round<'a, E> {
    pub from: &'a [f32],
    /// As many are writable here, and belong to whoever runs it.
    pub to: *mut E,
    pub stride: isize,
}

impl<E: Split> Kernel for Round<'_, E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let lanes = <E as Vectorized>::Lanes::<I>::COUNT;
        for first in (0..self.from.len()).step_by(lanes) {
            let some = lanes.min(self.from.len() - first);
            // SAFETY: the numbers lie in both rows.
            unsafe {
                let numbers: E::Lanes<I> =
                    Access::<f32>::load_first(self.from[first..].as_ptr(), some);
                let to = self.to.offset(first as isize * self.stride);
                match self.stride {
                    1 => Access::<E>::store_first(numbers, to, some),
                    stride => store_strided::<E, _>(numbers, to, stride, some),
                }
            }
        }
    }
}
