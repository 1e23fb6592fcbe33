from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray

import fourtap

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def arrays(seed: int, dtype: Any = np.float64) -> tuple[reference.Problem, Arrays]:
    problem = reference.problem(seed, device="cpu")
    operands = (problem.value, problem.locations, problem.weights, problem.grad_out)
    value, locations, weights, grad_out = (tensor.detach().numpy().astype(dtype) for tensor in operands)
    return problem, (value, locations, weights, grad_out)


def test_attention_of_arrays_is_that_of_tensors() -> None:
    problem, (value, locations, weights, _) = arrays(1)
    found = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    assert isinstance(found, np.ndarray)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(torch.from_numpy(found), expected, 1e-13)


def test_gradients_of_arrays_are_those_of_tensors() -> None:
    problem, (value, locations, weights, grad_out) = arrays(2)
    found = fourtap.ms_deform_attn_backward(grad_out, value, problem.shapes, locations, weights)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    gradients = torch.autograd.grad(expected, problem.differentiable, problem.grad_out)
    for ours, theirs in zip(found, gradients, strict=True):
        reference.assert_close(torch.from_numpy(ours), theirs, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (np.float32, 1e-6), (np.float64, 1e-13)])
def test_every_type_keeps_its_type(dtype: Any, tolerance: float) -> None:
    problem, (value, locations, weights, _) = arrays(3, dtype)
    wide = [torch.from_numpy(array.astype(np.float64)) for array in (value, locations, weights)]
    expected = reference.ms_deform_attn(wide[0], problem.shapes, wide[1], wide[2])
    found = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    assert found.dtype == dtype
    reference.assert_close(torch.from_numpy(found), expected, tolerance)


def test_strided_reversed_and_broadcast_arrays_are_read_as_they_lie() -> None:
    problem, (value, locations, weights, _) = arrays(4)
    expected = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    backwards = np.ascontiguousarray(value[::-1, :, :, ::-1])[::-1, :, :, ::-1]
    fortran = np.asfortranarray(locations)
    assert not backwards.flags.c_contiguous and not fortran.flags.c_contiguous
    np.testing.assert_array_equal(fourtap.ms_deform_attn(backwards, problem.shapes, fortran, weights), expected)
    spread = np.broadcast_to(value[:1], value.shape)
    found = fourtap.ms_deform_attn(spread, problem.shapes, locations, weights)
    np.testing.assert_array_equal(found, fourtap.ms_deform_attn(spread.copy(), problem.shapes, locations, weights))


def test_out_is_written_and_returned() -> None:
    problem, (value, locations, weights, grad_out) = arrays(5)
    out = np.full_like(grad_out, np.nan)
    assert fourtap.ms_deform_attn(value, problem.shapes, locations, weights, out=out) is out
    np.testing.assert_array_equal(out, fourtap.ms_deform_attn(value, problem.shapes, locations, weights))


@pytest.mark.parametrize("kind", ["list", "int64", "int32", "every second row"])
def test_levels_are_taken_in_any_form(kind: str) -> None:
    problem, (value, locations, weights, _) = arrays(6)
    expected = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    shapes: Any = {
        "list": [list(pair) for pair in problem.shapes],
        "int64": np.array(problem.shapes),
        "int32": np.array(problem.shapes, np.int32),
        "every second row": np.repeat(np.array(problem.shapes), 2, axis=0)[::2],
    }[kind]
    starts: Any = problem.level_start_index.tolist()
    if kind != "list":
        starts = np.array(starts, shapes.dtype)
    found = fourtap.ms_deform_attn(value, shapes, locations, weights, level_start_index=starts)
    np.testing.assert_array_equal(found, expected)


def test_empty_problems_have_empty_or_zero_results() -> None:
    problem, (value, locations, weights, _) = arrays(7)
    assert fourtap.ms_deform_attn(value, problem.shapes, locations[:, :0], weights[:, :0]).shape == (2, 0, 15)
    nothing = fourtap.ms_deform_attn(value, problem.shapes, locations[..., :0, :], weights[..., :0])
    assert nothing.shape == (2, 7, 15) and not nothing.any()


def refused(error: type[Exception], message: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(error) as caught:
        fourtap.ms_deform_attn(*arguments, **options)
    assert isinstance(caught.value, fourtap.Error)
    assert message in str(caught.value)


def test_wrong_arrays_are_refused_by_name() -> None:
    problem, (value, locations, weights, grad_out) = arrays(8)
    shapes = problem.shapes
    refused(ValueError, "value: expected rank 4", value[0], shapes, locations, weights)
    refused(ValueError, "sampling_locations: expected shape", value, shapes, locations[:, :, :1], weights)
    refused(TypeError, "attention_weights: expected element type", value, shapes, locations, weights.astype(np.float16))
    refused(TypeError, "value: expected element type f16", value.astype(int), shapes, locations, weights)
    refused(TypeError, "byte order", value.astype(">f8"), shapes, locations, weights)
    refused(ValueError, "attention_weights: expected a NumPy array", value, shapes, locations, problem.weights)
    refused(TypeError, "value: expected a PyTorch tensor or a NumPy array", [1.0], shapes, locations, weights)
    refused(ValueError, "the sum over spatial_shapes", value, [*shapes[:-1], (5, 5)], locations, weights)
    read_only = np.empty_like(grad_out)
    read_only.flags.writeable = False
    refused(ValueError, "out: expected an array that may be written", value, shapes, locations, weights, out=read_only)
    odd = np.ndarray(value.shape, value.dtype, bytes(value.nbytes * 2), strides=[s + 1 for s in value.strides])
    refused(ValueError, "value: expected strides that are multiples of", odd, shapes, locations, weights)
    shared = np.zeros((2, 7, 15))
    refused(
        ValueError,
        "out: expected memory of its own, found it sharing bytes with value",
        shared.reshape(2, 7, 3, 5),
        [(1, 7)],
        locations[:, :, :, :1],
        weights[:, :, :, :1],
        out=shared,
    )


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_levels_may_be_integers_of_any_type(dtype: str) -> None:
    problem, (value, locations, weights, _) = arrays(11)
    expected = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    shapes = np.array(problem.shapes, dtype)
    starts = np.cumsum([0, *(height * width for height, width in problem.shapes[:-1])]).astype(dtype)
    found = fourtap.ms_deform_attn(value, shapes, locations, weights, level_start_index=starts)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(fourtap.DTypeError, match="spatial_shapes: expected element type int64 or another of integers"):
        fourtap.ms_deform_attn(value, shapes.astype(bool), locations, weights)


def test_masked_arrays_are_refused_by_name() -> None:
    problem, (value, locations, weights, grad_out) = arrays(9)
    masked = np.ma.masked_array(value, mask=value > 0)
    message = "expected an array without a mask (call .filled(), say), found numpy.ma.MaskedArray"
    refused(ValueError, f"value: {message}", masked, problem.shapes, locations, weights)
    unmasked = np.ma.masked_array(weights)
    refused(ValueError, f"attention_weights: {message}", value, problem.shapes, locations, unmasked)
    levels = np.ma.masked_array(problem.shapes)
    refused(ValueError, f"spatial_shapes: {message}", value, levels, locations, weights)
    out = np.ma.masked_array(np.zeros_like(grad_out))
    refused(ValueError, f"out: {message}", value, problem.shapes, locations, weights, out=out)
    with pytest.raises(fourtap.InputError, match="query: expected an array without a mask"):
        fourtap.scaled_dot_product_attention(masked, value, value)


def test_neither_import_nor_numpy_needs_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = None  # importing it fails
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
import numpy, fourtap
one = numpy.ones
print(fourtap.ms_deform_attn(one((1, 4, 1, 1)), [(2, 2)], one((1, 1, 1, 1, 1, 2)) / 2, one((1, 1, 1, 1, 1))))
try:
    fourtap.ms_deform_attn([1], [(2, 2)], 0, 0)
except fourtap.DTypeError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[[[1.]]]", "refused", ""]


def test_importing_takes_no_pytorch_with_it() -> None:
    program = "import sys, fourtap; print('torch' in sys.modules, fourtap.__version__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"False {fourtap.__version__}"
