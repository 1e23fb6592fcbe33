//! The gradients of dense attention, called from Python.

use fourtap::dense::{self, Backward, ForwardResults, Gradients, Problem};
use fourtap::{View, ViewMut};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{
    Any, DenseSettings, HEADS, HEADS_AND_CHANNELS, MASK, Operands, check_shapes, view_mut,
    with_one_sequence_axis, work,
};
use crate::call::{dense_gradient, new_gradient, on_device};
use crate::errors::{Kind, raise, unexpected};
use crate::frameworks::shadow::Shadows;
use crate::frameworks::torch::Torch;
use crate::frameworks::{Describe, Framework};
use crate::operands::KnownTensors;
use crate::tensor::Element;
use crate::threads;

/// The requested gradients of query, key, value and bias; `None` for the others.
#[pyfunction(signature = (grad_out, query, key, value, attn_mask, out, lse, settings, wanted, /))]
#[allow(clippy::too_many_arguments, reason = "the operator's")]
pub fn torch_dense_backward<'py>(
    grad_out: Any<'_, 'py>,
    query: Any<'_, 'py>,
    key: Any<'_, 'py>,
    value: Any<'_, 'py>,
    attn_mask: Option<Any<'_, 'py>>,
    out: Any<'_, 'py>,
    lse: Any<'_, 'py>,
    settings: DenseSettings,
    wanted: [bool; 4],
) -> PyResult<Bound<'py, PyTuple>> {
    let operands = Operands {
        query,
        key,
        value,
        attn_mask,
    };
    let torch = Torch::get(query.py())?;
    backward(torch, operands, grad_out, [out, lse], settings, wanted)
}

/// Checks a call with shadows of tensors: a forward one or, with `grad_out`, `out` and `lse`, a backward one.
#[pyfunction(signature = (query, key, value, attn_mask, settings, of_backward, /))]
pub fn check_dense<'py>(
    query: Any<'_, 'py>,
    key: Any<'_, 'py>,
    value: Any<'_, 'py>,
    attn_mask: Option<Any<'_, 'py>>,
    settings: DenseSettings,
    of_backward: Option<[Bound<'py, PyAny>; 3]>,
) -> PyResult<()> {
    let py = query.py();
    let operands = Operands {
        query,
        key,
        value,
        attn_mask,
    };
    let shadows = Shadows::get(py)?;
    let described = operands.describe(&shadows, KnownTensors::default())?;
    check_shapes(
        py,
        [&described.query, &described.key, &described.value],
        settings.enable_gqa,
    )?;
    // SAFETY: nothing is read or written: these are checked only.
    let inputs = unsafe { operands.inputs(&described)? };
    let options = settings.options();
    let checked = match &of_backward {
        None => Problem::new(&inputs, options).map(drop),
        Some([grad_out, out, lse]) => {
            // SAFETY: as above.
            let (results, of_out) = unsafe { results(&shadows, grad_out, [out, lse])? };
            Backward::new(inputs, options, results, of_out, Gradients::default()).map(drop)
        }
    };
    checked.map_err(|error| raise(py, error))
}

/// The results of forward and the gradient of the first of them, to be read.
///
/// # Safety
/// As of [`crate::tensor::Tensor::view`].
unsafe fn results<'py, 'a>(
    describe: &impl Describe,
    grad_out: Any<'_, 'py>,
    [out, lse]: [Any<'_, 'py>; 2],
) -> PyResult<(ForwardResults<'a>, View<'a>)> {
    let read = |name, object: Any<'_, 'py>, inner| {
        let tensor = describe.describe(name, object)?;
        let tensor = with_one_sequence_axis(object.py(), &tensor, inner)?;
        let layout = tensor.layout(object)?;
        // SAFETY: as the caller promises.
        PyResult::Ok(unsafe { tensor.view(layout) })
    };
    let results = ForwardResults {
        out: read("out", out, HEADS_AND_CHANNELS)?,
        lse: read("lse", lse, HEADS)?,
    };
    Ok((results, read("grad_out", grad_out, HEADS_AND_CHANNELS)?))
}

fn backward<'py>(
    framework: &impl Framework,
    operands: Operands<'_, 'py>,
    grad_out: Any<'_, 'py>,
    [out, lse]: [Any<'_, 'py>; 2],
    settings: DenseSettings,
    wanted: [bool; 4],
) -> PyResult<Bound<'py, PyTuple>> {
    let py = operands.query.py();
    let described = operands.describe(framework, KnownTensors::default())?;
    check_shapes(
        py,
        [&described.query, &described.key, &described.value],
        settings.enable_gqa,
    )?;
    let grad_out = dense_gradient(framework, grad_out)?;
    // SAFETY: Python's caller holds the tensors until we return, and this function the copy of `grad_out`.
    let inputs = unsafe { operands.inputs(&described)? };
    // SAFETY: as above.
    let (results, of_out) = unsafe { results(framework, &grad_out, [out, lse])? };

    let sources = [
        ("grad_query", operands.query, &described.query),
        ("grad_key", operands.key, &described.key),
        ("grad_value", operands.value, &described.value),
    ];
    let mut made: [Option<Bound<'py, PyAny>>; 4] = Default::default();
    let mut views: [Option<ViewMut<'_>>; 3] = Default::default();
    for (index, (name, source, described)) in sources.into_iter().enumerate() {
        if wanted[index] {
            let gradient =
                framework.empty(source, described, described.element, &described.sizes)?;
            // SAFETY: it is new, and returned when the call is done or queued.
            views[index] =
                Some(unsafe { view_mut(framework, name, &gradient, HEADS_AND_CHANNELS)? });
            made[index] = Some(gradient);
        }
    }
    let mut bias = None;
    if wanted[3] {
        let (Some(source), Some(described)) = (operands.attn_mask, &described.attn_mask) else {
            return Err(unexpected(py, Kind::Input, MASK, "a bias", "none"));
        };
        if !matches!(described.element, Element::Real(_)) {
            let found = source.getattr("dtype")?.to_string();
            return Err(unexpected(py, Kind::DType, MASK, "a bias", found));
        }
        // SAFETY: as above.
        let (gradient, view) = unsafe { new_gradient(framework, "grad_bias", source, described)? };
        made[3] = Some(gradient);
        bias = Some(view);
    }
    let [query, key, value] = views;
    let gradients = Gradients {
        query,
        key,
        value,
        bias,
    };
    let options = settings.options();
    match framework.cuda(py, described.query.place)? {
        Some(cuda) => on_device(py, framework, operands.query, || {
            dense::prepare_backward(&cuda, inputs, options, results, of_out, gradients)
        })?,
        None => {
            let workers = framework.threads(py)?;
            let work = work(&described.query, &described.value);
            threads::run(py, workers, work, |cpu| {
                dense::backward(&cpu, inputs, options, results, of_out, gradients)
            })?;
        }
    }
    PyTuple::new(py, made)
}
