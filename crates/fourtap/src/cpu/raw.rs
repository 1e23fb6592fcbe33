//! Tensors as kernels see them: a first element and strides, indexed within the shape that was checked.

use crate::dtype::Element;
use crate::layout::Layout;
use crate::tensor::View;

/// A tensor's first element and strides. Kernels index it within the shape that was checked.
#[derive(Clone, Copy)]
pub(super) struct Raw<E, const RANK: usize> {
    pub first: *mut E,
    pub strides: [isize; RANK],
}

// SAFETY: kernels only write through it to elements that no other thread accesses.
unsafe impl<E: Send, const RANK: usize> Send for Raw<E, RANK> {}
// SAFETY: as above.
unsafe impl<E: Sync, const RANK: usize> Sync for Raw<E, RANK> {}

impl<E: Element, const RANK: usize> Raw<E, RANK> {
    /// # Panics
    /// If the view was not checked to have this element type and rank.
    pub fn new(first: *mut u8, layout: &Layout) -> Self {
        assert_eq!(layout.dtype(), E::DTYPE, "checked with the call");
        let strides = layout.strides().try_into().expect("checked with the call");
        Raw {
            first: first.cast(),
            strides,
        }
    }

    pub fn of(view: &View<'_>) -> Self {
        Raw::new(view.as_ptr().cast_mut(), view.layout())
    }

    /// Address of the element at `index`; axes after the given ones have index 0.
    #[inline(always)]
    pub fn at<const GIVEN: usize>(&self, index: [usize; GIVEN]) -> *mut E {
        self.first.wrapping_offset(offset(&index, &self.strides))
    }
}

/// Elements from the first to that of an index, on as many axes as it has. Wrapping, because an index may be one that nothing is read at,
/// in an empty tensor or beyond an axis of one element, whose strides may be any numbers.
#[inline(always)]
pub(super) fn offset(index: &[usize], strides: &[isize]) -> isize {
    let mut offset = 0isize;
    for (&index, &stride) in index.iter().zip(strides) {
        offset = offset.wrapping_add((index as isize).wrapping_mul(stride));
    }
    offset
}
