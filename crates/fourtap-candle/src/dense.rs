//! Dense attention.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use fourtap::Backend;
use fourtap::dense::{self, ForwardResults, Gradients, Inputs, Options, Outputs, Problem};

use crate::tensors::{Locked, Output, ThreeGradients, into_tensors, refused, view};

/// Dense attention, `softmax(scale * Q K^T + mask) V`, `[B, Hq, Sq, Dv]`, with gradients for all three tensors.
///
/// | tensor | shape |
/// |---|---|
/// | `query` | `[B, Hq, Sq, D]` |
/// | `key` | `[B, Hk, Sk, D]`; Hk divides Hq |
/// | `value` | `[B, Hk, Sk, Dv]` |
///
/// [`fourtap::dense`] says what it computes. All tensors have one type: f16, bf16, f32 or f64.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use fourtap_candle::{Alignment, Mask, Options, scaled_dot_product_attention};
///
/// fn main() -> candle_core::Result<()> {
///     // Stored as [B, S, H, D]: transposed, not copied.
///     let tokens = Tensor::rand(-1f32, 1f32, (1, 5, 2, 8), &Device::Cpu)?.transpose(1, 2)?;
///     let causal = Options { mask: Mask::causal(Alignment::TopLeft), ..Options::default() };
///     let out = scaled_dot_product_attention(&tokens, &tokens, &tokens, causal)?;
///     assert_eq!(out.dims(), [1, 2, 5, 8]);
///     Ok(())
/// }
/// ```
pub fn scaled_dot_product_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: Options,
) -> Result<Tensor> {
    let operator = DenseAttention {
        options,
        lse: OnceLock::new(),
    };
    query.apply_op3(key, value, operator)
}

/// One call: a second one would find the first one's `lse`, so nobody else makes one.
struct DenseAttention {
    options: Options,
    /// The log-sum-exp of the logits, which backward needs and candle, where an operator has one result, does not keep.
    lse: OnceLock<Output>,
}

impl CustomOp3 for DenseAttention {
    fn name(&self) -> &'static str {
        "fourtap scaled_dot_product_attention"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = Inputs::new(
            view("query", query, query_layout)?,
            view("key", key, key_layout)?,
            view("value", value, value_layout)?,
        );
        let problem = Problem::new(&inputs, self.options).map_err(refused)?;
        let mut out = Output::new(problem.dtype(), &problem.sizes().out());
        let mut lse = Output::new(problem.lse_dtype(), &problem.sizes().lse());
        let outputs = Outputs {
            out: out.view_mut(),
            lse: Some(lse.view_mut()),
        };
        dense::forward(&Backend::default(), inputs, self.options, outputs).map_err(refused)?;
        self.lse.get_or_init(|| lse);
        Ok(out.into_storage())
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        out: &Tensor,
        grad_out: &Tensor,
    ) -> Result<ThreeGradients> {
        let Some(lse) = &self.lse.get() else {
            candle_core::bail!("backward of dense attention that never ran forward");
        };
        let of_query = Locked::new("query", query);
        let of_key = Locked::new("key", key);
        let of_value = Locked::new("value", value);
        let out = Locked::new("out", out);
        let grad_out = Locked::new("grad_out", grad_out);
        let inputs = Inputs::new(of_query.view()?, of_key.view()?, of_value.view()?);
        let mut gradients = [
            Output::gradient_of(query, &inputs.query),
            Output::gradient_of(key, &inputs.key),
            Output::gradient_of(value, &inputs.value),
        ];
        let [query, key, value] = gradients
            .each_mut()
            .map(|one| one.as_mut().map(Output::view_mut));
        let requested = Gradients {
            query,
            key,
            value,
            bias: None,
        };
        let results = ForwardResults {
            out: out.view()?,
            lse: lse.view(),
        };
        let backend = Backend::default();
        let grad_out = grad_out.view()?;
        dense::backward(&backend, inputs, self.options, results, grad_out, requested)
            .map_err(refused)?;
        into_tensors(gradients)
    }
}
