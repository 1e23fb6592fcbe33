//! Masks and biases that are tensors.

use crate::bool_view::BoolView;
use crate::checks::expect_place;
use crate::dense::Sizes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::shape::Shape;
use crate::tensor::View;
use std::ops::Range;

const NAME: &str = "attn_mask";

/// A finite bias counts as no more than this, and no less than its negative. Models hide keys by the lowest number there is; a row
/// that has nothing else then sees all its keys alike, and no product of a bias overflows. It is 2 to the power of 100, which every type
/// holds that has such numbers.
pub const MOST_BIAS: f64 = (1u128 << 100) as f64;

/// A tensor that says which keys a query sees, or what is added to its logits. It has any shape that broadcasts to
/// `[B, Hq, Sq, Sk]`, aligned to its last axes: an axis that is missing, or has size 1, is the same for all.
#[derive(Clone, Copy, Debug)]
pub enum AttnMask<'a> {
    /// True where a query sees a key.
    Seen(BoolView<'a>),
    /// Added to the scaled logits; in the type of `query` or f32. Minus infinity hides a key; finite numbers count as
    /// [`MOST_BIAS`] at most.
    Bias(View<'a>),
}

/// What is known of such a tensor without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttnMaskDesc {
    /// The element type of a bias; `None` for booleans.
    pub bias: Option<DType>,
    /// Distance in elements from one index of each axis of `[B, Hq, Sq, Sk]` to the next: 0 where it is the same for all.
    pub strides: [isize; 4],
}

impl AttnMask<'_> {
    /// The shape.
    pub fn shape(&self) -> Shape {
        match self {
            AttnMask::Seen(view) => view.shape(),
            AttnMask::Bias(view) => view.shape(),
        }
    }

    /// The address of the first element.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        match self {
            AttnMask::Seen(view) => view.as_ptr(),
            AttnMask::Bias(view) => view.as_ptr(),
        }
    }

    fn strides(&self) -> &[isize] {
        match self {
            AttnMask::Seen(view) => view.strides(),
            AttnMask::Bias(view) => view.layout().strides(),
        }
    }

    /// Checks it against a problem of these sizes, this type of queries and this place; also returns its address range.
    pub(super) fn check(
        &self,
        sizes: &Sizes,
        query: DType,
        place: Place,
    ) -> Result<(AttnMaskDesc, Range<usize>)> {
        let [b, h, q, _] = sizes.query();
        let whole = [b, h, q, sizes.keys];
        let shape = self.shape();
        let found = shape.sizes();
        let first = whole.len().checked_sub(found.len());
        let fits = first.is_some_and(|first| {
            let axes = found.iter().zip(&whole[first..]);
            axes.into_iter()
                .all(|(&size, &whole)| size == whole || size == 1)
        });
        let (Some(first), true) = (first, fits) else {
            return Err(Error::Shape {
                tensor: NAME,
                expected: format!("broadcasting to {}", Shape::new(&whole)),
                found: shape,
            });
        };
        let (bias, range, found_in) = match self {
            AttnMask::Seen(view) => (None, view.check(NAME)?, view.place()),
            AttnMask::Bias(view) => {
                let dtype = view.dtype();
                if dtype != query && dtype != DType::F32 {
                    return Err(Error::DType {
                        tensor: NAME,
                        expected: match query {
                            DType::F32 => "f32 (that of query), or booleans".to_string(),
                            _ => format!("{query} (that of query) or f32, or booleans"),
                        },
                        found: dtype,
                    });
                }
                (Some(dtype), view.check(NAME)?, view.place())
            }
        };
        expect_place(NAME, found_in, "query", place)?;
        let mut strides = [0; 4];
        for (axis, (&size, &stride)) in found.iter().zip(self.strides()).enumerate() {
            strides[first + axis] = if size == 1 { 0 } else { stride };
        }
        Ok((AttnMaskDesc { bias, strides }, range))
    }
}
