//! A validated backward call.

use crate::checks::{claim, expect_dtype, expect_place, expect_rank, expect_shape};
use crate::dense::problem::expect_lse;
use crate::dense::{AttnMask, ForwardResults, Gradients, Inputs, Options, Problem};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::tensor::{View, ViewMut};

/// A validated backward call.
#[derive(Debug)]
pub struct Backward<'a> {
    pub(crate) problem: Problem,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) results: ForwardResults<'a>,
    pub(crate) grad_out: View<'a>,
    pub(crate) gradients: Gradients<'a>,
}

impl<'a> Backward<'a> {
    /// Checks inputs, options, the results of forward, `grad_out` and the requested gradients against each other.
    pub fn new(
        inputs: Inputs<'a>,
        options: Options,
        results: ForwardResults<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Self> {
        let (problem, mut occupied) = Problem::checked(&inputs, options)?;
        let (sizes, place) = (problem.sizes(), problem.place());
        for (tensor, view) in [("out", &results.out), ("grad_out", &grad_out)] {
            expect_rank(tensor, view.shape(), 4, "[B, Hq, Sq, Dv]")?;
            expect_shape(tensor, view.shape(), &sizes.out())?;
            expect_dtype(tensor, view.dtype(), "query", problem.dtype())?;
            expect_place(tensor, view.place(), "query", place)?;
            occupied.push((tensor, view.check(tensor)?));
        }
        expect_lse(&problem, results.lse.layout(), results.lse.place())?;
        occupied.push(("lse", results.lse.check("lse")?));

        let bias = expect_bias(&inputs, &gradients)?;
        let layouts = [problem.query(), problem.key(), problem.value()].map(Some);
        let sources = ["query", "key", "value", "attn_mask"];
        let sources = sources.into_iter().zip(layouts.into_iter().chain([bias]));
        for ((tensor, gradient), (source, layout)) in gradients.named().into_iter().zip(sources) {
            let (Some(gradient), Some(layout)) = (gradient, layout) else {
                continue;
            };
            expect_shape(tensor, gradient.shape(), layout.shape().sizes())?;
            expect_dtype(tensor, gradient.dtype(), source, layout.dtype())?;
            expect_place(tensor, gradient.place(), "query", place)?;
            occupied.push((tensor, claim(tensor, gradient, &occupied)?));
        }
        Ok(Backward {
            problem,
            inputs,
            results,
            grad_out,
            gradients,
        })
    }

    /// The gradient of the bias, if it is requested.
    pub fn grad_bias(&self) -> Option<BiasGradientDesc> {
        self.gradients
            .bias
            .as_ref()
            .map(|bias| BiasGradientDesc::new(bias.layout()))
    }
}

/// The layout of the bias, where its gradient is requested.
fn expect_bias<'i>(
    inputs: &'i Inputs<'_>,
    gradients: &Gradients<'_>,
) -> Result<Option<&'i Layout>> {
    let found = match (&gradients.bias, &inputs.attn_mask) {
        (None, _) => return Ok(None),
        (Some(_), Some(AttnMask::Bias(bias))) => return Ok(Some(bias.layout())),
        (Some(_), Some(AttnMask::Seen(_))) => "booleans, which have none",
        (Some(_), None) => "no attn_mask",
    };
    Err(Error::Argument {
        argument: "grad_bias",
        expected: "an attn_mask that is a bias".to_string(),
        found: found.to_string(),
    })
}

/// Where the gradient of a bias lies, on the axes `[B, Hq, Sq, Sk]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasGradientDesc {
    /// Its element type, that of the bias.
    pub dtype: DType,
    /// The size of each axis; 1 where the gradients of the whole axis are summed.
    pub sizes: [usize; 4],
    /// Distance in elements from one index of each axis to the next; 0 where the size is 1.
    pub strides: [isize; 4],
}

impl BiasGradientDesc {
    /// `layout` has at most four axes, as was checked.
    fn new(layout: &Layout) -> Self {
        let (mut sizes, mut strides) = ([1; 4], [0; 4]);
        let shape = layout.shape();
        let axes = shape.sizes().iter().zip(layout.strides());
        for (axis, (&size, &stride)) in (4 - shape.rank()..).zip(axes) {
            sizes[axis] = size;
            strides[axis] = if size == 1 { 0 } else { stride };
        }
        BiasGradientDesc {
            dtype: layout.dtype(),
            sizes,
            strides,
        }
    }
}

impl Gradients<'_> {
    /// Each with the name it has in errors.
    pub(crate) fn named(&self) -> [(&'static str, Option<&ViewMut<'_>>); 4] {
        [
            ("grad_query", self.query.as_ref()),
            ("grad_key", self.key.as_ref()),
            ("grad_value", self.value.as_ref()),
            ("grad_bias", self.bias.as_ref()),
        ]
    }
}
