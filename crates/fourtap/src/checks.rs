//! Checks of tensors that all operators share. Errors use the name a tensor has in the operator.

use std::ops::Range;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::shape::Shape;
use crate::tensor::ViewMut;

/// The addresses tensors occupy, by name.
pub(crate) type AddressRanges<const COUNT: usize> = [(&'static str, Range<usize>); COUNT];

/// The address range of a tensor to be written, if it overlaps no other. Interleaved tensors that share a range but no
/// byte are refused too: proving that they are disjoint is not worth a number-theoretic search.
pub(crate) fn claim(
    output: &'static str,
    view: &ViewMut<'_>,
    occupied: &[(&'static str, Range<usize>)],
) -> Result<Range<usize>> {
    let range = view.check(output)?;
    let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
    if let Some((other, _)) = occupied.iter().find(|(_, other)| overlaps(other)) {
        return Err(Error::Overlap { output, other });
    }
    Ok(range)
}

pub(crate) fn expect_rank(
    tensor: &'static str,
    found: Shape,
    expected: usize,
    axes: &'static str,
) -> Result<()> {
    match found.rank() {
        rank if rank == expected => Ok(()),
        found => Err(Error::Rank {
            tensor,
            expected,
            axes,
            found,
        }),
    }
}

pub(crate) fn expect_shape(tensor: &'static str, found: Shape, expected: &[usize]) -> Result<()> {
    if found == Shape::new(expected) {
        return Ok(());
    }
    Err(Error::Shape {
        tensor,
        expected: Shape::new(expected).to_string(),
        found,
    })
}

/// Checks that no product of these sizes overflows, even where another size is 0.
pub(crate) fn expect_countable(tensor: &'static str, sizes: &[usize]) -> Result<()> {
    let counted = sizes.iter().try_fold(size_of::<f64>(), |product, &size| {
        product.checked_mul(size.max(1))
    });
    match counted.and_then(|bytes| isize::try_from(bytes).ok()) {
        Some(_) => Ok(()),
        None => Err(Error::Overflow {
            tensor,
            what: format!("a product of {sizes:?}"),
        }),
    }
}

pub(crate) fn expect_dtype(
    tensor: &'static str,
    found: DType,
    source: &str,
    expected: DType,
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::DType {
        tensor,
        expected: format!("{expected} (that of {source})"),
        found,
    })
}

/// `source` is the tensor whose place the others must share.
pub(crate) fn expect_place(
    tensor: &'static str,
    found: Place,
    source: &str,
    expected: Place,
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Place {
        tensor,
        expected: format!("{expected} (where {source} is)"),
        found,
    })
}
