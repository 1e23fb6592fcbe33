//! Frameworks whose tensors the operators take. They are used through Python, so that none is linked and any version
//! works.

mod dense_tensors;
mod dlpack;
pub mod numpy;
pub mod shadow;
pub mod torch;

use fourtap::cuda::Cuda;
use fourtap::{Error, Place};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::levels::LevelsArgument;
use crate::tensor::{Element, Tensor};

/// What a check of a call needs to know of its tensors.
pub trait Describe {
    /// Whether the object is one of its tensors, of any dtype.
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool>;

    /// Describes one of its tensors; an exception names it by `name`.
    fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor>;

    /// The levels of a call whose `value` is in `place`.
    fn levels<'py>(
        &self,
        place: Place,
        shapes: &Bound<'py, PyAny>,
        starts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<LevelsArgument<'py>>;
}

/// What the operators need from a framework.
pub trait Framework: Describe {
    /// Describes a tensor that will be written.
    fn describe_writable(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        self.describe(name, object)
    }

    /// Refuses a tensor of the caller's that may not be written, by its name `out`.
    fn accept_out(&self, out: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Notes that a tensor of the caller's was written, for whoever has saved it.
    fn mark_written(&self, out: &Bound<'_, PyAny>) -> PyResult<()>;

    /// A new uninitialised row-major tensor on the device of another, of its dtype, f32 or f64.
    fn empty<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        described: &Tensor,
        element: Element,
        sizes: &[usize],
    ) -> PyResult<Bound<'py, PyAny>>;

    /// The tensor, contiguous.
    fn dense<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

    /// The integers as contiguous int64.
    fn dense_int64<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

    /// Copies heights and widths to the device of a tensor.
    fn beside<'py>(
        &self,
        numbers: &[i64],
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>>;

    /// Scratch memory on the device of a tensor.
    fn scratch<'py>(&self, beside: &Bound<'py, PyAny>, bytes: usize)
    -> PyResult<Bound<'py, PyAny>>;

    /// Threads to use on the CPU.
    fn threads(&self, py: Python<'_>) -> PyResult<usize>;

    /// The handle of the current stream of a CUDA device.
    fn stream(&self, py: Python<'_>, ordinal: usize) -> PyResult<usize>;

    /// Whether the user asks for bitwise reproducible results with any tuning table.
    fn is_deterministic(&self, py: Python<'_>) -> PyResult<bool>;

    /// A CUDA device, on its current stream.
    fn cuda(&self, py: Python<'_>, place: Place) -> PyResult<Option<Cuda>> {
        let Place::Cuda { ordinal } = place else {
            return Ok(None);
        };
        let cuda = Cuda::new(ordinal).map_err(|error| raise(py, Error::Cuda(error)))?;
        let stream = self.stream(py, ordinal)?;
        // SAFETY: the framework's current stream of this device outlives the call made with it.
        let cuda = unsafe { cuda.on_stream(stream as *mut _) };
        Ok(Some(cuda.deterministic(self.is_deterministic(py)?)))
    }
}
