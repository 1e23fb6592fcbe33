//! Multi-scale deformable attention.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use fourtap::Backend;
use fourtap::msda::{self, Gradients, Inputs, Levels, Problem};

use crate::tensors::{Locked, Output, ThreeGradients, into_tensors, refused, view};

/// Multi-scale deformable attention, `[N, Q, M * D]` in the type of `value`, with gradients for all three tensors.
///
/// | tensor | shape |
/// |---|---|
/// | `value` | `[N, S, M, D]`; S pixels of all levels |
/// | `sampling_locations` | `[N, Q, M, L, P, 2]`; x first, from 0 to 1 in each level |
/// | `attention_weights` | `[N, Q, M, L, P]` |
///
/// [`fourtap::msda`] says what it computes. `value` is f16, bf16, f32 or f64; the others have its type or f32.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use fourtap_candle::{Levels, ms_deform_attn};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let levels = Levels::packed(&[(1, 2)])?; // one level of 1 x 2 pixels
///     let value = Var::from_vec(vec![10f32, 20.0], (1, 2, 1, 1), &Device::Cpu)?;
///     let locations = Tensor::full(0.5f32, (1, 1, 1, 1, 1, 2), &Device::Cpu)?;
///     let weights = Tensor::full(1f32, (1, 1, 1, 1, 1), &Device::Cpu)?;
///     let out = ms_deform_attn(&value, &levels, &locations, &weights)?;
///     assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [15.0]);
///
///     let gradients = out.sum_all()?.backward()?;
///     let of_value = gradients.get(&value).ok_or("no gradient")?;
///     assert_eq!(of_value.flatten_all()?.to_vec1::<f32>()?, [0.5, 0.5]);
///     Ok(())
/// }
/// ```
pub fn ms_deform_attn(
    value: &Tensor,
    levels: &Levels,
    sampling_locations: &Tensor,
    attention_weights: &Tensor,
) -> Result<Tensor> {
    let operator = MsDeformAttn {
        levels: levels.clone(),
    };
    value.apply_op3(sampling_locations, attention_weights, operator)
}

struct MsDeformAttn {
    levels: Levels,
}

impl CustomOp3 for MsDeformAttn {
    fn name(&self) -> &'static str {
        "fourtap ms_deform_attn"
    }

    fn cpu_fwd(
        &self,
        value: &CpuStorage,
        value_layout: &Layout,
        locations: &CpuStorage,
        locations_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = Inputs {
            value: view("value", value, value_layout)?,
            levels: (&self.levels).into(),
            sampling_locations: view("sampling_locations", locations, locations_layout)?,
            attention_weights: view("attention_weights", weights, weights_layout)?,
        };
        let problem = Problem::new(&inputs).map_err(refused)?;
        let mut out = Output::new(inputs.value.dtype(), &problem.sizes().out());
        msda::forward(&Backend::default(), inputs, out.view_mut()).map_err(refused)?;
        Ok(out.into_storage())
    }

    fn bwd(
        &self,
        value: &Tensor,
        sampling_locations: &Tensor,
        attention_weights: &Tensor,
        _out: &Tensor,
        grad_out: &Tensor,
    ) -> Result<ThreeGradients> {
        let of_value = Locked::new("value", value);
        let of_locations = Locked::new("sampling_locations", sampling_locations);
        let of_weights = Locked::new("attention_weights", attention_weights);
        let grad_out = Locked::new("grad_out", grad_out);
        let inputs = Inputs {
            value: of_value.view()?,
            levels: (&self.levels).into(),
            sampling_locations: of_locations.view()?,
            attention_weights: of_weights.view()?,
        };
        let mut gradients = [
            Output::gradient_of(value, &inputs.value),
            Output::gradient_of(sampling_locations, &inputs.sampling_locations),
            Output::gradient_of(attention_weights, &inputs.attention_weights),
        ];
        let [value, sampling_locations, attention_weights] = gradients
            .each_mut()
            .map(|one| one.as_mut().map(Output::view_mut));
        let requested = Gradients {
            value,
            sampling_locations,
            attention_weights,
        };
        msda::backward(&Backend::default(), inputs, grad_out.view()?, requested)
            .map_err(refused)?;
        into_tensors(gradients)
    }
}
