//! PyTorch tensors, by attributes that every version has: PyTorch is not linked.

use fourtap::cuda::Cuda;
use fourtap::{DType, MAX_RANK, Place};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::dense_tensors::DenseTensors;
use super::dlpack::Exchange;
use super::{Describe, Framework};
use crate::errors::{Kind, unexpected};
use crate::levels::LevelsArgument;
use crate::tensor::{Element, Tensor};

/// Functions and attributes of PyTorch, looked up once.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    /// Dtypes are singletons, so they are compared by identity.
    elements: Vec<(Py<PyAny>, Element)>,
    strided: Py<PyAny>,
    int64: Py<PyAny>,
    uint8: Py<PyAny>,
    threads: Py<PyAny>,
    /// `None` in a PyTorch built without CUDA.
    raw_stream: Option<Py<PyAny>>,
    /// The allocation functions of compiled code, faster than `new_empty`: in host memory, and on the current CUDA device.
    /// `None` in other versions, or without CUDA.
    empty_on_host: Option<Py<PyAny>>,
    empty_on_current_device: Option<Py<PyAny>>,
    dense_tensors: DenseTensors,
    /// `None` before PyTorch 2.10.
    exchange: Option<Exchange>,
    /// Each returns 0 or false unless something intercepts operator calls: a mode, a tracer, a transform.
    watchers: [Py<PyAny>; 3],
    grad_enabled: Py<PyAny>,
    deterministic: Py<PyAny>,
    /// `None` in versions that have one such function per device type.
    autocast_enabled: Option<Py<PyAny>>,
    forward_ad: Py<PyAny>,
}

/// Whether a tensor's memory can be read directly.
enum TensorAccess {
    /// It can; described if that was cheap.
    Direct(Option<Tensor>),
    /// Only PyTorch can materialise it.
    Opaque,
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
        let allocator = |name: &str| {
            let guards = internals.getattr("_dynamo").ok()?.getattr("guards").ok()?;
            guards.getattr(name).ok().map(Bound::unbind)
        };
        let watchers = [
            internals.getattr("_len_torch_dispatch_stack")?.unbind(),
            internals
                .getattr("_are_functorch_transforms_active")?
                .unbind(),
            internals.getattr("_is_tracing")?.unbind(),
        ];
        Ok(Torch {
            empty_on_host: allocator("_empty_strided_cpu"),
            empty_on_current_device: allocator("_empty_strided_cuda"),
            dense_tensors: DenseTensors::default(),
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
                (attribute("bool")?, Element::Bool),
                (attribute("uint8")?, Element::Bool),
            ],
            strided: attribute("strided")?,
            int64: attribute("int64")?,
            uint8: attribute("uint8")?,
            threads: attribute("get_num_threads")?,
            raw_stream: internals
                .getattr("_cuda_getCurrentRawStream")
                .ok()
                .map(Bound::unbind),
            watchers,
            grad_enabled: attribute("is_grad_enabled")?,
            // What `torch.are_deterministic_algorithms_enabled` asks.
            deterministic: internals.getattr("_get_deterministic_algorithms")?.unbind(),
            autocast_enabled: internals
                .getattr("_is_any_autocast_enabled")
                .ok()
                .map(Bound::unbind),
            forward_ad: py.import("torch.autograd.forward_ad")?.into_any().unbind(),
        })
    }

    /// Descriptions of the named tensors, if the memory of all can be read directly and nothing intercepts operator calls: a
    /// mode, a tracer, a functorch transform, forward-mode differentiation.
    pub fn reads_directly<const N: usize>(
        &self,
        py: Python<'_>,
        named: [(&'static str, &Bound<'_, PyAny>); N],
        others: &[Option<&Bound<'_, PyAny>>],
    ) -> PyResult<Option<[Option<Tensor>; N]>> {
        for watcher in &self.watchers {
            if watcher.bind(py).call0()?.is_truthy()? {
                return Ok(None);
            }
        }
        let level = self
            .forward_ad
            .bind(py)
            .getattr(intern!(py, "_current_level"))?;
        if level.extract::<i64>()? >= 0 {
            return Ok(None);
        }
        for tensor in others.iter().flatten() {
            if !self.is_plain(tensor) && self.owns(tensor)? {
                return Ok(None);
            }
        }
        let mut known = [const { None }; N];
        for (known, (name, tensor)) in known.iter_mut().zip(named) {
            if self.is_plain(tensor) {
                *known = match self.inspect(name, tensor)? {
                    TensorAccess::Direct(described) => described,
                    TensorAccess::Opaque => return Ok(None),
                };
            } else if self.owns(tensor)? {
                return Ok(None);
            }
        }
        Ok(Some(known))
    }

    /// Whether a tensor's memory holds the negative of what it stands for: an imaginary part of a conjugate, say.
    pub fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tensor.py();
        tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()
    }

    /// Whether a plain tensor's memory can be read directly and holds its values, not their negatives.
    fn inspect(&self, name: &'static str, tensor: &Bound<'_, PyAny>) -> PyResult<TensorAccess> {
        let py = tensor.py();
        let described = match &self.exchange {
            Some(exchange) => exchange.describe(name, tensor),
            None => None,
        };
        if described.is_none() {
            if !tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()?
                && !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
            {
                return Ok(TensorAccess::Opaque);
            }
            // A nested tensor, one that vmap made, or that outlived its transform. Sparse and quantised tensors are refused
            // by their names, later.
            let has_address =
                self.exchange.is_none() && tensor.call_method0(intern!(py, "data_ptr")).is_ok();
            let layout = tensor.getattr(intern!(py, "layout"))?;
            if !has_address && layout.is(&self.strided) && self.element(tensor)? != Element::Other {
                return Ok(TensorAccess::Opaque);
            }
        }
        match self.is_negated(tensor)? {
            true => Ok(TensorAccess::Opaque),
            false => Ok(TensorAccess::Direct(described)),
        }
    }

    /// Whether autocast is enabled and may change dtypes.
    pub fn casts(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.autocast_enabled {
            Some(enabled) => enabled.bind(py).call0()?.is_truthy(),
            None => Ok(true),
        }
    }

    /// Whether autograd records a call with these tensors.
    pub fn wants_gradient<const N: usize>(
        &self,
        py: Python<'_>,
        named: [(&'static str, &Bound<'_, PyAny>); N],
    ) -> PyResult<bool> {
        if !self.grad_enabled.bind(py).call0()?.is_truthy()? {
            return Ok(false);
        }
        for (_, tensor) in named {
            // Something that is not a tensor is refused later, by name.
            if self.is_plain(tensor) && tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether it is a tensor and not an instance of a subclass.
    fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let class = object.get_type();
        class.is(&self.tensor) || class.is(&self.parameter)
    }

    /// The element type of anything that has a dtype of PyTorch.
    pub fn element(&self, object: &Bound<'_, PyAny>) -> PyResult<Element> {
        let dtype = object.getattr(intern!(object.py(), "dtype"))?;
        let known = self.elements.iter().find(|(known, _)| dtype.is(known));
        Ok(known.map_or(Element::Other, |(_, element)| *element))
    }
}

impl Describe for Torch {
    fn owns(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.is_plain(object) {
            return Ok(true);
        }
        // Usually levels. An instance check on the tensor class takes longer than reading a few pairs.
        if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
            return Ok(false);
        }
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
            let expected = "a PyTorch tensor, like the others";
            return Err(unexpected(py, Kind::Input, name, expected, found));
        }
        if !self.is_plain(object) {
            static REFUSE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let refuse = REFUSE.get_or_try_init(py, || -> PyResult<_> {
                let module = py.import("fourtap._subclasses")?;
                Ok(module.getattr("refuse_without_memory")?.unbind())
            })?;
            refuse.bind(py).call1((name, object))?;
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
            .and_then(|strides| strides.extract::<Vec<isize>>());
        let address = object.call_method0(intern!(py, "data_ptr"));
        let (Ok(strides), Ok(address)) = (strides, address) else {
            // The layout of nested tensors is called strided, too.
            if object.getattr(intern!(py, "is_nested"))?.is_truthy()? {
                let expected = "a dense tensor";
                return Err(unexpected(
                    py,
                    Kind::Input,
                    name,
                    expected,
                    "a nested tensor",
                ));
            }
            return Err(refused("a dense tensor", "layout"));
        };
        let sizes: Vec<usize> = object.getattr(intern!(py, "shape"))?.extract()?;
        Ok(Tensor {
            name,
            address: address.extract()?,
            place,
            element: self.element(object)?,
            sizes: sizes.into_iter().collect(),
            strides: strides.into_iter().collect(),
        })
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

impl Framework for Torch {
    fn accept_out(&self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = out.py();
        if !self.owns(out)? {
            // Refused when it is described.
            return Ok(());
        }
        static ACCEPT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let accept = ACCEPT.get_or_try_init(py, || -> PyResult<_> {
            let module = py.import("fourtap._registered")?;
            Ok(module.getattr("accept_out")?.unbind())
        })?;
        accept.bind(py).call1((out,)).map(drop)
    }

    fn mark_written(&self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = out.py();
        let graph = py.import(intern!(py, "torch.autograd.graph"))?;
        graph
            .call_method1(intern!(py, "increment_version"), (out,))
            .map(drop)
    }

    fn empty<'py>(
        &self,
        like: &Bound<'py, PyAny>,
        described: &Tensor,
        element: Element,
        sizes: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = like.py();
        let dtype = self.elements.iter().find(|(_, it)| *it == element);
        let allocate = match described.place {
            Place::Host => self.empty_on_host.as_ref(),
            Place::Cuda { ordinal } => self
                .empty_on_current_device
                .as_ref()
                .filter(|_| Cuda::new(ordinal).is_ok_and(|cuda| cuda.context().is_current())),
            _ => None,
        };
        if let Some(allocate) = allocate
            && let Some((dtype, _)) = dtype
            && sizes.len() <= MAX_RANK
        {
            return allocate
                .bind(py)
                .call1(self.dense_tensors.arguments(py, sizes, dtype)?);
        }
        let sizes = PyTuple::new(py, sizes)?;
        let options = PyDict::new(py);
        if let Some((dtype, _)) = dtype
            && element != described.element
        {
            options.set_item(intern!(py, "dtype"), dtype)?;
        }
        like.call_method(intern!(py, "new_empty"), (sizes,), Some(&options))
    }

    fn dense<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        object.call_method0(intern!(object.py(), "contiguous"))
    }

    fn dense_int64<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let int64 = object.call_method1(intern!(py, "to"), (&self.int64,))?;
        int64.call_method0(intern!(py, "contiguous"))
    }

    fn beside<'py>(
        &self,
        numbers: &[i64],
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        let pairs: Vec<_> = numbers.chunks(2).collect();
        let options = PyDict::new(py);
        options.set_item(intern!(py, "dtype"), &self.int64)?;
        tensor.call_method(intern!(py, "new_tensor"), (pairs,), Some(&options))
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

    fn is_deterministic(&self, py: Python<'_>) -> PyResult<bool> {
        self.deterministic.bind(py).call0()?.is_truthy()
    }
}
