//! Memory layout of a tensor: element type, shape and strides.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{MAX_RANK, Shape};

/// The element type, shape and strides of a tensor: where its elements lie relative to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: DType,
    shape: Shape,
    /// Kept apart from the rank, so that a mismatch can be reported.
    stride_count: usize,
    strides: [isize; MAX_RANK],
}

impl Layout {
    /// Row-major elements without gaps.
    pub fn contiguous(dtype: DType, shape: &[usize]) -> Self {
        let shape = Shape::new(shape);
        let mut strides = [0; MAX_RANK];
        let mut next = 1isize;
        for axis in (0..shape.sizes().len()).rev() {
            strides[axis] = next;
            // An overflowing product is reported by `check`, which multiplies the sizes again.
            next = next.wrapping_mul(shape.sizes()[axis].max(1) as isize);
        }
        Layout {
            dtype,
            shape,
            stride_count: shape.rank(),
            strides,
        }
    }

    /// Elements `strides` elements apart; a stride may be zero or negative.
    pub fn strided(dtype: DType, shape: &[usize], strides: &[isize]) -> Self {
        let mut kept = [0; MAX_RANK];
        let n = strides.len().min(MAX_RANK);
        kept[..n].copy_from_slice(&strides[..n]);
        Layout {
            dtype,
            shape: Shape::new(shape),
            stride_count: strides.len(),
            strides: kept,
        }
    }

    /// The same elements with two axes exchanged; unchanged where there are no such axes.
    pub fn transposed(mut self, first: usize, second: usize) -> Self {
        if first.max(second) < self.shape.sizes().len().min(self.strides().len()) {
            self.shape.swap(first, second);
            self.strides.swap(first, second);
        }
        self
    }

    /// Whether the elements lie one after another in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1isize;
        let axes = self.shape.sizes().iter().zip(self.strides());
        axes.rev().all(|(&size, &stride)| {
            let fits = size <= 1 || stride == expected;
            expected = expected.wrapping_mul(size as isize);
            fits
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Distance, in elements, from one index of an axis to the next.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.stride_count.min(MAX_RANK)]
    }

    /// How many strides it was made with.
    pub(crate) fn stride_count(&self) -> usize {
        self.stride_count
    }

    /// Lowest and highest element offset, or `None` if there are no elements.
    pub(crate) fn offsets(&self, tensor: &'static str) -> Result<Option<(isize, isize)>> {
        let overflow = || Error::Overflow {
            tensor,
            what: format!(
                "shape {} with strides {:?} of {}",
                self.shape,
                self.strides(),
                self.dtype
            ),
        };
        let elements = self.shape.elements().ok_or_else(overflow)?;
        if elements == 0 {
            return Ok(None);
        }
        let (mut lowest, mut highest) = (0isize, 0isize);
        for (&size, &stride) in self.shape.sizes().iter().zip(self.strides()) {
            let last = isize::try_from(size - 1).map_err(|_| overflow())?;
            let reach = last.checked_mul(stride).ok_or_else(overflow)?;
            let end = if reach < 0 { &mut lowest } else { &mut highest };
            *end = end.checked_add(reach).ok_or_else(overflow)?;
        }
        // Byte offsets, and the length in bytes, must fit too: pointers are moved by them.
        let size = self.dtype.size() as isize;
        let bytes = |offset: isize| offset.checked_mul(size);
        highest
            .checked_sub(lowest)
            .and_then(|span| span.checked_add(1))
            .and_then(bytes)
            .and(bytes(lowest))
            .and(bytes(highest))
            .ok_or_else(overflow)?;
        Ok(Some((lowest, highest)))
    }

    /// Whether two indices may reach the same element. Exact for layouts whose axes nest, which are all that
    /// slicing and permuting a dense tensor can make; any other layout counts as overlapping.
    pub(crate) fn overlaps_itself(&self) -> bool {
        if self.is_contiguous() {
            return false;
        }
        let mut axes: Vec<(usize, usize)> = self
            .shape
            .sizes()
            .iter()
            .zip(self.strides())
            .filter(|(size, _)| **size > 1)
            .map(|(&size, &stride)| (stride.unsigned_abs(), size))
            .collect();
        axes.sort_unstable();
        let mut reach = 0usize;
        axes.iter().any(|&(stride, size)| {
            let collides = stride <= reach;
            reach = reach.saturating_add(stride.saturating_mul(size - 1));
            collides
        })
    }

    /// Whether this layout and another one, whose first element is `bytes_apart` away, have no element in common because they are
    /// parts of the same rows: the first two axes are the same, and what the others reach is apart in every row.
    pub(crate) fn takes_turns_with(&self, other: &Layout, bytes_apart: isize) -> bool {
        let size = self.dtype.size() as isize;
        let axes = |layout: &Layout| -> Option<_> {
            let (sizes, strides) = (layout.shape.sizes(), layout.strides());
            let row = Layout::strided(layout.dtype, sizes.get(2..)?, strides.get(2..)?);
            Some((
                sizes[..2].to_vec(),
                strides[..2].to_vec(),
                row.offsets("").ok()??,
            ))
        };
        let (Some((sizes, strides, (low, high))), Some((other_sizes, other_strides, of_other))) =
            (axes(self), axes(other))
        else {
            return false;
        };
        if self.dtype != other.dtype
            || (&sizes, &strides) != (&other_sizes, &other_strides)
            || bytes_apart % size != 0
        {
            return false;
        }
        let apart = bytes_apart / size;
        let (other_low, other_high) = (of_other.0 + apart, of_other.1 + apart);
        let length = high
            .max(other_high)
            .saturating_sub(low.min(other_low))
            .saturating_add(1);
        let rows = Layout::strided(
            self.dtype,
            &[sizes[0], sizes[1], length as usize],
            &[strides[0], strides[1], 1],
        );
        (high < other_low || other_high < low) && !rows.overlaps_itself()
    }
}
