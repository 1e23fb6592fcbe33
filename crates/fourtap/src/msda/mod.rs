//! Multi-scale deformable attention.
//!
//! For each query and head, `L * P` points are read from a pyramid of feature maps by bilinear interpolation and
//! summed with weights:
//!
//! | tensor | shape | meaning |
//! |---|---|---|
//! | `value` | `[N, S, M, D]` | N images, S pixels of all levels, M heads, D channels per head |
//! | `sampling_locations` | `[N, Q, M, L, P, 2]` | (x, y): 0 is the left/top edge of the level, 1 the right/bottom |
//! | `attention_weights` | `[N, Q, M, L, P]` | already soft-maxed; any real number is legal |
//! | `out` | `[N, Q, M*D]` | |
//!
//! A point lies at `px = x*W - 0.5`, `py = y*H - 0.5`, rounded once (a fused multiply-add) to f32, or to f64 if
//! `value` is f64. It takes part only if `-1 < px < W` and `-1 < py < H`, so NaN and infinite coordinates add
//! nothing and get zero gradient; neighbours outside the level count as zero.
//!
//! Where and how much to sample can be said in two ways: by locations and weights, as here, or by what a model's linear
//! layers put out, see [`projections`].
//!
//! Locations and weights are f32, or have the dtype of `value`. Keep them f32: bf16 locations are off by up to a quarter
//! of a pixel on a level 134 pixels wide.

mod levels;
mod model;
pub mod oracle;
mod problem;
pub mod projections;

pub use levels::{CudaLevels, Level, LevelTable, Levels};
pub use model::{Traffic, in_bounds_fraction};
pub use problem::{Backward, Forward, Problem, Sizes};

use self::projections::{ProjectionGradients, Projections};
use crate::bool_view::BoolView;
use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

/// The inputs of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[N, S, M, D]`.
    pub value: View<'a>,
    /// Heights, widths and starts of the levels on axis S; a `&Levels` turns into this.
    pub levels: LevelTable<'a>,
    /// `[N, Q, M, L, P, 2]`.
    pub sampling_locations: View<'a>,
    /// `[N, Q, M, L, P]`.
    pub attention_weights: View<'a>,
}

/// The outputs of backward. A gradient that is `None` is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// `grad_value`, of the shape and type of `value`.
    pub value: Option<ViewMut<'a>>,
    /// `grad_locations`, of the shape and type of `sampling_locations`.
    pub sampling_locations: Option<ViewMut<'a>>,
    /// `grad_weights`, of the shape and type of `attention_weights`.
    pub attention_weights: Option<ViewMut<'a>>,
}

#[cfg(feature = "cuda")]
impl Gradients<'_> {
    /// Second views of the same memory, for planning a call: nothing may be written through them.
    pub(crate) fn alias(&self) -> Gradients<'_> {
        Gradients {
            value: self.value.as_ref().map(ViewMut::alias),
            sampling_locations: self.sampling_locations.as_ref().map(ViewMut::alias),
            attention_weights: self.attention_weights.as_ref().map(ViewMut::alias),
        }
    }
}

/// An implementation of this operator: each backend, and [`crate::Backend`], which chooses one of them.
pub trait Implementation {
    /// As [`prepare_forward`].
    fn prepare_forward<'a>(&self, inputs: Inputs<'a>, out: ViewMut<'a>) -> Result<Prepared<'a>>;

    /// As [`prepare_backward`].
    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>>;

    /// As [`projections::prepare_forward`].
    fn prepare_projected_forward<'a>(
        &self,
        inputs: Projections<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>>;

    /// As [`projections::prepare_backward`].
    fn prepare_projected_backward<'a>(
        &self,
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Prepared<'a>>;

    /// As [`projections::prepare_zero_pixels`].
    fn prepare_zero_pixels<'a>(
        &self,
        value: ViewMut<'a>,
        mask: BoolView<'a>,
    ) -> Result<Prepared<'a>>;
}

/// Checks and plans a call of [`forward`].
pub fn prepare_forward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    out: ViewMut<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_forward(inputs, out)
}

/// Checks and plans a call of [`backward`].
pub fn prepare_backward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    grad_out: View<'a>,
    gradients: Gradients<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_backward(inputs, grad_out, gradients)
}

/// Writes the attention of `inputs` to `out`, `[N, Q, M*D]` in the type of `value`.
///
/// The result is bitwise equal for any number of threads.
///
/// ```
/// use fourtap::msda::{self, Inputs, Levels};
/// use fourtap::{Backend, View, ViewMut};
///
/// let levels = Levels::packed(&[(1, 2)])?; // one level, one row of two pixels
/// let value = [10.0f32, 20.0]; // one image, one head, one channel
/// let between = [0.5f32, 0.5]; // one query, one point, halfway between the two
/// let weight = [1.0f32];
/// let mut out = [f32::NAN];
/// msda::forward(
///     &Backend::default(),
///     Inputs {
///         value: View::new(&value, &[1, 2, 1, 1]),
///         levels: (&levels).into(),
///         sampling_locations: View::new(&between, &[1, 1, 1, 1, 1, 2]),
///         attention_weights: View::new(&weight, &[1, 1, 1, 1, 1]),
///     },
///     ViewMut::new(&mut out, &[1, 1, 1]),
/// )?;
/// assert_eq!(out, [15.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn forward(backend: &impl Implementation, inputs: Inputs<'_>, out: ViewMut<'_>) -> Result<()> {
    prepare_forward(backend, inputs, out)?.launch()
}

/// Writes the requested gradients, given `grad_out`, `[N, Q, M*D]` in the type of `value`.
///
/// The result is bitwise equal for any number of threads.
///
/// ```
/// use fourtap::msda::{self, Gradients, Inputs, Levels};
/// use fourtap::{Backend, View, ViewMut};
///
/// let levels = Levels::packed(&[(1, 2)])?;
/// let inputs = Inputs {
///     value: View::new(&[10.0f32, 20.0], &[1, 2, 1, 1]),
///     levels: (&levels).into(),
///     sampling_locations: View::new(&[0.5f32, 0.5], &[1, 1, 1, 1, 1, 2]),
///     attention_weights: View::new(&[1.0f32], &[1, 1, 1, 1, 1]),
/// };
/// let (mut value, mut locations) = ([f32::NAN; 2], [f32::NAN; 2]);
/// msda::backward(
///     &Backend::default(),
///     inputs,
///     View::new(&[1.0f32], &[1, 1, 1]),
///     Gradients {
///         value: Some(ViewMut::new(&mut value, &[1, 2, 1, 1])),
///         sampling_locations: Some(ViewMut::new(&mut locations, &[1, 1, 1, 1, 1, 2])),
///         attention_weights: None,
///     },
/// )?;
/// assert_eq!(value, [0.5, 0.5]);
/// // By x: 10 per pixel, 2 pixels wide. By y: pixels below the only row count as zero.
/// assert_eq!(locations, [20.0, -15.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn backward(
    backend: &impl Implementation,
    inputs: Inputs<'_>,
    grad_out: View<'_>,
    gradients: Gradients<'_>,
) -> Result<()> {
    prepare_backward(backend, inputs, grad_out, gradients)?.launch()
}
