//! What the oracles of all operators share.

use crate::dtype::{DType, Real, bf16, f16};
use crate::tensor::View;

/// A sum and the sum of its terms' magnitudes, which bounds its rounding error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum<R> {
    /// The sum.
    pub total: R,
    /// The sum of magnitudes.
    pub mass: R,
}

impl<R: Real> Sum<R> {
    pub(crate) fn add(&mut self, term: R) {
        self.total += term;
        self.mass += term.magnitude();
    }
}

/// One element, exactly.
pub(crate) fn read<const RANK: usize>(view: &View<'_>, index: [usize; RANK]) -> f64 {
    let (shape, strides) = (view.shape(), view.layout().strides());
    assert!(
        index.iter().zip(shape.sizes()).all(|(i, size)| i < size),
        "index {index:?} outside {shape}"
    );
    let offset: isize = index
        .iter()
        .zip(strides)
        .map(|(&i, &stride)| i as isize * stride)
        .sum();
    // SAFETY: the view was checked when the problem was, and the index is inside its shape.
    unsafe { read_at(view, offset) }
}

/// The element that is `offset` elements after the first, exactly.
///
/// # Safety
/// It is one of the view's, which was checked and is in host memory.
pub(crate) unsafe fn read_at(view: &View<'_>, offset: isize) -> f64 {
    let first = view.as_ptr();
    // SAFETY: as the caller promises.
    unsafe {
        match view.dtype() {
            DType::F16 => first.cast::<f16>().offset(offset).read().to_f64(),
            DType::BF16 => first.cast::<bf16>().offset(offset).read().to_f64(),
            DType::F32 => first.cast::<f32>().offset(offset).read() as f64,
            DType::F64 => first.cast::<f64>().offset(offset).read(),
        }
    }
}
