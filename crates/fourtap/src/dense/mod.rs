//! Dense attention: `softmax(scale * Q K^T + mask) V`.
//!
//! | tensor | shape | meaning |
//! |---|---|---|
//! | `query` | `[B, Hq, Sq, D]` | B sequences, Hq heads, Sq queries, D channels per head |
//! | `key` | `[B, Hk, Sk, D]` | Hk divides Hq: each key and value head serves `Hq / Hk` consecutive query heads (GQA) |
//! | `value` | `[B, Hk, Sk, Dv]` | |
//! | `out` | `[B, Hq, Sq, Dv]` | |
//! | `lse` | `[B, Hq, Sq]` | on request: the log-sum-exp (LSE) of the logits, natural logarithm |
//!
//! These are logical shapes; strides may be any. For a tensor stored as `[B, S, H, D]`, exchange two axes with
//! [`View::transposed`].
//!
//! All tensors have one dtype, f16, bf16, f32 or f64; `lse` is f32, or f64 where the others are. Sums are accumulated in
//! f32 (f64 for f64).
//!
//! **Masks** are bands around a diagonal, causal ones included; the alignment of the diagonal is explicit: [`Mask`].
//! Beside that there may be a tensor, [`AttnMask`]: booleans, true where a query sees a key, or a bias that is added to
//! the scaled logits, where minus infinity hides a key. A query sees a key that none of them hides; one that sees no key gets an
//! output of 0 and an `lse` of minus infinity.
//!
//! **Infinity and NaN** act by the rules of arithmetic, with two exceptions. A key that a query does not see never
//! affects its row, whatever the key and its value hold. A logit of minus infinity is a weight of 0, and a query that
//! sees only such logits is treated like one that sees no key. So a logit of plus infinity or NaN makes the whole row
//! NaN, and an infinite or NaN value propagates to its channel for every query that sees it.
//!
//! **Gradients** ([`backward()`]) start from what forward computed and from `grad_out`. With the weights
//! `P = exp(scale * Q K^T + bias - lse)`, all sums over the pairs of a query and a key it sees:
//!
//! | gradient | is |
//! |---|---|
//! | `grad_value` | `P^T grad_out`, summed over the query heads that share the value head |
//! | `dS`, of the logits | `P * (grad_out V^T - delta)`, where `delta` is the sum over each row of `grad_out * out` |
//! | `grad_query` | `scale * dS K` |
//! | `grad_key` | `scale * dS^T Q`, summed over the query heads that share the key head |
//! | `grad_bias` | `dS`, summed over the axes that the bias is broadcast on |
//!
//! A query and a key that it does not see contribute nothing to any gradient, whatever the tensors hold. Neither do a query and
//! a key whose logit is minus infinity, nor a row whose `lse` is minus infinity. Otherwise infinity and NaN act by
//! the rules of arithmetic. The gradient of a bias beyond [`MOST_BIAS`] is that of the logit, as if it were not limited.
//!
//! Weights are computed again from `lse`, so they sum to 1 only as far as it can tell logits apart. In a row whose keys are all hidden by the
//! lowest number there is, rather than by minus infinity, each has weight 1.

mod attn_mask;
mod backward;
mod mask;
mod model;
pub mod oracle;
mod problem;

pub use attn_mask::{AttnMask, AttnMaskDesc, MOST_BIAS};
pub use backward::{Backward, BiasGradientDesc};
pub use mask::{Alignment, Mask};
pub use model::Traffic;
pub use problem::{Forward, Problem, Sizes, lse_dtype};

use crate::error::Result;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};

/// The inputs of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[B, Hq, Sq, D]`.
    pub query: View<'a>,
    /// `[B, Hk, Sk, D]`.
    pub key: View<'a>,
    /// `[B, Hk, Sk, Dv]`.
    pub value: View<'a>,
    /// What else a query sees of the keys, or adds to its logits.
    pub attn_mask: Option<AttnMask<'a>>,
}

impl<'a> Inputs<'a> {
    /// Without a tensor that masks.
    pub fn new(query: View<'a>, key: View<'a>, value: View<'a>) -> Self {
        Inputs {
            query,
            key,
            value,
            attn_mask: None,
        }
    }
}

/// Scale and mask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The scale of `Q K^T`, any finite number; `1 / sqrt(D)` if `None`.
    pub scale: Option<f64>,
    /// Which keys a query sees; all by default.
    pub mask: Mask,
}

/// The outputs of the operator.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// `[B, Hq, Sq, Dv]`.
    pub out: ViewMut<'a>,
    /// `[B, Hq, Sq]`; not computed if `None`.
    pub lse: Option<ViewMut<'a>>,
}

impl<'a> From<ViewMut<'a>> for Outputs<'a> {
    /// Without `lse`.
    fn from(out: ViewMut<'a>) -> Self {
        Outputs { out, lse: None }
    }
}

#[cfg(feature = "cuda")]
impl Outputs<'_> {
    /// Second views of the same memory, for planning a call: nothing may be written through them.
    pub(crate) fn alias(&self) -> Outputs<'_> {
        Outputs {
            out: self.out.alias(),
            lse: self.lse.as_ref().map(ViewMut::alias),
        }
    }
}

/// What [`forward`] computed, from which [`backward()`] starts.
#[derive(Clone, Copy, Debug)]
pub struct ForwardResults<'a> {
    /// `[B, Hq, Sq, Dv]`.
    pub out: View<'a>,
    /// `[B, Hq, Sq]`.
    pub lse: View<'a>,
}

/// The outputs of backward. A gradient that is `None` is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// `grad_query`, of the shape and type of `query`.
    pub query: Option<ViewMut<'a>>,
    /// `grad_key`, of the shape and type of `key`.
    pub key: Option<ViewMut<'a>>,
    /// `grad_value`, of the shape and type of `value`.
    pub value: Option<ViewMut<'a>>,
    /// `grad_bias`, of the shape and type of the bias in [`Inputs::attn_mask`]; refused if there is none.
    pub bias: Option<ViewMut<'a>>,
}

#[cfg(feature = "cuda")]
impl Gradients<'_> {
    /// Second views of the same memory, for planning a call: nothing may be written through them.
    pub(crate) fn alias(&self) -> Gradients<'_> {
        Gradients {
            query: self.query.as_ref().map(ViewMut::alias),
            key: self.key.as_ref().map(ViewMut::alias),
            value: self.value.as_ref().map(ViewMut::alias),
            bias: self.bias.as_ref().map(ViewMut::alias),
        }
    }
}

/// An implementation of this operator: each backend, and [`crate::Backend`], which chooses one of them.
pub trait Implementation {
    /// As [`prepare_forward`].
    fn prepare_forward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        outputs: Outputs<'a>,
    ) -> Result<Prepared<'a>>;

    /// As [`prepare_backward`].
    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        results: ForwardResults<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>>;
}

/// Checks and plans a call of [`forward`].
pub fn prepare_forward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    options: Options,
    outputs: impl Into<Outputs<'a>>,
) -> Result<Prepared<'a>> {
    backend.prepare_forward(inputs, options, outputs.into())
}

/// Checks and plans a call of [`backward()`].
pub fn prepare_backward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    options: Options,
    results: ForwardResults<'a>,
    grad_out: View<'a>,
    gradients: Gradients<'a>,
) -> Result<Prepared<'a>> {
    backend.prepare_backward(inputs, options, results, grad_out, gradients)
}

/// Writes the attention of `inputs` to `outputs`; a `ViewMut` alone is enough where `lse` is not needed.
///
/// The result is bitwise equal for any number of threads.
///
/// ```
/// use fourtap::dense::{self, Alignment, AttnMask, Inputs, Mask, Options, Outputs};
/// use fourtap::{Backend, BoolView, View, ViewMut};
///
/// // One sequence of two tokens, one head of one channel; queries of 0 give equal weight to all keys they see.
/// let (query, key, value) = ([0.0f32, 0.0], [1.0f32, 2.0], [10.0f32, 20.0]);
/// let shape = [1, 1, 2, 1];
/// let inputs = Inputs::new(View::new(&query, &shape), View::new(&key, &shape), View::new(&value, &shape));
/// let mut out = [f32::NAN; 2];
/// let everything = Options::default();
/// dense::forward(&Backend::default(), inputs, everything, ViewMut::new(&mut out, &[1, 1, 2, 1]))?;
/// assert_eq!(out, [15.0, 15.0]);
///
/// let causal = Options { mask: Mask::causal(Alignment::BottomRight), ..Options::default() };
/// let mut lse = [f32::NAN; 2];
/// let outputs = Outputs {
///     out: ViewMut::new(&mut out, &[1, 1, 2, 1]),
///     lse: Some(ViewMut::new(&mut lse, &[1, 1, 2])),
/// };
/// dense::forward(&Backend::default(), inputs, causal, outputs)?;
/// assert_eq!(out, [10.0, 15.0]);
/// assert_eq!(lse, [0.0, 2f32.ln()]);
///
/// // The first key is padding, for every query.
/// let seen = [false, true];
/// let padded = Inputs { attn_mask: Some(AttnMask::Seen(BoolView::new(&seen, &[2]))), ..inputs };
/// dense::forward(&Backend::default(), padded, everything, ViewMut::new(&mut out, &[1, 1, 2, 1]))?;
/// assert_eq!(out, [20.0, 20.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
///
/// Tensors stored as `[B, S, H, D]`:
///
/// ```
/// # use fourtap::dense::{self, Inputs, Options};
/// # use fourtap::{Backend, View, ViewMut};
/// let (b, s, h, d) = (1, 5, 2, 3);
/// let data = vec![1.0f32; b * s * h * d];
/// let tensor = View::new(&data, &[b, s, h, d]).transposed(1, 2);
/// let inputs = Inputs::new(tensor, tensor, tensor);
/// let mut out = vec![f32::NAN; data.len()];
/// let transposed = ViewMut::new(&mut out, &[b, s, h, d]).transposed(1, 2);
/// dense::forward(&Backend::default(), inputs, Options::default(), transposed)?;
/// assert_eq!(out, data);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn forward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    options: Options,
    outputs: impl Into<Outputs<'a>>,
) -> Result<()> {
    prepare_forward(backend, inputs, options, outputs)?.launch()
}

/// Writes the requested gradients, given what [`forward`] computed of the same inputs and options, and `grad_out`,
/// `[B, Hq, Sq, Dv]` in the type of `query`.
///
/// The result is bitwise equal for any number of threads.
///
/// ```
/// use fourtap::dense::{self, ForwardResults, Gradients, Inputs, Options, Outputs};
/// use fourtap::{Backend, View, ViewMut};
///
/// // One query of 0 gives two keys equal weight, so each value gets half of the gradient.
/// let (query, key, value) = ([0.0f32], [1.0f32, 2.0], [10.0f32, 20.0]);
/// let (one, two) = ([1, 1, 1, 1], [1, 1, 2, 1]);
/// let inputs = Inputs::new(View::new(&query, &one), View::new(&key, &two), View::new(&value, &two));
/// let (backend, options) = (Backend::default(), Options::default());
/// let (mut out, mut lse) = ([f32::NAN], [f32::NAN]);
/// let outputs = Outputs {
///     out: ViewMut::new(&mut out, &one),
///     lse: Some(ViewMut::new(&mut lse, &one[..3])),
/// };
/// dense::forward(&backend, inputs, options, outputs)?;
///
/// let results = ForwardResults { out: View::new(&out, &one), lse: View::new(&lse, &one[..3]) };
/// let (mut grad_query, mut grad_value) = ([f32::NAN], [f32::NAN; 2]);
/// let gradients = Gradients {
///     query: Some(ViewMut::new(&mut grad_query, &one)),
///     value: Some(ViewMut::new(&mut grad_value, &two)),
///     ..Gradients::default()
/// };
/// dense::backward(&backend, inputs, options, results, View::new(&[1.0f32], &one), gradients)?;
/// assert_eq!(grad_value, [0.5, 0.5]);
/// // A larger query shifts weight to the second key, whose value is larger by 10.
/// assert!((grad_query[0] - 2.5).abs() < 1e-5);
/// # Ok::<(), fourtap::Error>(())
/// ```
pub fn backward<'a>(
    backend: &impl Implementation,
    inputs: Inputs<'a>,
    options: Options,
    results: ForwardResults<'a>,
    grad_out: View<'a>,
    gradients: Gradients<'a>,
) -> Result<()> {
    prepare_backward(backend, inputs, options, results, grad_out, gradients)?.launch()
}
