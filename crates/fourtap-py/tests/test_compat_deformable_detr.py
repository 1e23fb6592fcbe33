from __future__ import annotations

import doctest
import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import reference
import torch

import fourtap
from fourtap import nn
from fourtap.compat import deformable_detr

EXTENSION = "MultiScaleDeformableAttention"
# Batches of any size: the extension refuses those that this does not divide.
ANY_STEP = 64


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)
    yield
    deformable_detr.uninstall()


def test_forward_is_the_operator(device: str) -> None:
    problem = reference.problem(1, device=device, batch=3)
    found = deformable_detr.ms_deform_attn_forward(
        problem.value,
        problem.shapes_tensor,
        problem.level_start_index,
        problem.locations,
        problem.weights,
        ANY_STEP,
    )
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)


def test_forward_heeds_where_levels_start(device: str) -> None:
    problem = reference.problem(2, device=device, shapes=((3, 4), (3, 4)))
    swapped = problem.level_start_index.flip(0)
    found = deformable_detr.ms_deform_attn_forward(
        problem.value, problem.shapes_tensor, swapped, problem.locations, problem.weights, ANY_STEP
    )
    value = problem.value.roll(12, dims=1)
    expected = reference.ms_deform_attn(value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("swapped", [False, True])
def test_backward_gives_a_list_of_three_gradients(device: str, swapped: bool) -> None:
    problem = reference.problem(3, device=device, shapes=((3, 4), (3, 4)))
    found = deformable_detr.ms_deform_attn_backward(
        problem.value.detach(),
        problem.shapes_tensor,
        problem.level_start_index.flip(0) if swapped else problem.level_start_index,
        problem.locations.detach(),
        problem.weights.detach(),
        problem.grad_out,
        ANY_STEP,
    )
    assert isinstance(found, list) and len(found) == 3
    value = problem.value.roll(12, dims=1) if swapped else problem.value
    out = reference.ms_deform_attn(value, problem.shapes, problem.locations, problem.weights)
    expected = torch.autograd.grad(out, problem.differentiable, problem.grad_out)
    for gradient, correct, name in zip(found, expected, ("value", "locations", "weights"), strict=True):
        reference.assert_close(gradient, correct, 1e-11, f"gradient by {name}")


@pytest.mark.parametrize("listed", [False, True])
def test_apply_is_differentiable(device: str, listed: bool) -> None:
    problem = reference.problem(4, device=device)
    found = deformable_detr.MSDeformAttnFunction.apply(
        problem.value,
        problem.shapes if listed else problem.shapes_tensor,
        problem.level_start_index,
        problem.locations,
        problem.weights,
        ANY_STEP,
    )
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_close(found, expected, 1e-12)
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


@pytest.mark.parametrize("listed", [False, True])
def test_core_pytorch_needs_no_start_index(device: str, listed: bool) -> None:
    problem = reference.problem(5, device=device)
    shapes = problem.shapes if listed else problem.shapes_tensor
    found = deformable_detr.ms_deform_attn_core_pytorch(problem.value, shapes, problem.locations, problem.weights)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16, torch.float16])
def test_types_may_be_mixed_as_in_the_original(device: str, other: torch.dtype) -> None:
    problem = reference.problem(6, device=device, dtype=torch.float32)
    locations, weights = (tensor.detach().to(other) for tensor in (problem.locations, problem.weights))
    levels = (problem.shapes_tensor, problem.level_start_index)
    found = deformable_detr.ms_deform_attn_forward(problem.value, *levels, locations, weights, ANY_STEP)
    expected = reference.ms_deform_attn(problem.value.double(), problem.shapes, locations.double(), weights.double())
    assert found.dtype == torch.float32
    reference.assert_close(found, expected, 1e-5)
    gradients = deformable_detr.ms_deform_attn_backward(
        problem.value.detach(), *levels, locations, weights, problem.grad_out, ANY_STEP
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_wrong_shapes_are_refused_by_name(device: str) -> None:
    problem = reference.problem(7, device=device)
    with pytest.raises(fourtap.InputError, match="attention_weights"):
        deformable_detr.ms_deform_attn_core_pytorch(
            problem.value, problem.shapes, problem.locations, problem.weights[..., :-1]
        )


def test_the_module_is_the_one_of_this_package() -> None:
    assert deformable_detr.MSDeformAttn is nn.MSDeformAttn


REPOSITORY = """
    import torch
    import MultiScaleDeformableAttention as MSDA

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, shapes, starts, locations, weights, step):
            ctx.step = step
            ctx.save_for_backward(value, shapes, starts, locations, weights)
            return MSDA.ms_deform_attn_forward(value, shapes, starts, locations, weights, step)

        @staticmethod
        def backward(ctx, grad_output):
            by_value, by_locations, by_weights = MSDA.ms_deform_attn_backward(
                *ctx.saved_tensors, grad_output, ctx.step
            )
            return by_value, None, None, by_locations, by_weights, None
"""


def test_a_repository_that_needs_the_extension_runs_unchanged(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository_of_a_paper.py").write_text(textwrap.dedent(REPOSITORY))
    monkeypatch.syspath_prepend(tmp_path)
    deformable_detr.install()
    repository = importlib.import_module("repository_of_a_paper")
    problem = reference.problem(8, device=device)
    found = repository.Function.apply(
        problem.value,
        problem.shapes_tensor,
        problem.level_start_index,
        problem.locations,
        problem.weights,
        ANY_STEP,
    )
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_close(found, expected, 1e-12)
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


def test_install_twice_is_install_once() -> None:
    deformable_detr.install()
    installed = sys.modules[EXTENSION]
    deformable_detr.install()
    assert sys.modules[EXTENSION] is installed


def test_the_extension_can_be_found_once_installed() -> None:
    assert importlib.util.find_spec(EXTENSION) is None
    deformable_detr.install()
    assert importlib.util.find_spec(EXTENSION) is not None


def test_uninstall_takes_it_away() -> None:
    deformable_detr.install()
    deformable_detr.uninstall()
    assert EXTENSION not in sys.modules


@pytest.fixture
def real_extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    extension = ModuleType(EXTENSION)
    extension.__file__ = "/somewhere/MultiScaleDeformableAttention.so"
    extension.ms_deform_attn_forward = lambda *_: "real forward"  # type: ignore[attr-defined]
    extension.ms_deform_attn_backward = lambda *_: "real backward"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, EXTENSION, extension)
    return extension


def test_install_leaves_an_imported_extension_alone(real_extension: ModuleType) -> None:
    with pytest.raises(fourtap.Error, match=r"imported from /somewhere/.*install\(force=True\)"):
        deformable_detr.install()
    assert sys.modules[EXTENSION] is real_extension
    assert real_extension.ms_deform_attn_forward() == "real forward"


def test_force_replaces_the_functions_for_everybody_who_imported_the_extension(real_extension: ModuleType) -> None:
    deformable_detr.install(force=True)
    assert real_extension.ms_deform_attn_forward is deformable_detr.ms_deform_attn_forward
    assert real_extension.ms_deform_attn_backward is deformable_detr.ms_deform_attn_backward
    deformable_detr.uninstall()
    assert real_extension.ms_deform_attn_forward() == "real forward"
    assert real_extension.ms_deform_attn_backward() == "real backward"


def test_the_examples_run() -> None:
    assert doctest.testmod(deformable_detr).attempted > 0
    assert doctest.testmod(deformable_detr).failed == 0
