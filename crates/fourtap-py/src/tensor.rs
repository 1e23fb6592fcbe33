//! Somebody else's tensor, described for the library.

use std::ops::{Deref, DerefMut};

use fourtap::{DType, Layout, MAX_RANK, Place, View, ViewMut};
use pyo3::prelude::*;

use crate::errors::{Kind, unexpected};

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// What the operator computes with.
    Real(DType),
    /// What levels are told in.
    Int32,
    /// What levels are told in.
    Int64,
    /// Anything else.
    Other,
}

/// Where a tensor's elements are and what they are like. The object it describes is held by the caller's frame for
/// as long as this is used.
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

/// One number an axis. Few axes need no allocation, which would be a good part of the cost of a call.
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
    /// As the library takes it; an exception if its elements are no real numbers of a known type.
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

    /// To be read.
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

    /// To be written.
    ///
    /// # Safety
    /// The object described is alive, and used by nobody else, until the work of the call that gets this view is done.
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
