//! Shadows of tensors: what a call of the registered operators is checked by where tensors have no memory to read, as
//! fake and meta tensors have none. The checks are those of real calls.

use fourtap::Place;
use fourtap::msda::Levels;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::Describe;
use super::torch::Torch;
use crate::errors::raise;
use crate::levels::{LevelsArgument, expect_integers, expect_sizes, pairs};
use crate::tensor::Tensor;

/// Objects of the Python class `fourtap._shadows.Shadow`.
pub struct Shadows {
    torch: &'static Torch,
}

/// Where all of them are said to be: that they are on one device was checked before, and levels in the memory of a device
/// are those that no check reads.
const PLACE: Place = Place::Cuda { ordinal: 0 };

/// Not null, and aligned for every element. Nothing is ever read there.
const ADDRESS: usize = 4096;

#[derive(FromPyObject)]
struct Shadow {
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// The numbers in it, in order, of a tensor of levels that has memory.
    numbers: Option<Vec<i64>>,
}

impl Shadows {
    pub fn get(py: Python<'_>) -> PyResult<Shadows> {
        Ok(Shadows {
            torch: Torch::get(py)?,
        })
    }
}

impl Describe for Shadows {
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(object.py(), "fourtap._shadows", "Shadow")?;
        Ok(object.get_type().is(class))
    }

    fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let shadow: Shadow = object.extract()?;
        Ok(Tensor {
            name,
            address: ADDRESS,
            place: PLACE,
            element: self.torch.element(object)?,
            sizes: shadow.shape.into_iter().collect(),
            strides: shadow.strides.into_iter().collect(),
        })
    }

    fn levels<'py>(
        &self,
        _place: Place,
        shapes: &Bound<'py, PyAny>,
        starts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<LevelsArgument<'py>> {
        let py = shapes.py();
        let numbers =
            |object: &Bound<'py, PyAny>| -> PyResult<_> { Ok(object.extract::<Shadow>()?.numbers) };
        let (count, sizes) = if self.owns(shapes)? {
            let described = self.describe("spatial_shapes", shapes)?;
            expect_integers("spatial_shapes", shapes, &described)?;
            expect_sizes(py, &described, "[L, 2]", |sizes| matches!(sizes, [_, 2]))?;
            (described.sizes[0], numbers(shapes)?)
        } else {
            let sizes = pairs(shapes)?;
            (sizes.len() / 2, Some(sizes))
        };
        let mut first_pixels = None;
        if let Some(starts) = starts {
            let described = self.describe("level_start_index", starts)?;
            expect_integers("level_start_index", starts, &described)?;
            expect_sizes(py, &described, &format!("[{count}]"), |sizes| {
                sizes == [count]
            })?;
            first_pixels = numbers(starts)?;
        }
        match sizes {
            Some(sizes) if starts.is_none() || first_pixels.is_some() => {
                let levels = Levels::from_i64(&sizes, first_pixels.as_deref());
                levels
                    .map(LevelsArgument::Host)
                    .map_err(|error| raise(py, error))
            }
            _ => Ok(LevelsArgument::unread(count)),
        }
    }
}
