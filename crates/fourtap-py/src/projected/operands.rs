//! The operands of a call from projections: as Python objects, and as described tensors.

use fourtap::msda::projections::Projections;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::settings::Settings;
use crate::errors::{Kind, unexpected};
use crate::frameworks::Describe;
use crate::levels::LevelsArgument;
use crate::operands::saturating_product;
use crate::tensor::{Element, Tensor};

/// The inputs of the operator as Python objects, in the order of the tuple that Python passes.
#[derive(FromPyObject)]
pub struct OperandTuple<'py>(
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    Bound<'py, PyTuple>,
);

/// The inputs of the operator as Python objects.
pub struct Operands<'py> {
    pub value: Bound<'py, PyAny>,
    pub spatial_shapes: Bound<'py, PyAny>,
    pub level_start_index: Option<Bound<'py, PyAny>>,
    pub reference_points: Bound<'py, PyAny>,
    pub sampling_offsets: Bound<'py, PyAny>,
    /// `None` if `sampling_offsets` has both, `[N, Q, M * K * 2 + M * K]`: what one matrix product put out.
    pub attention_logits: Option<Bound<'py, PyAny>>,
    pub value_mask: Option<Bound<'py, PyAny>>,
    /// See [`Settings::read`]. Not read at once: while tracing, numbers may be symbols, which reading would specialise.
    pub settings: Bound<'py, PyTuple>,
}

impl<'py> From<OperandTuple<'py>> for Operands<'py> {
    fn from(tuple: OperandTuple<'py>) -> Self {
        Operands {
            value: tuple.0,
            spatial_shapes: tuple.1,
            level_start_index: tuple.2,
            reference_points: tuple.3,
            sampling_offsets: tuple.4,
            attention_logits: tuple.5,
            value_mask: tuple.6,
            settings: tuple.7,
        }
    }
}

/// Descriptions of the four floating-point operands; `None` where one has not been made yet.
pub type KnownTensors = [Option<Tensor>; 4];

/// The operands, described for the library.
pub struct OperandDescs<'py> {
    pub value: Tensor,
    levels: LevelsArgument<'py>,
    pub reference_points: Tensor,
    pub sampling_offsets: Tensor,
    pub attention_logits: Tensor,
    /// The tensor that offsets and logits are parts of, if it is one.
    pub both: Option<Tensor>,
    value_mask: Option<Tensor>,
    pub settings: Settings,
}

impl OperandDescs<'_> {
    /// The sizes of `out`; `None` if value and offsets do not fit each other.
    pub fn sizes_of_out(&self) -> Option<[usize; 3]> {
        match (&*self.value.sizes, &*self.sampling_offsets.sizes) {
            (&[n, _, m, d], &[images, q, heads, _, _]) if n == images && m == heads => {
                Some([n, q, m.checked_mul(d)?])
            }
            _ => None,
        }
    }

    /// The work of a call, for tensors that fit each other: decides whether other threads are used.
    pub fn samples_times_channels(&self) -> usize {
        let samples = self.attention_logits.sizes.iter();
        let channels = self.value.sizes.last().copied().unwrap_or(0);
        samples.fold(channels, saturating_product)
    }
}

impl<'py> Operands<'py> {
    /// The floating-point operands, which are differentiable.
    pub fn real(&self) -> [(&'static str, &Bound<'py, PyAny>); 4] {
        [
            ("value", &self.value),
            ("reference_points", &self.reference_points),
            ("sampling_offsets", &self.sampling_offsets),
            ("attention_logits", self.holding_logits()),
        ]
    }

    /// The tensor that the logits are in.
    pub fn holding_logits(&self) -> &Bound<'py, PyAny> {
        self.attention_logits
            .as_ref()
            .unwrap_or(&self.sampling_offsets)
    }

    /// The other operands that may be tensors.
    pub fn others(&self) -> [Option<&Bound<'py, PyAny>>; 3] {
        [
            Some(&self.spatial_shapes),
            self.level_start_index.as_ref(),
            self.value_mask.as_ref(),
        ]
    }

    pub fn describe(
        &self,
        framework: &impl Describe,
        known: KnownTensors,
    ) -> PyResult<OperandDescs<'py>> {
        let describe = |(name, object), known: Option<Tensor>| match known {
            Some(tensor) => Ok(tensor),
            None => framework.describe(name, object),
        };
        let [value, references, offsets, logits] = known;
        let [of_value, of_references, of_offsets, of_logits] = self.real();
        let value = describe(of_value, value)?;
        let levels = framework.levels(
            value.place,
            &self.spatial_shapes,
            self.level_start_index.as_ref(),
        )?;
        let value_mask = match &self.value_mask {
            Some(mask) => Some(framework.describe("value_mask", mask)?),
            None => None,
        };
        let reference_points = describe(of_references, references)?;
        let offsets = describe(of_offsets, offsets)?;
        let (sampling_offsets, attention_logits, both) = match &self.attention_logits {
            Some(_) => (offsets, describe(of_logits, logits)?, None),
            None => {
                let [of_offsets, of_logits] = take_apart(self.value.py(), &offsets, &value)?;
                (of_offsets, of_logits, Some(offsets))
            }
        };
        Ok(OperandDescs {
            value,
            levels,
            reference_points,
            sampling_offsets,
            attention_logits,
            both,
            value_mask,
            settings: Settings::read(&self.settings)?,
        })
    }

    /// The library's inputs, with the mask.
    ///
    /// # Safety
    /// The operands stay alive and unchanged until the work of the call that gets this is done.
    pub unsafe fn inputs<'b>(&self, described: &'b OperandDescs<'_>) -> PyResult<Projections<'b>> {
        let view = |tensor: &Tensor, object| -> PyResult<_> {
            let layout = tensor.layout(object)?;
            // SAFETY: as the caller promises.
            Ok(unsafe { tensor.view(layout) })
        };
        let levels = described.levels.table();
        let settings = &described.settings;
        let samples = match *described.attention_logits.sizes {
            [_, _, _, samples] => Some(samples),
            _ => None,
        };
        let value_mask = match (&described.value_mask, &self.value_mask) {
            // SAFETY: as the caller promises.
            (Some(mask), Some(object)) => Some(unsafe { mask.bool_view(object)? }),
            _ => None,
        };
        Ok(Projections {
            value: view(&described.value, &self.value)?,
            levels,
            reference_points: view(&described.reference_points, &self.reference_points)?,
            sampling_offsets: view(&described.sampling_offsets, &self.sampling_offsets)?,
            attention_logits: view(&described.attention_logits, self.holding_logits())?,
            points: settings.points(self.value.py(), samples, levels.len())?,
            value_mask,
            mask_is_applied: settings.mask_is_applied,
            interpolation: settings.interpolation(),
            box_scale: settings.box_scale(),
        })
    }
}

/// Offsets, `[N, Q, M, K, 2]`, and logits, `[N, Q, M, K]`, of a tensor that has both, `[N, Q, M * K * 2 + M * K]`.
pub fn take_apart(py: Python<'_>, both: &Tensor, value: &Tensor) -> PyResult<[Tensor; 2]> {
    let heads = match *value.sizes {
        [_, _, heads, _] => heads.max(1),
        _ => 1,
    };
    let (&[images, queries, all], &[by_image, by_query, by_number]) =
        (&*both.sizes, &*both.strides)
    else {
        return Err(refused(py, both, heads));
    };
    if all % (3 * heads) != 0 {
        return Err(refused(py, both, heads));
    }
    let samples = all / (3 * heads);
    let bytes = match both.element {
        Element::Real(dtype) => dtype.size(),
        // Of another type, which is refused later.
        _ => 0,
    };
    // Strides of axes without elements may be any numbers.
    let along = by_number.wrapping_mul(samples.cast_signed());
    let (twice, twice_along) = (by_number.wrapping_mul(2), along.wrapping_mul(2));
    let part = |name, numbers_before: usize, sizes: &[usize], strides: &[isize]| Tensor {
        name,
        // A reversed axis goes to lower addresses.
        address: (both.address)
            .wrapping_add_signed(by_number.wrapping_mul((numbers_before * bytes).cast_signed())),
        sizes: sizes.iter().copied().collect(),
        strides: [&[by_image, by_query], strides]
            .concat()
            .into_iter()
            .collect(),
        ..both.clone()
    };
    Ok([
        part(
            "sampling_offsets",
            0,
            &[images, queries, heads, samples, 2],
            &[twice_along, twice, by_number],
        ),
        part(
            "attention_logits",
            heads * samples * 2,
            &[images, queries, heads, samples],
            &[along, by_number],
        ),
    ])
}

fn refused(py: Python<'_>, both: &Tensor, heads: usize) -> PyErr {
    let expected = format!("shape [N, Q, 3 * {heads} * K], as attention_logits is None");
    let found = format!("{:?}", &*both.sizes);
    unexpected(py, Kind::Input, "sampling_offsets", &expected, found)
}
