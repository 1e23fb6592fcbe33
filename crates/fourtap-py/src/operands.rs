//! The operands of a call from Python: as Python objects, and as described tensors.

use fourtap::msda::Inputs;
use pyo3::prelude::*;

use crate::frameworks::Describe;
use crate::levels::LevelsArgument;
use crate::tensor::Tensor;

/// The inputs of the operator as Python objects.
pub struct Operands<'a, 'py> {
    pub value: &'a Bound<'py, PyAny>,
    pub spatial_shapes: &'a Bound<'py, PyAny>,
    pub level_start_index: Option<&'a Bound<'py, PyAny>>,
    pub sampling_locations: &'a Bound<'py, PyAny>,
    pub attention_weights: &'a Bound<'py, PyAny>,
}

/// Descriptions of the three floating-point operands; `None` where one has not been made yet.
pub type KnownTensors = [Option<Tensor>; 3];

/// The operands, described for the library.
pub struct OperandDescs<'py> {
    pub value: Tensor,
    pub levels: LevelsArgument<'py>,
    pub sampling_locations: Tensor,
    pub attention_weights: Tensor,
}

impl OperandDescs<'_> {
    /// The sizes of `out`; `None` if value and locations do not fit each other.
    pub fn sizes_of_out(&self) -> Option<[usize; 3]> {
        match (&*self.value.sizes, &*self.sampling_locations.sizes) {
            (&[n, _, m, d], &[images, q, heads, _, _, _]) if n == images && m == heads => {
                Some([n, q, m.checked_mul(d)?])
            }
            _ => None,
        }
    }

    /// The work of a call, for tensors that fit each other: decides whether other threads are used.
    pub fn samples_times_channels(&self) -> usize {
        let samples = self.attention_weights.sizes.iter();
        let channels = self.value.sizes.last().copied().unwrap_or(0);
        samples.fold(channels, saturating_product)
    }
}

/// Multiplies without overflow, for use with `fold`.
pub fn saturating_product(product: usize, size: &usize) -> usize {
    product.saturating_mul(*size)
}

impl<'a, 'py> Operands<'a, 'py> {
    /// The floating-point operands, which are differentiable.
    pub fn real(&self) -> [(&'static str, &'a Bound<'py, PyAny>); 3] {
        [
            ("value", self.value),
            ("sampling_locations", self.sampling_locations),
            ("attention_weights", self.attention_weights),
        ]
    }

    /// The integer operands.
    pub fn levels(&self) -> [Option<&'a Bound<'py, PyAny>>; 2] {
        [Some(self.spatial_shapes), self.level_start_index]
    }

    pub fn describe(
        &self,
        framework: &impl Describe,
        known: KnownTensors,
    ) -> PyResult<OperandDescs<'py>> {
        let describe = |name, object, known: Option<Tensor>| match known {
            Some(tensor) => Ok(tensor),
            None => framework.describe(name, object),
        };
        let [value, locations, weights] = known;
        let value = describe("value", self.value, value)?;
        Ok(OperandDescs {
            levels: framework.levels(value.place, self.spatial_shapes, self.level_start_index)?,
            sampling_locations: describe("sampling_locations", self.sampling_locations, locations)?,
            attention_weights: describe("attention_weights", self.attention_weights, weights)?,
            value,
        })
    }

    /// The library's inputs.
    ///
    /// # Safety
    /// The operands stay alive and unchanged until the work of the call that gets this is done.
    pub unsafe fn inputs<'b>(&self, described: &'b OperandDescs<'_>) -> PyResult<Inputs<'b>> {
        let view = |tensor: &Tensor, object| -> PyResult<_> {
            let layout = tensor.layout(object)?;
            // SAFETY: as the caller promises.
            Ok(unsafe { tensor.view(layout) })
        };
        Ok(Inputs {
            value: view(&described.value, self.value)?,
            levels: described.levels.table(),
            sampling_locations: view(&described.sampling_locations, self.sampling_locations)?,
            attention_weights: view(&described.attention_weights, self.attention_weights)?,
        })
    }
}
