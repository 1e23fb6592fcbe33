"""The functions that ultralytics' and RF-DETR's modules call, each with an order of axes of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import reference
import stand_ins
import torch
import watching
from torch import Tensor

import fourtap
from fourtap.compat import rfdetr, ultralytics

LEVELS = len(reference.SHAPES)
TOLERANCES = {torch.float64: (1e-12, 1e-11), torch.float32: (2e-6, 1e-5)}


def flat(tensor: Tensor) -> Tensor:
    """Levels and points in one axis."""
    return tensor.flatten(3, 4)


def check(found: Tensor, problem: reference.Problem) -> None:
    of_result, of_gradients = TOLERANCES[problem.value.dtype]
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, of_result)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, of_gradients)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("in_one_axis", [False, True])
def test_ultralytics(in_one_axis: bool, dtype: torch.dtype, device: str) -> None:
    problem = reference.problem(1, device=device, dtype=dtype)
    places = (problem.locations, problem.weights)
    if in_one_axis:
        places = (flat(problem.locations), flat(problem.weights))
    check(ultralytics.multi_scale_deformable_attn_pytorch(problem.value, problem.shapes, *places), problem)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("in_one_axis", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_rf_detr(listed: bool, in_one_axis: bool, dtype: torch.dtype, device: str) -> None:
    problem = reference.problem(2, device=device, dtype=dtype)
    locations = flat(problem.locations) if in_one_axis else problem.locations
    # What the tensor says does not count where there is a list.
    shapes = torch.zeros_like(problem.shapes_tensor) if listed else problem.shapes_tensor
    found = rfdetr.ms_deform_attn_core_pytorch(
        problem.value.permute(0, 2, 3, 1),
        shapes,
        locations,
        flat(problem.weights),
        value_spatial_shapes_hw=problem.shapes if listed else None,
    )
    check(found, problem)


def test_what_does_not_fit_is_refused_by_name(device: str) -> None:
    problem = reference.problem(3, device=device)
    locations, weights = flat(problem.locations), flat(problem.weights)
    message = (
        r"^sampling_locations: expected shape .* multiple of 3 levels, found \[2, 7, 3, 11, 2\] and \[2, 7, 3, 12\]$"
    )
    with pytest.raises(fourtap.InputError, match=message):
        ultralytics.multi_scale_deformable_attn_pytorch(problem.value, problem.shapes, locations[:, :, :, 1:], weights)
    shapes = [*problem.shapes[:2], (2, 2)]
    with pytest.raises(fourtap.InputError, match=r"^value: expected 70 pixels .*, found 67$"):
        ultralytics.multi_scale_deformable_attn_pytorch(problem.value, shapes, locations, weights)
    value = problem.value.permute(0, 2, 3, 1)
    with pytest.raises(fourtap.InputError, match=r"^value: expected 70 pixels .*, found 67$"):
        rfdetr.ms_deform_attn_core_pytorch(value, shapes, locations, weights)
    with pytest.raises(fourtap.InputError, match=r"^value: expected shape \[N, M, D, S\], found \[3, 5, 67\]$"):
        rfdetr.ms_deform_attn_core_pytorch(value[0], problem.shapes, locations, weights)
    message = r"^attention_weights: expected shape \[N, Q, M, K\], K a multiple of 3 levels, found \[2, 7, 3, 11\]$"
    with pytest.raises(fourtap.InputError, match=message):
        rfdetr.ms_deform_attn_core_pytorch(value, problem.shapes, locations, weights[..., 1:])
    with pytest.raises(fourtap.InputError, match=r"^sampling_locations: expected"):
        rfdetr.ms_deform_attn_core_pytorch(value, problem.shapes, locations[:, :, :, 1:], weights)


def test_everybody_who_imported_ultralytics_function_gets_ours(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = reference.problem(4, device=device)
    operands = (problem.value, problem.shapes, flat(problem.locations), flat(problem.weights))
    with stand_ins.installed(stand_ins.ULTRALYTICS, tmp_path):
        held = importlib.import_module("ultralytics.nn.modules.utils").multi_scale_deformable_attn_pytorch
        seen = watching.shapes_of_calls(monkeypatch)
        before = held(*operands)
        assert ultralytics.patch() == ["ultralytics.nn.modules.utils.multi_scale_deformable_attn_pytorch"]
        reference.assert_close(held(*operands), before, 1e-12)
        assert len(seen) == 1
        ultralytics.unpatch()
        assert torch.equal(held(*operands), before)
        assert len(seen) == 1


def test_an_exported_rf_detr_has_operators_of_pytorch(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_ins.installed(stand_ins.RF_DETR, tmp_path):
        home: Any = importlib.import_module("rfdetr.models.ops.modules.ms_deform_attn")
        module = home.MSDeformAttn(12, 2, 3, 2).to(device)
        shapes = [(6, 9), (3, 4)]
        operands = (
            torch.randn(2, 7, 12, device=device),
            torch.rand(2, 7, 1, 4, device=device),
            torch.randn(2, 66, 12, device=device),
            torch.tensor(shapes, device=device),
            torch.tensor([0, 54], device=device),
            None,
            shapes,
        )
        rfdetr.patch()
        seen = watching.shapes_of_calls(monkeypatch)
        ours = module(*operands)
        # The list, not the tensor that says the same: nobody waits for numbers on a device.
        assert len(seen) == 1 and seen[0] is shapes
        module._export = True
        reference.assert_close(module(*operands), ours, 2e-6)
        assert len(seen) == 1
        rfdetr.unpatch()
