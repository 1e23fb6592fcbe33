//! NumPy arrays, by the array interface.

use fourtap::cpu::Cpu;
use fourtap::{DType, Place};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple, PyType};

use super::{Describe, Framework};
use crate::errors::{Kind, unexpected};
use crate::levels::LevelsArgument;
use crate::tensor::{Element, Tensor};

/// NumPy.
pub struct NumPy;

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?;
    Ok(module.bind(py))
}

fn array_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "numpy", "ndarray")
}

fn masked_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "numpy.ma", "MaskedArray")
}

/// The array interface of an array.
struct Interface {
    address: usize,
    read_only: bool,
    sizes: Vec<usize>,
    /// In bytes; `None` if the array is contiguous.
    strides: Option<Vec<isize>>,
}

impl NumPy {
    fn interface(&self, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Interface> {
        let py = object.py();
        if !self.owns(object)? {
            let found = object.get_type().fully_qualified_name()?.to_string();
            let expected = "a NumPy array, like the others";
            return Err(unexpected(py, Kind::Input, name, expected, found));
        }
        if !object.get_type().is(array_type(py)?) && object.is_instance(masked_type(py)?)? {
            let expected = "an array without a mask (call .filled(), say)";
            let found = "numpy.ma.MaskedArray";
            return Err(unexpected(py, Kind::Input, name, expected, found));
        }
        let interface = object.getattr(intern!(py, "__array_interface__"))?;
        let (address, read_only) = interface.get_item(intern!(py, "data"))?.extract()?;
        let strides = interface.get_item(intern!(py, "strides"))?;
        Ok(Interface {
            address,
            read_only,
            sizes: interface.get_item(intern!(py, "shape"))?.extract()?,
            strides: strides.extract()?,
        })
    }

    fn element(&self, name: &str, object: &Bound<'_, PyAny>) -> PyResult<(Element, usize)> {
        let py = object.py();
        let dtype = object.getattr(intern!(py, "dtype"))?;
        if !dtype.getattr(intern!(py, "isnative"))?.is_truthy()? {
            let expected = "elements in this machine's byte order";
            return Err(unexpected(py, Kind::DType, name, expected, dtype.str()?));
        }
        let kind: char = dtype.getattr(intern!(py, "kind"))?.extract()?;
        let bytes: usize = dtype.getattr(intern!(py, "itemsize"))?.extract()?;
        let element = match (kind, bytes) {
            ('f', 2) => Element::Real(DType::F16),
            ('f', 4) => Element::Real(DType::F32),
            ('f', 8) => Element::Real(DType::F64),
            ('i', 4) => Element::Int32,
            ('i', 8) => Element::Int64,
            ('b' | 'u', 1) => Element::Bool,
            // Not a NumPy dtype, but from the package ml_dtypes that JAX and others use.
            ('V', 2) if dtype.getattr("name")?.eq("bfloat16")? => Element::Real(DType::BF16),
            _ => Element::Other,
        };
        Ok((element, bytes))
    }

    fn tensor(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        found: Interface,
    ) -> PyResult<Tensor> {
        let (element, bytes) = self.element(name, object)?;
        let bytes = bytes.max(1) as isize;
        let strides = match found.strides {
            Some(strides) => {
                if let Some(stride) = strides.iter().find(|&stride| stride % bytes != 0) {
                    let expected =
                        format!("strides that are multiples of {bytes} bytes, the element size");
                    let found = format!("a stride of {stride} bytes");
                    return Err(unexpected(object.py(), Kind::Input, name, &expected, found));
                }
                strides.iter().map(|stride| stride / bytes).collect()
            }
            None => row_major(&found.sizes),
        };
        Ok(Tensor {
            name,
            address: found.address,
            place: Place::Host,
            element,
            sizes: found.sizes.into_iter().collect(),
            strides: strides.into_iter().collect(),
        })
    }
}

fn row_major(sizes: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(sizes[axis].max(1) as isize);
    }
    strides
}

impl Describe for NumPy {
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(array_type(object.py())?)
    }

    fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let interface = self.interface(name, object)?;
        self.tensor(name, object, interface)
    }

    fn levels<'py>(
        &self,
        place: Place,
        shapes: &Bound<'py, PyAny>,
        starts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<LevelsArgument<'py>> {
        LevelsArgument::new(self, place, shapes, starts)
    }
}

impl Framework for NumPy {
    fn describe_writable(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let interface = self.interface(name, object)?;
        if interface.read_only {
            let expected = "an array that may be written";
            return Err(unexpected(
                object.py(),
                Kind::Input,
                name,
                expected,
                "a read-only one",
            ));
        }
        self.tensor(name, object, interface)
    }

    fn accept_out(&self, _out: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(())
    }

    fn mark_written(&self, _out: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(())
    }

    fn empty<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        _described: &Tensor,
        element: Element,
        sizes: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        let dtype = match element {
            Element::Real(DType::F32) => intern!(py, "float32").as_any().clone(),
            Element::Real(DType::F64) => intern!(py, "float64").as_any().clone(),
            _ => like.getattr(intern!(py, "dtype"))?,
        };
        let sizes = PyTuple::new(py, sizes)?;
        module(py)?.call_method1(intern!(py, "empty"), (sizes, dtype))
    }

    fn dense<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        module(py)?.call_method1(intern!(py, "ascontiguousarray"), (object,))
    }

    fn dense_int64<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        module(py)?.call_method1(intern!(py, "ascontiguousarray"), (object, "int64"))
    }

    fn beside<'py>(
        &self,
        numbers: &[i64],
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        let array = module(py)?.call_method1(intern!(py, "array"), (numbers.to_vec(), "int64"))?;
        array.call_method1(intern!(py, "reshape"), (numbers.len() / 2, 2))
    }

    fn scratch<'py>(
        &self,
        beside: &Bound<'py, PyAny>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = beside.py();
        module(py)?.call_method1(intern!(py, "empty"), (bytes, "uint8"))
    }

    fn threads(&self, _py: Python<'_>) -> PyResult<usize> {
        Ok(Cpu::available_threads())
    }

    fn stream(&self, _py: Python<'_>, _ordinal: usize) -> PyResult<usize> {
        Ok(0)
    }

    fn is_deterministic(&self, _py: Python<'_>) -> PyResult<bool> {
        Ok(false)
    }
}
