//! A call from Python: describes the tensors, allocates results and runs the library without the GIL.

use fourtap::msda::{self, Gradients, Problem};
use fourtap::{Prepared, ViewMut};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::raise;
use crate::frameworks::{Describe, Framework};
use crate::operands::{KnownTensors, Operands, saturating_product};
use crate::tensor::Tensor;
use crate::threads;

/// Checks a call as [`forward`] does or, with `grad_out`, as [`backward`] does.
pub fn check<'py>(
    py: Python<'py>,
    describe: &impl Describe,
    operands: &Operands<'_, 'py>,
    grad_out: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let described = operands.describe(describe, KnownTensors::default())?;
    // SAFETY: nothing is read or written: these are checked only.
    let inputs = unsafe { operands.inputs(&described)? };
    let checked = match grad_out {
        None => Problem::new(&inputs).map(drop),
        Some(grad_out) => {
            let of_out = describe.describe("grad_out", grad_out)?;
            let layout = of_out.layout(grad_out)?;
            // SAFETY: as above.
            let of_out = unsafe { of_out.view(layout) };
            msda::Backward::new(inputs, of_out, Gradients::default()).map(drop)
        }
    };
    checked.map_err(|error| raise(py, error))
}

/// Attention, written to `out` or to a new tensor.
pub fn forward<'py>(
    py: Python<'py>,
    framework: &impl Framework,
    operands: &Operands<'_, 'py>,
    known: KnownTensors,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let described = operands.describe(framework, known)?;
    // SAFETY: Python's caller holds the operands until we return, and frameworks free device memory in the order of
    // the stream that is current.
    let inputs = unsafe { operands.inputs(&described)? };
    let given = out;
    let out = match given {
        Some(out) => {
            framework.accept_out(out)?;
            out.clone()
        }
        None => {
            let sizes = described.sizes_of_out();
            // `None` means that the inputs do not fit each other: the library's check says how.
            let sizes = sizes.map_or_else(|| Ok(Problem::new(&inputs)?.sizes().out()), Ok);
            let sizes = sizes.map_err(|error| raise(py, error))?;
            let (value, element) = (&described.value, described.value.element);
            framework.empty(operands.value, value, element, &sizes)?
        }
    };
    let result = framework.describe_writable("out", &out)?;
    let layout = result.layout(&out)?;
    // SAFETY: it is new, or the caller gave it to be written; that it shares no memory with the inputs is checked.
    let result = unsafe { result.view_mut(layout) };
    match framework.cuda(py, described.value.place)? {
        Some(cuda) => on_device(py, framework, operands.value, || {
            msda::prepare_forward(&cuda, inputs, result)
        })?,
        None => {
            let elements = described.samples_times_channels();
            let workers = framework.threads(py)?;
            threads::run(py, workers, elements, |cpu| {
                msda::forward(&cpu, inputs, result)
            })?;
        }
    }
    if let Some(out) = given {
        framework.mark_written(out)?;
    }
    Ok(out)
}

/// Prepares a call on a device and launches it. Its workspace, if it needs one, is allocated by the framework, which does
/// not reuse the memory before the queued work is done. `beside` is a tensor on that device.
pub fn on_device<'a>(
    py: Python<'_>,
    framework: &impl Framework,
    beside: &Bound<'_, PyAny>,
    prepare: impl FnOnce() -> fourtap::Result<Prepared<'a>> + Send,
) -> PyResult<()> {
    // Without the GIL: preparing may compile a kernel. A call without a workspace is launched at once.
    let prepared = py.detach(|| match prepare()? {
        call if call.workspace_bytes() == 0 => call.launch().map(|()| None),
        call => Ok(Some(call)),
    });
    let Some(call) = prepared.map_err(|error| raise(py, error))? else {
        return Ok(());
    };
    let bytes = call.workspace_bytes();
    let memory = framework.scratch(beside, bytes)?;
    let address = framework.describe("workspace", &memory)?.address as u64;
    // SAFETY: that many bytes of this device, which only this call uses.
    py.detach(|| unsafe { call.launch_in(address, bytes) })
        .map_err(|error| raise(py, error))
}

/// The requested gradients of value, locations and weights, in new tensors; `None` for the others.
pub fn backward<'py>(
    py: Python<'py>,
    framework: &impl Framework,
    operands: &Operands<'_, 'py>,
    grad_out: &Bound<'py, PyAny>,
    deterministic: bool,
    wanted: [bool; 3],
) -> PyResult<Bound<'py, PyTuple>> {
    let described = operands.describe(framework, KnownTensors::default())?;
    // SAFETY: as in `forward`.
    let inputs = unsafe { operands.inputs(&described)? };
    let grad_out = dense_gradient(framework, grad_out)?;
    let of_out = framework.describe("grad_out", &grad_out)?;
    let layout = of_out.layout(&grad_out)?;
    // SAFETY: as in `forward`; a copy is held by this function.
    let of_out = unsafe { of_out.view(layout) };

    let sources = [
        ("grad_value", operands.value, &described.value),
        (
            "grad_locations",
            operands.sampling_locations,
            &described.sampling_locations,
        ),
        (
            "grad_weights",
            operands.attention_weights,
            &described.attention_weights,
        ),
    ];
    let mut made = [None, None, None];
    let mut views = [None, None, None];
    for (index, (name, source, described)) in sources.into_iter().enumerate() {
        if wanted[index] {
            // SAFETY: it is new, and returned when the call is done or queued.
            let (gradient, view) = unsafe { new_gradient(framework, name, source, described)? };
            views[index] = Some(view);
            made[index] = Some(gradient);
        }
    }
    let [value, sampling_locations, attention_weights] = views;
    let gradients = Gradients {
        value,
        sampling_locations,
        attention_weights,
    };

    match framework.cuda(py, described.value.place)? {
        Some(cuda) => {
            let cuda = cuda.deterministic(deterministic);
            on_device(py, framework, operands.value, || {
                msda::prepare_backward(&cuda, inputs, of_out, gradients)
            })?;
        }
        None => {
            let workers = framework.threads(py)?;
            // However few samples there are, every pixel's gradient is written.
            let pixels = described.value.sizes.iter().fold(1, saturating_product);
            let elements = described.samples_times_channels().saturating_add(pixels);
            threads::run(py, workers, elements, |cpu| {
                msda::backward(&cpu, inputs, of_out, gradients)
            })?;
        }
    }
    PyTuple::new(py, made)
}

/// `grad_out` as kernels read it fast: gradients of sums and means are expanded tensors (stride 0), and a copy costs less
/// than kernels for any strides.
pub fn dense_gradient<'py>(
    framework: &impl Framework,
    grad_out: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match framework.owns(grad_out)? {
        true => framework.dense(grad_out),
        false => Ok(grad_out.clone()),
    }
}

/// A new tensor for the gradient of `source`, and a view to write it.
///
/// # Safety
/// The tensor is alive, and nothing else uses it, until the work of the call that gets the view is done.
pub unsafe fn new_gradient<'py, 'a>(
    framework: &impl Framework,
    name: &'static str,
    source: &Bound<'py, PyAny>,
    described: &Tensor,
) -> PyResult<(Bound<'py, PyAny>, ViewMut<'a>)> {
    let gradient = framework.empty(source, described, described.element, &described.sizes)?;
    let described = framework.describe_writable(name, &gradient)?;
    let layout = described.layout(&gradient)?;
    // SAFETY: as the caller promises.
    let view = unsafe { described.view_mut(layout) };
    Ok((gradient, view))
}
