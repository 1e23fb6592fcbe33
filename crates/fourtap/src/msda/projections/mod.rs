//! Deformable attention from the projections on: the second way to say where and how much to sample.
//!
//! A model has neither sampling locations nor weights, but what its linear layers put out: offsets from reference points,
//! and logits. Here the operator takes those, so that nothing has to be computed and stored in between:
//!
//! | tensor | shape | meaning |
//! |---|---|---|
//! | `value` | `[N, S, M, D]` | as for [`crate::msda::forward`] |
//! | `reference_points` | `[N, Q, L, P, 2]` or `[.., 4]` | points (x, y) or boxes (x, y, width, height), from 0 to 1 over the image |
//! | `sampling_offsets` | `[N, Q, M, K, 2]` | K points of all levels, level by level |
//! | `attention_logits` | `[N, Q, M, K]` | before the softmax over all K |
//! | `value_mask` | `[N, S]` | true for padding: such a pixel counts as zero and gets a zero gradient |
//! | `out` | `[N, Q, M*D]` | |
//!
//! Axes of `reference_points` may have size 1, which stands for every index; axis P may be left out, or have any size that
//! divides P: then the points take turns. Where levels have different numbers of points, it has size 1 or is left out.
//!
//! A point of a level of width W is moved by `d` pixels: by its offset, or, from the centre of a box, by
//! `offset * (width * (W * f))` with `f = 0.5 / P` unless given ([`BoxScale`]). It lies at `px = reference * W + (d - 0.5)`,
//! the product and sum rounded once (a fused multiply-add), and likewise `py`; everything in f32, or in f64 if `value` is f64.
//! From there on everything is as for given locations. With [`Interpolation::Nearest`] the point reads the one pixel
//! `int(reference * W + (d + 0.5))`, moved to the border if that is outside; a NaN coordinate reads nothing; there is no
//! gradient by offsets and reference points.
//!
//! Weights are the softmax of the K logits of a head, its largest subtracted, in f32 (f64 for f64). A NaN or plus infinity
//! among them, or minus infinity for all, makes all K weights NaN.

mod problem;
mod zero_pixels;

pub mod oracle;

pub use problem::{ProjectedBackward, ProjectedForward, ProjectedProblem, References};
pub use zero_pixels::{ZeroPixels, prepare_zero_pixels, zero_pixels};

use crate::bool_view::BoolView;
use crate::error::Result;
use crate::msda::{Implementation, LevelTable};
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

/// How many points each level has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Points<'a> {
    /// So many on every level.
    Each(usize),
    /// As listed, one number for each level.
    Listed(&'a [usize]),
}

/// How a point reads the pixels around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// Four neighbours, those outside the level counting as zero.
    #[default]
    Bilinear,
    /// The nearest pixel, on the border if that is outside: the "discrete" method of RT-DETRv2.
    Nearest,
}

/// The part of a box's width and height that an offset of 1 stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum BoxScale<'a> {
    /// `0.5 / P` with P points on the level, as in Deformable DETR.
    #[default]
    HalfBox,
    /// So much on every level.
    Each(f64),
    /// As listed, one number for each level.
    Listed(&'a [f64]),
}

/// The inputs of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Projections<'a> {
    /// `[N, S, M, D]`.
    pub value: View<'a>,
    /// Heights, widths and starts of the levels on axis S; a `&Levels` turns into this.
    pub levels: LevelTable<'a>,
    /// `[N, Q, L, P, 2]` or `[N, Q, L, P, 4]`, with or without axis P; see [the module](self).
    pub reference_points: View<'a>,
    /// `[N, Q, M, K, 2]`.
    pub sampling_offsets: View<'a>,
    /// `[N, Q, M, K]`.
    pub attention_logits: View<'a>,
    /// How the K points are distributed over the levels.
    pub points: Points<'a>,
    /// `[N, S]`, true for pixels that count as zero.
    pub value_mask: Option<BoolView<'a>>,
    /// Whether `value` holds zeros where the mask is true, see [`zero_pixels()`]: then it is read as it is, which is faster, and
    /// only gradients take the mask.
    pub mask_is_applied: bool,
    /// How a point reads the pixels around it.
    pub interpolation: Interpolation,
    /// Only for boxes.
    pub box_scale: BoxScale<'a>,
}

/// The outputs of backward. A gradient that is `None` is not computed.
#[derive(Debug, Default)]
pub struct ProjectionGradients<'a> {
    /// `grad_value`, of the shape and type of `value`.
    pub value: Option<ViewMut<'a>>,
    /// `grad_references`, of the shape and type of `reference_points`: summed over whatever an axis of size 1 stands for.
    pub reference_points: Option<ViewMut<'a>>,
    /// `grad_offsets`, of the shape and type of `sampling_offsets`.
    pub sampling_offsets: Option<ViewMut<'a>>,
    /// `grad_logits`, of the shape and type of `attention_logits`.
    pub attention_logits: Option<ViewMut<'a>>,
}

#[cfg(feature = "cuda")]
impl ProjectionGradients<'_> {
    /// Second views of the same memory, for planning a call: nothing may be written through them.
    pub(crate) fn alias(&self) -> ProjectionGradients<'_> {
        ProjectionGradients {
            value: self.value.as_ref().map(ViewMut::alias),
            reference_points: self.reference_points.as_ref().map(ViewMut::alias),
            sampling_offsets: self.sampling_offsets.as_ref().map(ViewMut::alias),
            attention_logits: self.attention_logits.as_ref().map(ViewMut::alias),
        }
    }
}

/// Checks and plans a call of [`forward`].
pub fn prepare_forward<'a>(
    backend: &impl Implementation,
    inputs: Projections<'a>,
    out: ViewMut<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_projected_forward(inputs, out)
}

/// Checks and plans a call of [`backward`].
pub fn prepare_backward<'a>(
    backend: &impl Implementation,
    inputs: Projections<'a>,
    grad_out: View<'a>,
    gradients: ProjectionGradients<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_projected_backward(inputs, grad_out, gradients)
}

/// Writes the attention of `inputs` to `out`, `[N, Q, M*D]` in the type of `value`.
///
/// The result is bitwise equal for any number of threads.
///
/// ```
/// use fourtap::msda::Levels;
/// use fourtap::msda::projections::{self, Points, Projections};
/// use fourtap::{Backend, View, ViewMut};
///
/// let levels = Levels::packed(&[(1, 2)])?; // one level, one row of two pixels
/// let value = [10.0f32, 20.0]; // one image, one head, one channel
/// let centre = [0.5f32, 0.5]; // of the image: halfway between the two
/// let offsets = [-0.5f32, 0.0, 0.5, 0.0]; // two points, half a pixel to the left and to the right
/// let logits = [0.0f32, 0.0]; // equal weights
/// let mut out = [f32::NAN];
/// projections::forward(
///     &Backend::default(),
///     Projections {
///         value: View::new(&value, &[1, 2, 1, 1]),
///         levels: (&levels).into(),
///         reference_points: View::new(&centre, &[1, 1, 1, 2]),
///         sampling_offsets: View::new(&offsets, &[1, 1, 1, 2, 2]),
///         attention_logits: View::new(&logits, &[1, 1, 1, 2]),
///         points: Points::Each(2),
///         value_mask: None,
///         mask_is_applied: false,
///         interpolation: Default::default(),
///         box_scale: Default::default(),
///     },
///     ViewMut::new(&mut out, &[1, 1, 1]),
/// )?;
/// assert_eq!(out, [15.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn forward(
    backend: &impl Implementation,
    inputs: Projections<'_>,
    out: ViewMut<'_>,
) -> Result<()> {
    prepare_forward(backend, inputs, out)?.launch()
}

/// Writes the requested gradients, given `grad_out`, `[N, Q, M*D]` in the type of `value`.
///
/// The result is bitwise equal for any number of threads. On the CPU, the gradient of `value` takes memory for three numbers
/// of every sample, f32 or, for f64, f64; if there is none, the call is refused before anything is written.
pub fn backward(
    backend: &impl Implementation,
    inputs: Projections<'_>,
    grad_out: View<'_>,
    gradients: ProjectionGradients<'_>,
) -> Result<()> {
    prepare_backward(backend, inputs, grad_out, gradients)?.launch()
}
