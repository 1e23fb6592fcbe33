//! A framework's tensor, described for the library.

use std::ops::{Deref, DerefMut};

use fourtap::{BoolView, DType, Layout, MAX_RANK, Place, View, ViewMut};
use pyo3::prelude::*;

use crate::errors::{Kind, unexpected};

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A type that the operator computes with.
    Real(DType),
    /// A type for levels.
    Int32,
    /// A type for levels.
    Int64,
    /// One byte, zero for false: a type for masks.
    Bool,
    /// Anything else.
    Other,
}

/// Address, element type, sizes and strides of a tensor. The caller keeps the object it describes alive for as long as
/// this is used.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name it has in the operator.
    pub name: &'static str,
    pub address: usize,
    pub place: Place,
    pub element: Element,
    pub sizes: Axes<usize>,
    /// In elements.
    pub strides: Axes<isize>,
}

/// One number per axis. Few axes need no allocation, which would be a good part of the cost of a call.
#[derive(Clone, Debug)]
pub enum Axes<T> {
    Few([T; MAX_RANK], usize),
    Many(Vec<T>),
}

impl<T: Copy + Default> FromIterator<T> for Axes<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        let (mut few, mut count) = ([T::default(); MAX_RANK], 0);
        let mut numbers = numbers.into_iter();
        for number in numbers.by_ref() {
            if count == MAX_RANK {
                return Axes::Many(few.into_iter().chain([number]).chain(numbers).collect());
            }
            few[count] = number;
            count += 1;
        }
        Axes::Few(few, count)
    }
}

impl<T> Deref for Axes<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Axes::Few(numbers, count) => &numbers[..*count],
            Axes::Many(numbers) => numbers,
        }
    }
}

impl<T> DerefMut for Axes<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Axes::Few(numbers, count) => &mut numbers[..*count],
            Axes::Many(numbers) => numbers,
        }
    }
}

impl Tensor {
    /// The library's layout; an exception if the element type is not a supported floating-point type.
    pub fn layout(&self, object: &Bound<'_, PyAny>) -> PyResult<Layout> {
        let Element::Real(dtype) = self.element else {
            let found = object.getattr("dtype")?.to_string();
            let expected = "element type f16, bf16, f32 or f64";
            return Err(unexpected(
                object.py(),
                Kind::DType,
                self.name,
                expected,
                found,
            ));
        };
        Ok(Layout::strided(dtype, &self.sizes, &self.strides))
    }

    /// A view to read.
    ///
    /// # Safety
    /// The object described is alive, and not written, until the work of the call that gets this view is done.
    pub unsafe fn view<'a>(&self, layout: Layout) -> View<'a> {
        match self.place {
            Place::Cuda { ordinal } => {
                // SAFETY: frameworks describe memory their tensors own, and the caller keeps it.
                unsafe { View::on_cuda(ordinal, self.address as u64, layout) }
            }
            _ => {
                let first = std::ptr::with_exposed_provenance(self.address);
                // SAFETY: as above.
                unsafe { View::from_raw(first, layout) }
            }
        }
    }

    /// A view of a mask; an exception if the elements are neither booleans nor bytes.
    ///
    /// # Safety
    /// As of [`Tensor::view`].
    pub unsafe fn bool_view<'a>(&self, object: &Bound<'_, PyAny>) -> PyResult<BoolView<'a>> {
        if self.element != Element::Bool {
            let found = object.getattr("dtype")?.to_string();
            let expected = "element type bool or uint8";
            return Err(unexpected(
                object.py(),
                Kind::DType,
                self.name,
                expected,
                found,
            ));
        }
        Ok(match self.place {
            Place::Cuda { ordinal } => {
                let address = self.address as u64;
                // SAFETY: as the caller promises; frameworks describe memory their tensors own, with a stride per axis.
                unsafe { BoolView::on_cuda(ordinal, address, &self.sizes, &self.strides) }
            }
            _ => {
                let first = std::ptr::with_exposed_provenance(self.address);
                // SAFETY: as above.
                unsafe { BoolView::from_raw(first, &self.sizes, &self.strides) }
            }
        })
    }

    /// A view to write.
    ///
    /// # Safety
    /// The object described is alive, and nothing else uses it, until the work of the call that gets this view is done.
    pub unsafe fn view_mut<'a>(&self, layout: Layout) -> ViewMut<'a> {
        match self.place {
            Place::Cuda { ordinal } => {
                // SAFETY: frameworks describe memory their tensors own, and the caller keeps it.
                unsafe { ViewMut::on_cuda(ordinal, self.address as u64, layout) }
            }
            _ => {
                let first = std::ptr::with_exposed_provenance_mut(self.address);
                // SAFETY: as above.
                unsafe { ViewMut::from_raw(first, layout) }
            }
        }
    }
}
