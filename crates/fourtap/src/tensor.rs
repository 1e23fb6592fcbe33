//! Strided views over memory that the caller owns.
//!
//! Making a view checks nothing. The operator that receives it does, under the name the tensor has there, so that an
//! error can say which tensor is wrong.

use std::marker::PhantomData;
use std::ops::Range;

use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::place::Place;
use crate::shape::Shape;

/// How much memory around the first element a view may touch.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// Exactly the elements of the shape.
    Whole { length: usize },
    /// Any element of a slice of `length`, the first element being at `offset`.
    Within { offset: usize, length: usize },
    /// Any element: the creator of the view has promised that its layout is valid.
    Trusted,
}

/// A read-only strided tensor over borrowed memory.
///
/// ```
/// use fourtap::View;
/// let data = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let matrix = View::new(&data, &[2, 3]);
/// let transposed = View::strided(&data, 0, &[3, 2], &[1, 3]);
/// assert_eq!(matrix.shape().to_string(), "[2, 3]");
/// assert_eq!(transposed.dtype(), fourtap::DType::F32);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: *const u8,
    place: Place,
    bounds: Bounds,
    layout: Layout,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view reads only, like the shared slice it borrows.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// All of `data` as a row-major tensor.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Self {
        View {
            data: data.as_ptr().cast(),
            place: Place::Host,
            bounds: Bounds::Whole { length: data.len() },
            layout: Layout::contiguous(T::DTYPE, shape),
            memory: PhantomData,
        }
    }

    /// Elements of `data`, the first at `offset`, the others `strides` elements apart.
    pub fn strided<T: Element>(
        data: &'a [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Self {
        View {
            data: data.as_ptr().wrapping_add(offset).cast(),
            place: Place::Host,
            bounds: Bounds::Within {
                offset,
                length: data.len(),
            },
            layout: Layout::strided(T::DTYPE, shape, strides),
            memory: PhantomData,
        }
    }

    /// A tensor whose first element is at `data`.
    ///
    /// # Safety
    /// If `layout` has elements, `data` is null or every address it reaches is readable for `'a`, holds initialised
    /// elements, and is not written meanwhile.
    pub unsafe fn from_raw(data: *const u8, layout: Layout) -> Self {
        View {
            data,
            place: Place::Host,
            bounds: Bounds::Trusted,
            layout,
            memory: PhantomData,
        }
    }

    /// A tensor in the memory of CUDA device `ordinal`, its first element at `address`.
    ///
    /// # Safety
    /// If `layout` has elements, `address` is 0 or every address it reaches is memory that device can read, and it is
    /// neither freed nor written until the work of the call that gets this view is done.
    pub unsafe fn on_cuda(ordinal: usize, address: u64, layout: Layout) -> Self {
        View {
            data: std::ptr::without_provenance(address as usize),
            place: Place::Cuda { ordinal },
            bounds: Bounds::Trusted,
            layout,
            memory: PhantomData,
        }
    }

    /// The same elements with two axes exchanged, so that a tensor stored as `[B, S, H, D]` becomes `[B, H, S, D]`
    /// by `transposed(1, 2)`; unchanged where there are no such axes.
    ///
    /// ```
    /// use fourtap::View;
    /// let data = [0f32; 24];
    /// let view = View::new(&data, &[1, 4, 2, 3]).transposed(1, 2);
    /// assert_eq!(view.shape().to_string(), "[1, 2, 4, 3]");
    /// assert_eq!(view.layout().strides(), [24, 3, 6, 1]);
    /// ```
    pub fn transposed(self, first: usize, second: usize) -> Self {
        View {
            layout: self.layout.transposed(first, second),
            ..self
        }
    }

    /// The memory it is in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.layout.shape()
    }

    /// Element type, shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// Checks that every element is inside the memory of the view, and returns the address range they occupy.
    pub(crate) fn check(&self, tensor: &'static str) -> Result<Range<usize>> {
        let layout = &self.layout;
        let (shape, rank) = (layout.shape(), layout.shape().rank());
        if layout.stride_count() != rank {
            return Err(Error::StrideCount {
                tensor,
                expected: rank,
                found: layout.stride_count(),
            });
        }
        let offsets = layout.offsets(tensor)?;
        match self.bounds {
            Bounds::Whole { length } => {
                // `offsets` has shown that the product does not overflow.
                let expected = shape.elements().unwrap_or(usize::MAX);
                if expected != length {
                    return Err(Error::Length {
                        tensor,
                        shape,
                        expected,
                        found: length,
                    });
                }
            }
            Bounds::Within { offset, length } => {
                if let Some((lowest, highest)) = offsets {
                    let place = |reach: isize| {
                        isize::try_from(offset)
                            .ok()
                            .and_then(|o| o.checked_add(reach))
                    };
                    let inside =
                        |at: Option<isize>| at.is_some_and(|at| at >= 0 && (at as usize) < length);
                    if !inside(place(lowest)) || !inside(place(highest)) {
                        return Err(Error::StridesOutOfRange {
                            tensor,
                            available: length,
                            lowest: place(lowest).unwrap_or(isize::MAX),
                            highest: place(highest).unwrap_or(isize::MAX),
                        });
                    }
                }
            }
            Bounds::Trusted => {}
        }
        let Some((lowest, highest)) = offsets else {
            return Ok(0..0);
        };
        let (address, size) = (self.data as usize, layout.dtype().size());
        if self.data.is_null() {
            return Err(Error::Null { tensor, shape });
        }
        if !address.is_multiple_of(size) {
            return Err(Error::Misaligned {
                tensor,
                expected: size,
                address,
            });
        }
        let at = |offset: isize| address.wrapping_add_signed(offset * size as isize);
        Ok(at(lowest)..at(highest) + size)
    }
}

/// A strided tensor over borrowed memory that may be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    view: View<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> ViewMut<'a> {
    /// All of `data` as a row-major tensor.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Self {
        let length = data.len();
        ViewMut::of(
            data.as_mut_ptr().cast(),
            Bounds::Whole { length },
            Layout::contiguous(T::DTYPE, shape),
        )
    }

    /// Elements of `data`, the first at `offset`, the others `strides` elements apart.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[isize],
    ) -> Self {
        let bounds = Bounds::Within {
            offset,
            length: data.len(),
        };
        let first = data.as_mut_ptr().wrapping_add(offset).cast();
        ViewMut::of(first, bounds, Layout::strided(T::DTYPE, shape, strides))
    }

    /// A tensor whose first element is at `data`.
    ///
    /// # Safety
    /// If `layout` has elements, `data` is null or every address it reaches is writable for `'a` and is neither
    /// read nor written by anybody else meanwhile.
    pub unsafe fn from_raw(data: *mut u8, layout: Layout) -> Self {
        ViewMut::of(data, Bounds::Trusted, layout)
    }

    /// A tensor in the memory of CUDA device `ordinal`, its first element at `address`.
    ///
    /// # Safety
    /// If `layout` has elements, `address` is 0 or every address it reaches is memory that device can write, and
    /// nothing else reads, writes or frees it until the work of the call that gets this view is done.
    pub unsafe fn on_cuda(ordinal: usize, address: u64, layout: Layout) -> Self {
        // SAFETY: what the caller promises is more than what a read-only view needs.
        let view = unsafe { View::on_cuda(ordinal, address, layout) };
        ViewMut {
            view,
            memory: PhantomData,
        }
    }

    /// The same elements with two axes exchanged, as [`View::transposed`].
    pub fn transposed(self, first: usize, second: usize) -> Self {
        ViewMut {
            view: self.view.transposed(first, second),
            ..self
        }
    }

    /// The memory it is in.
    pub fn place(&self) -> Place {
        self.view.place()
    }

    fn of(data: *mut u8, bounds: Bounds, layout: Layout) -> Self {
        ViewMut {
            view: View {
                data,
                place: Place::Host,
                bounds,
                layout,
                memory: PhantomData,
            },
            memory: PhantomData,
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.view.shape()
    }

    /// Element type, shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.view.layout
    }

    /// Address of the first element.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.view.data.cast_mut()
    }

    /// The same tensor, read-only.
    #[cfg(feature = "cuda")]
    pub(crate) fn as_view(&self) -> &View<'a> {
        &self.view
    }

    /// A second view of the same memory, for planning a call: nothing may be written through it.
    #[cfg(feature = "cuda")]
    pub(crate) fn alias(&self) -> ViewMut<'_> {
        ViewMut {
            view: self.view,
            memory: PhantomData,
        }
    }

    /// As [`View::check`]; also checks that no two indices reach the same element.
    pub(crate) fn check(&self, tensor: &'static str) -> Result<Range<usize>> {
        let range = self.view.check(tensor)?;
        let layout = &self.view.layout;
        if !range.is_empty() && layout.overlaps_itself() {
            return Err(Error::SelfOverlap {
                tensor,
                shape: layout.shape(),
                strides: layout.strides().to_vec(),
            });
        }
        Ok(range)
    }
}
