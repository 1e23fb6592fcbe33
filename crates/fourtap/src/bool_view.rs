//! Strided views of booleans: masks. One byte each, zero for false, as frameworks store them.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::place::Place;
use crate::shape::{MAX_RANK, Shape};

/// A read-only strided tensor of booleans over borrowed memory. Any byte but 0 is true.
///
/// ```
/// use fourtap::BoolView;
/// let padding = [false, false, true, false, true, true];
/// assert_eq!(BoolView::new(&padding, &[2, 3]).shape().to_string(), "[2, 3]");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BoolView<'a> {
    data: *const u8,
    place: Place,
    /// Bytes of the slice it was made of, if it was.
    length: Option<usize>,
    shape: Shape,
    strides: [isize; MAX_RANK],
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view reads only, like the shared slice it borrows.
unsafe impl Send for BoolView<'_> {}
// SAFETY: as above.
unsafe impl Sync for BoolView<'_> {}

impl<'a> BoolView<'a> {
    /// All of `data` as a row-major tensor.
    pub fn new(data: &'a [bool], shape: &[usize]) -> Self {
        let mut strides = [0; MAX_RANK];
        let mut step = 1isize;
        for (axis, &size) in shape.iter().enumerate().take(MAX_RANK).rev() {
            strides[axis] = step;
            step = step.wrapping_mul(size as isize);
        }
        BoolView {
            data: data.as_ptr().cast(),
            place: Place::Host,
            length: Some(data.len()),
            shape: Shape::new(shape),
            strides,
            memory: PhantomData,
        }
    }

    /// A tensor whose first element is at `data`, with these strides in bytes.
    ///
    /// # Safety
    /// There are as many strides as sizes. If there are elements, `data` is null or every address they reach is readable
    /// for `'a`, initialised, and not written meanwhile.
    pub unsafe fn from_raw(data: *const u8, shape: &[usize], strides: &[isize]) -> Self {
        BoolView::at(data, Place::Host, shape, strides)
    }

    /// A tensor in the memory of CUDA device `ordinal`, its first element at `address`, with these strides in bytes.
    ///
    /// # Safety
    /// There are as many strides as sizes. If there are elements, `address` is 0 or every address they reach is memory that
    /// device can read, and it is neither freed nor written until the work of the call that gets this view is done.
    pub unsafe fn on_cuda(
        ordinal: usize,
        address: u64,
        shape: &[usize],
        strides: &[isize],
    ) -> Self {
        let data = std::ptr::without_provenance(address as usize);
        BoolView::at(data, Place::Cuda { ordinal }, shape, strides)
    }

    fn at(data: *const u8, place: Place, shape: &[usize], strides: &[isize]) -> Self {
        let mut kept = [0; MAX_RANK];
        for (kept, &stride) in kept.iter_mut().zip(strides) {
            *kept = stride;
        }
        BoolView {
            data,
            place,
            length: None,
            shape: Shape::new(shape),
            strides: kept,
            memory: PhantomData,
        }
    }

    /// The memory it is in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Distance, in bytes, from one index of an axis to the next.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.sizes().len()]
    }

    /// Address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// Checks that every element is inside the memory of the view, and returns the address range they occupy.
    pub(crate) fn check(&self, tensor: &'static str) -> Result<Range<usize>> {
        let overflow = || Error::Overflow {
            tensor,
            what: format!("shape {} with strides {:?}", self.shape, self.strides()),
        };
        let elements = self.shape.elements().ok_or_else(overflow)?;
        if let Some(length) = self.length
            && length != elements
        {
            return Err(Error::Length {
                tensor,
                shape: self.shape,
                expected: elements,
                found: length,
            });
        }
        if elements == 0 {
            return Ok(0..0);
        }
        let (mut lowest, mut highest) = (0isize, 0isize);
        for (&size, &stride) in self.shape.sizes().iter().zip(self.strides()) {
            let last = isize::try_from(size - 1).map_err(|_| overflow())?;
            let reach = last.checked_mul(stride).ok_or_else(overflow)?;
            let end = if reach < 0 { &mut lowest } else { &mut highest };
            *end = end.checked_add(reach).ok_or_else(overflow)?;
        }
        if self.data.is_null() {
            return Err(Error::Null {
                tensor,
                shape: self.shape,
            });
        }
        let at = |offset: isize| (self.data as usize).wrapping_add_signed(offset);
        Ok(at(lowest)..at(highest) + 1)
    }

    /// Whether an element is true.
    ///
    /// # Safety
    /// The view was checked, is in host memory, and the index lies in its shape.
    pub(crate) unsafe fn get<const RANK: usize>(&self, index: [usize; RANK]) -> bool {
        let offset: isize = index
            .iter()
            .zip(&self.strides)
            .map(|(&index, &stride)| index as isize * stride)
            .sum();
        // SAFETY: as the caller promises.
        unsafe { *self.data.offset(offset) != 0 }
    }
}
