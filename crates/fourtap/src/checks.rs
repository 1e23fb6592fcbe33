//! What every operator checks of its tensors, under the names they have there.

use std::ops::Range;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::shape::Shape;
use crate::tensor::ViewMut;

/// The addresses tensors occupy, by name.
pub(crate) type AddressRanges<const COUNT: usize> = [(&'static str, Range<usize>); COUNT];

/// The addresses of a tensor to be written, unless they meet another's. Interleaved tensors that share a range but no
/// byte are refused too: proving them apart is not worth a number-theoretic search.
pub(crate) fn claim(
    output: &'static str,
    view: &ViewMut<'_>,
    occupied: &[(&'static str, Range<usize>)],
) -> Result<Range<usize>> {
    let range = view.check(output)?;
    let meets = |other: &Range<usize>| other.start < range.end && range.start < other.end;
    if let Some((other, _)) = occupied.iter().find(|(_, other)| meets(other)) {
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

/// Even where another size is 0, so that no backend meets an overflow in a product of some of them.
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

/// `source` is the tensor whose place decides.
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
