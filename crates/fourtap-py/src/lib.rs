//! `fourtap._native`: the library for the Python package. The public functions are in python/fourtap.

mod call;
mod dense;
mod errors;
mod frameworks;
mod levels;
mod operands;
mod projected;
mod route;
mod tensor;
mod threads;

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use frameworks::Describe;
use frameworks::numpy::NumPy;
use frameworks::shadow::Shadows;
use frameworks::torch::Torch;
use operands::{KnownTensors, Operands};
use route::{Answer, Route};

/// What ONNX Runtime looks for in a library of custom operators: so that the extension module is one, and nothing else is shipped.
pub use fourtap_onnx::RegisterCustomOps;

/// See `_native.pyi` for what each function promises.
#[pymodule(gil_used = true)]
mod _native {
    use std::ffi::CString;

    use pyo3::exceptions::PyUserWarning;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{
        check, command_line,
        dense::{
            check_dense, numpy_dense, torch_dense, torch_dense_backward, torch_dense_if_plain,
        },
        numpy_backward, numpy_forward,
        projected::{
            check_projected, numpy_projected_forward, torch_projected_backward,
            torch_projected_backward_if_plain, torch_projected_forward,
            torch_projected_forward_if_plain, torch_zero_pixels,
        },
        set_pack_folder, torch_backward, torch_backward_if_plain, torch_forward,
        torch_forward_if_plain,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Warns of a tuning table that is named and not there: calls would silently be slower than the user thinks.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let Some(words) = fourtap_admin::tuning::missing_in_words() else {
            return Ok(());
        };
        let py = module.py();
        let warning = py.get_type::<PyUserWarning>();
        PyErr::warn(py, &warning, &CString::new(words)?, 1)
    }
}

/// Checks a call with shadows of tensors: a forward one or, with `grad_out`, a backward one.
#[pyfunction(signature = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out, /))]
fn check<'py>(
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    grad_out: Option<Any<'_, 'py>>,
) -> PyResult<()> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    let py = value.py();
    call::check(py, &Shadows::get(py)?, &operands, grad_out)
}

/// Runs the command line with these arguments, the first being the program's name. Returns its exit code.
#[pyfunction]
fn command_line(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| fourtap_admin::run(words).number())
}

/// Looks for compiled kernels in this folder.
#[pyfunction(signature = (path, /))]
fn set_pack_folder(path: Option<PathBuf>) {
    fourtap::cuda::jit::set_pack_folder(path);
}

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

#[pyfunction(signature = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out, /))]
fn torch_forward<'py>(
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    out: Option<Any<'_, 'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    let torch = Torch::get(value.py())?;
    call::forward(value.py(), torch, &operands, KnownTensors::default(), out)
}

/// The result of a plain call, or the route that it must take.
#[pyfunction(signature = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out, /))]
fn torch_forward_if_plain<'py>(
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    out: Option<Any<'_, 'py>>,
) -> PyResult<Answer<'py>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    let torch = Torch::get(value.py())?;
    let py = value.py();
    let [shapes, starts] = operands.levels();
    let known = torch.reads_directly(py, operands.real(), &[shapes, starts, out])?;
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
    call::forward(py, torch, &operands, known, out).map(Answer::Done)
}

#[pyfunction(signature = (
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, deterministic, wanted, /
))]
#[allow(clippy::too_many_arguments, reason = "the operator's")]
fn torch_backward<'py>(
    grad_out: Any<'_, 'py>,
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    deterministic: bool,
    wanted: [bool; 3],
) -> PyResult<Bound<'py, PyTuple>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    let torch = Torch::get(value.py())?;
    call::backward(
        value.py(),
        torch,
        &operands,
        grad_out,
        deterministic,
        wanted,
    )
}

#[pyfunction(signature = (
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, deterministic, wanted, /
))]
#[allow(clippy::too_many_arguments, reason = "the operator's")]
fn torch_backward_if_plain<'py>(
    grad_out: Any<'_, 'py>,
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    deterministic: bool,
    wanted: [bool; 3],
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    let torch = Torch::get(value.py())?;
    let py = value.py();
    let [shapes, starts] = operands.levels();
    let [value, locations, weights] = operands.real();
    let real = [("grad_out", grad_out), value, locations, weights];
    if torch.reads_directly(py, real, &[shapes, starts])?.is_none() {
        return Ok(None);
    }
    call::backward(py, torch, &operands, grad_out, deterministic, wanted).map(Some)
}

#[pyfunction(signature = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out, /))]
fn numpy_forward<'py>(
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
    out: Option<Any<'_, 'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    call::forward(value.py(), &NumPy, &operands, KnownTensors::default(), out)
}

#[pyfunction(signature = (
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, /
))]
fn numpy_backward<'py>(
    grad_out: Any<'_, 'py>,
    value: Any<'_, 'py>,
    spatial_shapes: Any<'_, 'py>,
    level_start_index: Option<Any<'_, 'py>>,
    sampling_locations: Any<'_, 'py>,
    attention_weights: Any<'_, 'py>,
) -> PyResult<Bound<'py, PyTuple>> {
    let operands = Operands {
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
    };
    call::backward(value.py(), &NumPy, &operands, grad_out, true, [true; 3])
}
