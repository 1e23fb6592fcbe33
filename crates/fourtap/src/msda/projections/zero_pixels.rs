//! Zeros in place of padding.

use crate::bool_view::BoolView;
use crate::checks::{claim, expect_place, expect_rank, expect_shape};
use crate::error::Result;
use crate::msda::Implementation;
use crate::prepared::Prepared;
use crate::tensor::ViewMut;

/// A validated call of [`zero_pixels()`].
#[derive(Debug)]
pub struct ZeroPixels<'a> {
    pub(crate) value: ViewMut<'a>,
    pub(crate) mask: BoolView<'a>,
}

impl<'a> ZeroPixels<'a> {
    /// Checks `value` and `mask` against each other.
    pub fn new(value: ViewMut<'a>, mask: BoolView<'a>) -> Result<Self> {
        expect_rank("value", value.shape(), 4, "[N, S, M, D]")?;
        let shape = value.shape();
        let sizes = shape.sizes();
        expect_rank("value_mask", mask.shape(), 2, "[N, S]")?;
        expect_shape("value_mask", mask.shape(), &[sizes[0], sizes[1]])?;
        expect_place("value_mask", mask.place(), "value", value.place())?;
        let occupied = [("value_mask", mask.check("value_mask")?)];
        claim("value", &value, &occupied)?;
        Ok(ZeroPixels { value, mask })
    }
}

/// Checks and plans a call of [`zero_pixels()`].
pub fn prepare_zero_pixels<'a>(
    backend: &impl Implementation,
    value: ViewMut<'a>,
    mask: BoolView<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_zero_pixels(value, mask)
}

/// Writes zeros to the pixels of `value`, `[N, S, M, D]`, where `mask`, `[N, S]`, is true.
///
/// ```
/// use fourtap::msda::projections::zero_pixels;
/// use fourtap::{Backend, BoolView, ViewMut};
///
/// let mut value = [1.0f32, 2.0, 3.0, 4.0]; // one image of two pixels, one head, two channels
/// let padding = BoolView::new(&[false, true], &[1, 2]);
/// zero_pixels(&Backend::default(), ViewMut::new(&mut value, &[1, 2, 1, 2]), padding)?;
/// assert_eq!(value, [1.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn zero_pixels(
    backend: &impl Implementation,
    value: ViewMut<'_>,
    mask: BoolView<'_>,
) -> Result<()> {
    prepare_zero_pixels(backend, value, mask)?.launch()
}
