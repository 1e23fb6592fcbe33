//! A call from Python: tensors described, results made, the library run without Python's lock.

use fourtap::cuda::Cuda;
use fourtap::msda::{self, Gradients, Problem};
use fourtap::{Backend, Error};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::raise;
use crate::frameworks::Framework;
use crate::operands::{Known, Operands};
use crate::threads;

/// Attention, written to `out` or to a new tensor.
pub fn forward<'py>(
    py: Python<'py>,
    framework: &impl Framework,
    operands: &Operands<'_, 'py>,
    known: Known,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let described = operands.describe(framework, known)?;
    // SAFETY: Python's caller holds the operands until we return, and frameworks free device memory in the order of
    // the stream that is current.
    let inputs = unsafe { operands.inputs(&described)? };
    let out = match out {
        Some(out) => out.clone(),
        None => {
            let sizes = described.sizes_of_out();
            // Where there are none, the inputs do not fit each other, and the library can say how.
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
    let done = match framework.cuda(py, described.value.place)? {
        Some(cuda) => py.detach(|| msda::forward(&Backend::Cuda(cuda), inputs, result)),
        None => {
            let problem = Problem::new(&inputs).map_err(|error| raise(py, error))?;
            let sizes = problem.sizes();
            let elements = sizes.samples().saturating_mul(sizes.channels);
            let workers = framework.threads(py)?;
            py.detach(|| {
                threads::run(workers, elements, |cpu| {
                    msda::forward(&Backend::Cpu(cpu), inputs, result)
                })
            })
        }
    };
    done.map_err(|error| raise(py, error))?;
    Ok(out)
}

/// Gives one call on a device so many bytes of the framework's memory. What is returned is held until the call's work
/// is queued; the framework gives it to nobody before that work is done.
pub fn lend_scratch<'py>(
    framework: &impl Framework,
    beside: &Bound<'py, PyAny>,
    cuda: &mut Cuda,
    bytes: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if bytes == 0 {
        return Ok(None);
    }
    let memory = framework.scratch(beside, bytes)?;
    let address = framework.describe("workspace", &memory)?.address;
    // SAFETY: so many bytes of this device, which only this call uses.
    *cuda = unsafe { cuda.with_workspace(address as u64, bytes) };
    Ok(Some(memory))
}

/// The gradients wanted of value, locations and weights, in new tensors; `None` for the others.
pub fn backward<'py>(
    py: Python<'py>,
    framework: &impl Framework,
    operands: &Operands<'_, 'py>,
    grad_out: &Bound<'py, PyAny>,
    deterministic: bool,
    wanted: [bool; 3],
) -> PyResult<Bound<'py, PyTuple>> {
    let failed = |error: Error| raise(py, error);
    let described = operands.describe(framework, Known::default())?;
    // SAFETY: as in `forward`.
    let inputs = unsafe { operands.inputs(&described)? };
    let sizes = *Problem::new(&inputs).map_err(failed)?.sizes();
    // Gradients of sums and means come as one number spread out. A copy is quicker than kernels for any strides.
    let grad_out = match framework.owns(grad_out)? {
        true => framework.dense(grad_out)?,
        false => grad_out.clone(),
    };
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
            let gradient =
                framework.empty(source, described, described.element, &described.sizes)?;
            let described = framework.describe_writable(name, &gradient)?;
            let layout = described.layout(&gradient)?;
            // SAFETY: it is new.
            views[index] = Some(unsafe { described.view_mut(layout) });
            made[index] = Some(gradient);
        }
    }
    let [value, sampling_locations, attention_weights] = views;
    let gradients = Gradients {
        value,
        sampling_locations,
        attention_weights,
    };

    let mut cuda = framework.cuda(py, described.value.place)?;
    let mut _scratch = None;
    if let Some(cuda) = &mut cuda {
        *cuda = cuda.deterministic(deterministic);
        let bytes = cuda
            .backward_workspace(inputs, of_out, &gradients)
            .map_err(failed)?;
        _scratch = lend_scratch(framework, operands.value, cuda, bytes)?;
    }
    let workers = match cuda {
        Some(_) => 1,
        None => framework.threads(py)?,
    };
    // However few samples there are, every pixel's gradient is written.
    let pixels = sizes.images * sizes.pixels * sizes.heads;
    let elements = (sizes.samples().saturating_add(pixels)).saturating_mul(sizes.channels);
    py.detach(|| match cuda {
        Some(cuda) => msda::backward(&Backend::Cuda(cuda), inputs, of_out, gradients),
        None => threads::run(workers, elements, |cpu| {
            msda::backward(&Backend::Cpu(cpu), inputs, of_out, gradients)
        }),
    })
    .map_err(failed)?;
    PyTuple::new(py, made)
}
