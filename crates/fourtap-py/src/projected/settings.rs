//! Settings of a call from projections.

use fourtap::msda::projections::{BoxScale, Interpolation, Points};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{Kind, unexpected};
use crate::levels::shown;

/// A number for every level, or one for each.
enum PerLevel<T> {
    Default,
    Each(T),
    Listed(Vec<T>),
}

impl<T> PerLevel<T> {
    fn read<'py>(argument: &str, expected: &str, found: &Bound<'py, PyAny>) -> PyResult<PerLevel<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        if found.is_none() {
            return Ok(PerLevel::Default);
        }
        if let Ok(number) = found.extract() {
            return Ok(PerLevel::Each(number));
        }
        match found.extract() {
            Ok(numbers) => Ok(PerLevel::Listed(numbers)),
            Err(_) => Err(unexpected(
                found.py(),
                Kind::DType,
                argument,
                expected,
                shown(found),
            )),
        }
    }
}

/// What python/fourtap/attention.py makes a tuple of.
pub struct Settings {
    points: PerLevel<usize>,
    nearest: bool,
    box_scale: PerLevel<f64>,
    /// Whether `value` is zero already where `value_mask` is true: only gradients still need the mask.
    pub mask_is_applied: bool,
}

impl Settings {
    /// Reads the tuple (points_per_level, nearest, box_scale, mask_is_applied).
    pub fn read(tuple: &Bound<'_, PyTuple>) -> PyResult<Settings> {
        let points = "None, a number of points, or one for each level";
        let scale = "None, a number, or one for each level";
        Ok(Settings {
            points: PerLevel::read("points_per_level", points, &tuple.get_item(0)?)?,
            nearest: tuple.get_item(1)?.is_truthy()?,
            box_scale: PerLevel::read("box_scale", scale, &tuple.get_item(2)?)?,
            mask_is_applied: tuple.get_item(3)?.is_truthy()?,
        })
    }

    /// How `samples` points of a head, if that is known, are distributed over the levels.
    pub fn points(
        &self,
        py: Python<'_>,
        samples: Option<usize>,
        levels: usize,
    ) -> PyResult<Points<'_>> {
        match (&self.points, samples) {
            (PerLevel::Each(points), _) => Ok(Points::Each(*points)),
            (PerLevel::Listed(points), _) => Ok(Points::Listed(points)),
            // Of a wrong rank, which the library will say.
            (PerLevel::Default, None) => Ok(Points::Each(0)),
            (PerLevel::Default, Some(samples)) if samples.is_multiple_of(levels) => {
                Ok(Points::Each(samples / levels.max(1)))
            }
            (PerLevel::Default, Some(samples)) => {
                let expected = format!(
                    "one number for each level, as {samples} points are not a multiple of {levels} levels"
                );
                let argument = "points_per_level";
                Err(unexpected(py, Kind::Input, argument, &expected, "None"))
            }
        }
    }

    pub fn interpolation(&self) -> Interpolation {
        match self.nearest {
            true => Interpolation::Nearest,
            false => Interpolation::Bilinear,
        }
    }

    pub fn box_scale(&self) -> BoxScale<'_> {
        match &self.box_scale {
            PerLevel::Default => BoxScale::HalfBox,
            PerLevel::Each(factor) => BoxScale::Each(*factor),
            PerLevel::Listed(factors) => BoxScale::Listed(factors),
        }
    }
}
