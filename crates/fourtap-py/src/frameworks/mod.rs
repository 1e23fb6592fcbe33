//! Libraries whose tensors the operator takes. They are asked by Python's own means, so that none is linked and any
//! version will do.

mod dense_tensors;
mod dlpack;
pub mod numpy;
pub mod torch;

use fourtap::cuda::Cuda;
use fourtap::{Error, Place};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::tensor::{Element, Tensor};

/// What the operator needs of a library of tensors.
pub trait Framework {
    /// Whether it is one of its tensors, of whatever elements.
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool>;

    /// Describes one of its tensors; an exception names it by `name`.
    fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor>;

    /// Describes one that will be written.
    fn describe_writable(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        self.describe(name, object)
    }

    /// A new row-major tensor in the place of another, of its type, f32 or f64; its elements are whatever the memory
    /// held.
    fn empty<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        described: &Tensor,
        element: Element,
        sizes: &[usize],
    ) -> PyResult<Bound<'py, PyAny>>;

    /// The same elements in row-major order without gaps.
    fn dense<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

    /// The same whole numbers as int64 in row-major order without gaps.
    fn dense_int64<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

    /// Heights and widths from the host, beside a tensor on a device.
    fn beside<'py>(
        &self,
        numbers: &[i64],
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>>;

    /// So many bytes of scratch memory beside a tensor.
    fn scratch<'py>(&self, beside: &Bound<'py, PyAny>, bytes: usize)
    -> PyResult<Bound<'py, PyAny>>;

    /// Threads to use on the CPU.
    fn threads(&self, py: Python<'_>) -> PyResult<usize>;

    /// The handle of the stream that is current on a CUDA device.
    fn stream(&self, py: Python<'_>, ordinal: usize) -> PyResult<usize>;

    /// Whether the user wants the same bits every time, whatever a tuning table says.
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
