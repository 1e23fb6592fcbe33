//! Deformable attention from projections, called from Python.

mod operands;
mod settings;

use fourtap::cpu::Cpu;
use fourtap::msda::projections::{self, ProjectedBackward, ProjectedProblem, ProjectionGradients};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::{dense_gradient, new_gradient, on_device};
use crate::errors::raise;
use crate::frameworks::numpy::NumPy;
use crate::frameworks::shadow::Shadows;
use crate::frameworks::torch::Torch;
use crate::frameworks::{Describe, Framework};
use crate::operands::saturating_product;
use crate::route::{Answer, Route};
use crate::threads;
use operands::{KnownTensors, OperandTuple, Operands, take_apart};

#[pyfunction(signature = (operands, out, /))]
pub fn torch_projected_forward<'py>(
    py: Python<'py>,
    operands: OperandTuple<'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::get(py)?;
    forward(py, torch, &operands.into(), KnownTensors::default(), out)
}

/// The result of a plain call, or the route that it must take.
#[pyfunction(signature = (operands, out, /))]
pub fn torch_projected_forward_if_plain<'py>(
    py: Python<'py>,
    operands: OperandTuple<'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Answer<'py>> {
    let torch = Torch::get(py)?;
    let operands = Operands::from(operands);
    let [shapes, starts, mask] = operands.others();
    let known = torch.reads_directly(py, operands.real(), &[shapes, starts, mask, out])?;
    let Some(known) = known else {
        return Ok(Answer::Take(Route::Registered));
    };
    if let Some(out) = out
        && torch.owns(out)?
        && torch.is_negated(out)?
    {
        return Ok(Answer::Take(Route::Registered));
    }
    if let Some(route) = Route::of_plain(torch, py, operands.real())? {
        return Ok(Answer::Take(route));
    }
    forward(py, torch, &operands, known, out).map(Answer::Done)
}

#[pyfunction(signature = (grad_out, operands, deterministic, wanted, /))]
pub fn torch_projected_backward<'py>(
    grad_out: &Bound<'py, PyAny>,
    operands: OperandTuple<'py>,
    deterministic: bool,
    wanted: [bool; 4],
) -> PyResult<Bound<'py, PyTuple>> {
    let torch = Torch::get(grad_out.py())?;
    backward(torch, &operands.into(), grad_out, deterministic, wanted)
}

/// The same for tensors whose memory can be read directly; `None` for others.
#[pyfunction(signature = (grad_out, operands, deterministic, wanted, /))]
pub fn torch_projected_backward_if_plain<'py>(
    grad_out: &Bound<'py, PyAny>,
    operands: OperandTuple<'py>,
    deterministic: bool,
    wanted: [bool; 4],
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let py = grad_out.py();
    let torch = Torch::get(py)?;
    let operands = Operands::from(operands);
    let [value, references, offsets, logits] = operands.real();
    let real = [("grad_out", grad_out), value, references, offsets, logits];
    if torch
        .reads_directly(py, real, &operands.others())?
        .is_none()
    {
        return Ok(None);
    }
    backward(torch, &operands, grad_out, deterministic, wanted).map(Some)
}

#[pyfunction(signature = (operands, out, /))]
pub fn numpy_projected_forward<'py>(
    py: Python<'py>,
    operands: OperandTuple<'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    forward(py, &NumPy, &operands.into(), KnownTensors::default(), out)
}

/// Writes zeros to the pixels of `value`, `[N, S, M, D]`, where the mask is true; false, and nothing done, if memory cannot be
/// written directly.
#[pyfunction(signature = (value, mask, /))]
pub fn torch_zero_pixels(value: &Bound<'_, PyAny>, mask: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = value.py();
    let torch = Torch::get(py)?;
    let plain = torch.reads_directly(py, [("value", value)], &[Some(mask)])?;
    if plain.is_none() {
        return Ok(false);
    }
    let described = torch.describe_writable("value", value)?;
    let layout = described.layout(value)?;
    let of_mask = torch.describe("value_mask", mask)?;
    // SAFETY: the caller holds both, and gave the first to be written; frameworks free device memory in the order of the
    // stream that is current.
    let (view, view_of_mask) = unsafe { (described.view_mut(layout), of_mask.bool_view(mask)?) };
    match torch.cuda(py, described.place)? {
        Some(cuda) => on_device(py, torch, value, || {
            projections::prepare_zero_pixels(&cuda, view, view_of_mask)
        })?,
        None => py
            .detach(|| projections::zero_pixels(&Cpu::new(), view, view_of_mask))
            .map_err(|error| raise(py, error))?,
    }
    Ok(true)
}

/// Checks a call with shadows of tensors: as [`forward`] does or, with `grad_out`, as [`backward`] does.
#[pyfunction(signature = (operands, grad_out, /))]
pub fn check_projected<'py>(
    py: Python<'py>,
    operands: OperandTuple<'py>,
    grad_out: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let shadows = Shadows::get(py)?;
    let operands = Operands::from(operands);
    let described = operands.describe(&shadows, KnownTensors::default())?;
    // SAFETY: nothing is read or written: these are checked only.
    let inputs = unsafe { operands.inputs(&described)? };
    let checked = match grad_out {
        None => ProjectedProblem::new(&inputs).map(drop),
        Some(grad_out) => {
            let of_out = shadows.describe("grad_out", grad_out)?;
            let layout = of_out.layout(grad_out)?;
            // SAFETY: as above.
            let of_out = unsafe { of_out.view(layout) };
            ProjectedBackward::new(inputs, of_out, ProjectionGradients::default()).map(drop)
        }
    };
    checked.map_err(|error| raise(py, error))
}

/// Attention, written to `out` or to a new tensor.
fn forward<'py>(
    py: Python<'py>,
    framework: &impl Framework,
    operands: &Operands<'py>,
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
            let sizes = sizes.map_or_else(|| Ok(ProjectedProblem::new(&inputs)?.sizes().out()), Ok);
            let sizes = sizes.map_err(|error| raise(py, error))?;
            let (value, element) = (&described.value, described.value.element);
            framework.empty(&operands.value, value, element, &sizes)?
        }
    };
    let result = framework.describe_writable("out", &out)?;
    let layout = result.layout(&out)?;
    // SAFETY: it is new, or the caller gave it to be written; that it shares no memory with the inputs is checked.
    let result = unsafe { result.view_mut(layout) };
    match framework.cuda(py, described.value.place)? {
        Some(cuda) => on_device(py, framework, &operands.value, || {
            projections::prepare_forward(&cuda, inputs, result)
        })?,
        None => {
            let elements = described.samples_times_channels();
            let workers = framework.threads(py)?;
            threads::run(py, workers, elements, |cpu| {
                projections::forward(&cpu, inputs, result)
            })?;
        }
    }
    if let Some(out) = given {
        framework.mark_written(out)?;
    }
    Ok(out)
}

/// The requested gradients of value, reference points, offsets and logits, in new tensors; `None` for the others. Where offsets
/// and logits are one tensor, so are their gradients.
fn backward<'py>(
    framework: &impl Framework,
    operands: &Operands<'py>,
    grad_out: &Bound<'py, PyAny>,
    deterministic: bool,
    wanted: [bool; 4],
) -> PyResult<Bound<'py, PyTuple>> {
    let py = grad_out.py();
    let described = operands.describe(framework, KnownTensors::default())?;
    // SAFETY: as in `forward`.
    let inputs = unsafe { operands.inputs(&described)? };
    let grad_out = dense_gradient(framework, grad_out)?;
    let of_out = framework.describe("grad_out", &grad_out)?;
    let layout = of_out.layout(&grad_out)?;
    // SAFETY: as in `forward`; a copy is held by this function.
    let of_out = unsafe { of_out.view(layout) };

    let new = |wanted: bool, name, source, described| match wanted {
        // SAFETY: each is new, and returned when the call is done or queued.
        true => unsafe { new_gradient(framework, name, source, described) }
            .map(|(gradient, view)| (Some(gradient), Some(view))),
        false => Ok((None, None)),
    };
    let [of_value, of_references, of_offsets, of_logits] = wanted;
    let (grad_value, value) = new(of_value, "grad_value", &operands.value, &described.value)?;
    let references = (&operands.reference_points, &described.reference_points);
    let (grad_references, reference_points) =
        new(of_references, "grad_references", references.0, references.1)?;
    let offsets = &operands.sampling_offsets;
    let (grad_offsets, sampling_offsets, grad_logits, attention_logits) = match &described.both {
        None => {
            let source = &described.sampling_offsets;
            let (grad_offsets, offsets) = new(of_offsets, "grad_offsets", offsets, source)?;
            let (logits, source) = (operands.holding_logits(), &described.attention_logits);
            let (grad_logits, logits) = new(of_logits, "grad_logits", logits, source)?;
            (grad_offsets, offsets, grad_logits, logits)
        }
        Some(_) if !of_offsets => (None, None, None, None),
        Some(both) => {
            let gradient = framework.empty(offsets, both, both.element, &both.sizes)?;
            let written = framework.describe_writable("grad_offsets", &gradient)?;
            let [of_offsets, of_logits] = take_apart(py, &written, &described.value)?;
            let layouts = (of_offsets.layout(&gradient)?, of_logits.layout(&gradient)?);
            // SAFETY: as above; the parts do not overlap.
            let views = unsafe {
                (
                    of_offsets.view_mut(layouts.0),
                    of_logits.view_mut(layouts.1),
                )
            };
            (Some(gradient), Some(views.0), None, Some(views.1))
        }
    };
    let made = [grad_value, grad_references, grad_offsets, grad_logits];
    let gradients = ProjectionGradients {
        value,
        reference_points,
        sampling_offsets,
        attention_logits,
    };

    match framework.cuda(py, described.value.place)? {
        Some(cuda) => {
            let cuda = cuda.deterministic(deterministic);
            on_device(py, framework, &operands.value, || {
                projections::prepare_backward(&cuda, inputs, of_out, gradients)
            })?;
        }
        None => {
            let workers = framework.threads(py)?;
            // However few samples there are, every pixel's gradient is written.
            let pixels = described.value.sizes.iter().fold(1, saturating_product);
            let elements = described.samples_times_channels().saturating_add(pixels);
            threads::run(py, workers, elements, |cpu| {
                projections::backward(&cpu, inputs, of_out, gradients)
            })?;
        }
    }
    PyTuple::new(py, made)
}
