//! A cache of the arguments for allocating row-major tensors. The same few are allocated again and again, and for a small
//! call building the tuples costs more than a lookup.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use fourtap::MAX_RANK;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::tensor::Axes;

/// Arguments of recent allocations.
#[derive(Default)]
pub struct DenseTensors(Mutex<VecDeque<CachedArguments>>);

struct CachedArguments {
    sizes: Axes<usize>,
    dtype: Py<PyAny>,
    arguments: Py<PyTuple>,
}

impl DenseTensors {
    const MOST: usize = 8;

    /// The tuple (sizes, strides, dtype), for at most [`MAX_RANK`] axes.
    pub fn arguments<'py>(
        &self,
        py: Python<'py>,
        sizes: &[usize],
        dtype: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // No Python code runs while it is locked, so a waiting thread cannot deadlock with the holder.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |cached: &&CachedArguments| *cached.sizes == *sizes && cached.dtype.is(dtype);
        if let Some(cached) = lock().iter().find(known) {
            return Ok(cached.arguments.bind(py).clone());
        }
        let mut strides = [1; MAX_RANK];
        for axis in (1..sizes.len()).rev() {
            strides[axis - 1] = strides[axis] * sizes[axis].max(1);
        }
        let strides = PyTuple::new(py, &strides[..sizes.len()])?;
        let arguments = (PyTuple::new(py, sizes)?, strides, dtype).into_pyobject(py)?;
        let cached = CachedArguments {
            sizes: sizes.iter().copied().collect(),
            dtype: dtype.clone_ref(py),
            arguments: arguments.clone().unbind(),
        };
        let forgotten = {
            let mut cache = lock();
            cache.push_front(cached);
            (cache.len() > Self::MOST).then(|| cache.pop_back())
        };
        drop(forgotten);
        Ok(arguments)
    }
}
