//! Views of the arrays of the crate `ndarray` (feature `ndarray`): the same memory with the same strides, never a copy.
//!
//! What may be written is an `Array` or an `ArrayViewMut`. An `ArcArray` is not taken as it is, because to write to one that is
//! shared copies it; its `view_mut` says so at the call.

use ndarray::{Array, ArrayBase, ArrayView, ArrayViewMut, Data, Dimension};

use crate::bool_view::BoolView;
use crate::dtype::Element;
use crate::layout::Layout;
use crate::tensor::{View, ViewMut};

/// An array view with its strides, which may be zero (broadcast) or negative (reversed).
///
/// ```
/// use fourtap::View;
/// use ndarray::{Array2, s};
/// let array = Array2::<f32>::zeros((4, 6));
/// let every_other = View::from(array.slice(s![..;2, ..;-1]));
/// assert_eq!(every_other.shape().to_string(), "[2, 6]");
/// assert_eq!(every_other.layout().strides(), [12, -1]);
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, T: Element, D: Dimension> From<ArrayView<'a, T, D>> for View<'a> {
    fn from(array: ArrayView<'a, T, D>) -> Self {
        let layout = Layout::strided(T::DTYPE, array.shape(), array.strides());
        // SAFETY: the array borrows every element that its strides reach, initialised, for `'a`.
        unsafe { View::from_raw(array.as_ptr().cast(), layout) }
    }
}

/// Any array that can be read: `Array`, `ArcArray`, `CowArray`, or a view of one.
///
/// ```
/// use fourtap::View;
/// use ndarray::{Array3, ShapeBuilder};
/// let column_major = Array3::<f64>::zeros((2, 3, 4).f());
/// assert_eq!(View::from(&column_major).layout().strides(), [1, 2, 6]);
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for View<'a> {
    fn from(array: &'a ArrayBase<S, D>) -> Self {
        array.view().into()
    }
}

/// An array view to write to, with its strides.
///
/// ```
/// use fourtap::msda::{self, Inputs, Levels};
/// use fourtap::{Backend, View, ViewMut};
/// use ndarray::{Array, array};
///
/// let levels = Levels::packed(&[(1, 2)])?; // one level, one row of two pixels
/// let value = array![[[[10.0f32]], [[20.0]]]]; // [N, S, M, D]
/// let locations = Array::from_elem((1, 1, 1, 1, 1, 2), 0.5f32); // [N, Q, M, L, P, 2]
/// let weights = Array::from_elem((1, 1, 1, 1, 1), 1.0f32); // [N, Q, M, L, P]
/// let mut rows = Array::<f32, _>::zeros((3, 1, 1));
/// msda::forward(
///     &Backend::default(),
///     Inputs {
///         value: View::from(&value),
///         levels: (&levels).into(),
///         sampling_locations: View::from(&locations),
///         attention_weights: View::from(&weights),
///     },
///     ViewMut::from(rows.slice_mut(ndarray::s![1..2, .., ..])), // [N, Q, M * D]
/// )?;
/// assert_eq!(rows, array![[[0.0]], [[15.0]], [[0.0]]]);
/// # Ok::<(), fourtap::Error>(())
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, T: Element, D: Dimension> From<ArrayViewMut<'a, T, D>> for ViewMut<'a> {
    fn from(mut array: ArrayViewMut<'a, T, D>) -> Self {
        let layout = Layout::strided(T::DTYPE, array.shape(), array.strides());
        // SAFETY: the array borrows every element that its strides reach, and nobody else does, for `'a`.
        unsafe { ViewMut::from_raw(array.as_mut_ptr().cast(), layout) }
    }
}

/// All of an array, to write to.
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, T: Element, D: Dimension> From<&'a mut Array<T, D>> for ViewMut<'a> {
    fn from(array: &'a mut Array<T, D>) -> Self {
        array.view_mut().into()
    }
}

/// An array view of booleans with its strides: a mask.
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, D: Dimension> From<ArrayView<'a, bool, D>> for BoolView<'a> {
    fn from(array: ArrayView<'a, bool, D>) -> Self {
        // SAFETY: there is a stride per axis, in elements of one byte each. The array borrows every element that its strides
        // reach, initialised, for `'a`.
        unsafe { BoolView::from_raw(array.as_ptr().cast(), array.shape(), array.strides()) }
    }
}

/// Any array of booleans that can be read.
///
/// ```
/// use fourtap::BoolView;
/// use ndarray::array;
/// let padding = array![[false, true], [false, false]];
/// assert_eq!(BoolView::from(&padding).strides(), [2, 1]);
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "ndarray")))]
impl<'a, S: Data<Elem = bool>, D: Dimension> From<&'a ArrayBase<S, D>> for BoolView<'a> {
    fn from(array: &'a ArrayBase<S, D>) -> Self {
        array.view().into()
    }
}
