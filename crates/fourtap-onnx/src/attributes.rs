//! The attributes of a node from projections; under the names that arguments have in Python.

use std::ffi::CStr;

use fourtap::msda::projections::Interpolation;

use crate::api::{Api, KernelInfo};
use crate::error::{Error, Result};

/// What is said of a node besides its inputs.
#[derive(Debug, Default)]
pub struct Attributes {
    /// `points_per_level`: one number for all levels, or one for each. By default all levels have the same.
    pub points: Option<Vec<usize>>,
    /// `sampling`: "bilinear", the default, or "nearest".
    pub interpolation: Interpolation,
    /// `box_scale`: one number for all levels, or one for each. By default 0.5 / P.
    pub box_scale: Option<Vec<f64>>,
}

impl Attributes {
    /// # Safety
    /// The node is the one that ONNX Runtime handed over.
    pub unsafe fn read(api: Api, info: *const KernelInfo) -> Result<Attributes> {
        // SAFETY: as the caller promises.
        unsafe {
            let reader = Reader { api, info };
            let points = reader.optional(c"points_per_level", "a list of integers", |name| {
                api.integers(info, name)
            })?;
            let scales = reader.optional(c"box_scale", "a list of floats", |name| {
                api.floats(info, name)
            })?;
            let sampling =
                reader.optional(c"sampling", "a string", |name| api.string(info, name))?;
            let point = |count: i64| {
                let wrong = |_| Error::argument("points_per_level", "0 or more", count);
                usize::try_from(count).map_err(wrong)
            };
            Ok(Attributes {
                points: points
                    .map(|points| points.into_iter().map(point).collect())
                    .transpose()?,
                interpolation: match sampling.as_deref() {
                    None | Some("bilinear") => Interpolation::Bilinear,
                    Some("nearest") => Interpolation::Nearest,
                    Some(other) => {
                        let expected = "\"bilinear\" or \"nearest\"";
                        return Err(Error::argument("sampling", expected, format!("{other:?}")));
                    }
                },
                box_scale: scales.map(|scales| scales.into_iter().map(f64::from).collect()),
            })
        }
    }
}

struct Reader {
    api: Api,
    info: *const KernelInfo,
}

impl Reader {
    /// An attribute, if the node has it. ONNX Runtime does not say why it cannot read one, and reads a list of another type as an empty one;
    /// so one that is not as expected is there if it can be read as anything.
    ///
    /// # Safety
    /// As for [`Attributes::read`].
    unsafe fn optional<T: Content>(
        &self,
        name: &CStr,
        expected: &str,
        read: impl FnOnce(&CStr) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.forget_error(read(name)) {
            Some(content) if !content.is_empty() => return Ok(Some(content)),
            _ => {}
        }
        let (api, info) = (self.api, self.info);
        // SAFETY: as the caller promises.
        let is_there = unsafe {
            self.forget_error(api.integers(info, name)).is_some()
                || self.forget_error(api.floats(info, name)).is_some()
                || self.forget_error(api.string(info, name)).is_some()
        };
        match is_there {
            true => Err(Error::argument(
                name.to_string_lossy(),
                expected,
                "none, or another type",
            )),
            false => Ok(None),
        }
    }

    fn forget_error<T>(&self, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                if let Error::Runtime(status) = error {
                    self.api.release_status(status);
                }
            })
            .ok()
    }
}

/// What an attribute contains.
trait Content {
    fn is_empty(&self) -> bool;
}

impl<T> Content for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Content for String {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}
