//! PyTorch's tensors, by the attributes every version has: nothing of PyTorch is linked.

use fourtap::{DType, Place};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::Framework;
use super::dlpack::Exchange;
use crate::call::Operands;
use crate::errors::{Kind, unexpected};
use crate::tensor::{Element, Tensor};

/// What is asked of PyTorch again and again, looked up once.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    /// Types are single objects, so they are told apart by identity.
    elements: Vec<(Py<PyAny>, Element)>,
    int64: Py<PyAny>,
    uint8: Py<PyAny>,
    threads: Py<PyAny>,
    /// None in a PyTorch built without CUDA.
    raw_stream: Option<Py<PyAny>>,
    /// None before PyTorch 2.10.
    exchange: Option<Exchange>,
    /// Each tells of something that wants to see operators, not results, when it gives anything but these answers.
    watchers: Vec<(Py<PyAny>, Idle)>,
    forward_ad: Py<PyAny>,
}

/// What a watcher answers while it does not watch.
#[derive(Clone, Copy, Debug)]
enum Idle {
    Zero,
    None,
}

impl Torch {
    /// PyTorch, which the caller has imported.
    pub fn get(py: Python<'_>) -> PyResult<&'static Torch> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        TORCH.get_or_try_init(py, || Torch::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Torch> {
        let torch = py.import("torch")?;
        let attribute = |name: &str| torch.getattr(name).map(Bound::unbind);
        let class = |path: &str, name: &str| -> PyResult<Py<PyType>> {
            Ok(py
                .import(path)?
                .getattr(name)?
                .cast_into::<PyType>()?
                .unbind())
        };
        let internals = torch.getattr("_C")?;
        let functorch = internals.getattr("_functorch")?;
        let watchers = vec![
            (
                internals.getattr("_len_torch_dispatch_stack")?.unbind(),
                Idle::Zero,
            ),
            (
                functorch.getattr("peek_interpreter_stack")?.unbind(),
                Idle::None,
            ),
            (
                internals.getattr("_get_tracing_state")?.unbind(),
                Idle::None,
            ),
        ];
        Ok(Torch {
            exchange: Exchange::of(&torch.getattr("Tensor")?),
            tensor: class("torch", "Tensor")?,
            parameter: class("torch.nn", "Parameter")?,
            elements: vec![
                (attribute("float32")?, Element::Real(DType::F32)),
                (attribute("float16")?, Element::Real(DType::F16)),
                (attribute("bfloat16")?, Element::Real(DType::BF16)),
                (attribute("int64")?, Element::Int64),
                (attribute("float64")?, Element::Real(DType::F64)),
                (attribute("int32")?, Element::Int32),
            ],
            int64: attribute("int64")?,
            uint8: attribute("uint8")?,
            threads: attribute("get_num_threads")?,
            raw_stream: internals
                .getattr("_cuda_getCurrentRawStream")
                .ok()
                .map(Bound::unbind),
            watchers,
            forward_ad: py.import("torch.autograd.forward_ad")?.into_any().unbind(),
        })
    }

    /// Whether the memory of these tensors can be read as it lies, and nobody wants to see an operator called instead:
    /// a mode, a tracer, a transform of functorch, forward-mode differentiation.
    pub fn reads_directly(
        &self,
        operands: &Operands<'_, '_>,
        other: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let py = operands.value.py();
        for (watcher, idle) in &self.watchers {
            let answer = watcher.bind(py).call0()?;
            let idles = match idle {
                Idle::Zero => !answer.is_truthy()?,
                Idle::None => answer.is_none(),
            };
            if !idles {
                return Ok(false);
            }
        }
        let level = self
            .forward_ad
            .bind(py)
            .getattr(intern!(py, "_current_level"))?;
        if level.extract::<i64>()? >= 0 {
            return Ok(false);
        }
        let tensors = [
            Some(operands.value),
            Some(operands.spatial_shapes),
            operands.level_start_index,
            Some(operands.sampling_locations),
            Some(operands.attention_weights),
            other,
        ];
        for tensor in tensors.into_iter().flatten() {
            if !self.is_plain(tensor) && self.owns(tensor)? {
                return Ok(false);
            }
        }
        let real = [
            operands.value,
            operands.sampling_locations,
            operands.attention_weights,
        ];
        for tensor in real {
            // Its memory holds the negative of what it stands for.
            if self.is_plain(tensor) && tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
                return Ok(false);
            }
        }
        let value = operands.value;
        Ok(value.getattr(intern!(py, "is_cuda"))?.is_truthy()?
            || value.getattr(intern!(py, "is_cpu"))?.is_truthy()?)
    }

    /// Whether it is a tensor and no more.
    fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let class = object.get_type();
        class.is(&self.tensor) || class.is(&self.parameter)
    }

    fn element(&self, object: &Bound<'_, PyAny>) -> PyResult<Element> {
        let dtype = object.getattr(intern!(object.py(), "dtype"))?;
        let known = self.elements.iter().find(|(known, _)| dtype.is(known));
        Ok(known.map_or(Element::Other, |(_, element)| *element))
    }
}

impl Framework for Torch {
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(self.tensor.bind(object.py()))
    }

    fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        if let Some(exchange) = &self.exchange
            && self.is_plain(object)
            && let Some(tensor) = exchange.describe(name, object)
        {
            return Ok(tensor);
        }
        let py = object.py();
        if !self.owns(object)? {
            let found = object.get_type().fully_qualified_name()?.to_string();
            let expected = "a PyTorch tensor (value is one)";
            return Err(unexpected(py, Kind::Input, name, expected, found));
        }
        let refused = |expected: &str, what: &str| -> PyErr {
            let found = object.getattr(what).map(|found| found.to_string());
            unexpected(py, Kind::Input, name, expected, found.unwrap_or_default())
        };
        let ordinal: i64 = object.call_method0(intern!(py, "get_device"))?.extract()?;
        let place = match usize::try_from(ordinal) {
            Ok(ordinal) if object.getattr(intern!(py, "is_cuda"))?.is_truthy()? => {
                Place::Cuda { ordinal }
            }
            Err(_) if object.getattr(intern!(py, "is_cpu"))?.is_truthy()? => Place::Host,
            _ => return Err(refused("a tensor on the CPU or a CUDA device", "device")),
        };
        let strides = object
            .call_method0(intern!(py, "stride"))
            .and_then(|strides| strides.extract());
        let address = object.call_method0(intern!(py, "data_ptr"));
        let (Ok(strides), Ok(address)) = (strides, address) else {
            return Err(refused("a dense tensor", "layout"));
        };
        Ok(Tensor {
            name,
            address: address.extract()?,
            place,
            element: self.element(object)?,
            sizes: object.getattr(intern!(py, "shape"))?.extract()?,
            strides,
        })
    }

    fn empty<'py>(&self, like: &Bound<'py, PyAny>, sizes: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        let sizes = PyTuple::new(py, sizes)?;
        like.call_method1(intern!(py, "new_empty"), (sizes,))
    }

    fn dense<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        object.call_method0(intern!(object.py(), "contiguous"))
    }

    fn dense_int64<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let int64 = object.call_method1(intern!(py, "to"), (&self.int64,))?;
        int64.call_method0(intern!(py, "contiguous"))
    }

    fn scratch<'py>(
        &self,
        beside: &Bound<'py, PyAny>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = beside.py();
        let options = PyDict::new(py);
        options.set_item(intern!(py, "dtype"), &self.uint8)?;
        beside.call_method(intern!(py, "new_empty"), ((bytes,),), Some(&options))
    }

    fn threads(&self, py: Python<'_>) -> PyResult<usize> {
        self.threads.bind(py).call0()?.extract()
    }

    fn stream(&self, py: Python<'_>, ordinal: usize) -> PyResult<usize> {
        if let Some(exchange) = &self.exchange {
            return exchange.stream(py, ordinal);
        }
        match &self.raw_stream {
            Some(current) => current.bind(py).call1((ordinal,))?.extract(),
            None => Ok(0),
        }
    }
}
