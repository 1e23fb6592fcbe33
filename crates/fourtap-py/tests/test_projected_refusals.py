"""Calls from projections that make no sense: each ends in its typed exception, whichever way it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import projections
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import fourtap

Arguments = dict[str, Any]
WAYS = ["eager", "gradients", "registered"]


def arguments(device: str, **options: Any) -> Arguments:
    problem = projections.problem(1, device=device, dtype=torch.float32, **options)
    return {**problem.real, "spatial_shapes": problem.shapes, **problem.options}


class Registered(TorchDispatchMode):
    """Makes a call take the way of a tracer."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def call(way: str, arguments: Arguments) -> None:
    if way == "gradients":
        fourtap.ms_deform_attn_from_projections(**arguments)
        return
    with torch.no_grad():
        if way == "eager":
            fourtap.ms_deform_attn_from_projections(**arguments)
            return
        with Registered():
            fourtap.ms_deform_attn_from_projections(**arguments)


REFERENCES = "reference_points: expected shape [2, 7, 3, 2 or 4] (1 stands for every size)"
CHANGES: list[tuple[str, str, Callable[[Any], Any], type[Exception], str]] = [
    ("rank of value", "value", lambda t: t[0], ValueError, "value: expected rank 4"),
    ("rank of references", "reference_points", lambda t: t[0], ValueError, "reference_points: expected rank"),
    ("rank of offsets", "sampling_offsets", lambda t: t[0], ValueError, "sampling_offsets: expected rank 5"),
    ("rank of logits", "attention_logits", lambda t: t[..., None], ValueError, "attention_logits: expected rank 4"),
    ("images", "sampling_offsets", lambda t: t[:1], ValueError, "sampling_offsets: expected shape [2, Q, 3, 12, 2]"),
    ("heads", "value", lambda t: t[:, :, :2], ValueError, "sampling_offsets: expected shape [2, Q, 2, 12, 2]"),
    ("points", "attention_logits", lambda t: t[..., :9], ValueError, "sampling_offsets: expected shape"),
    ("coordinates", "reference_points", lambda t: t[..., :1], ValueError, REFERENCES),
    ("queries", "reference_points", lambda t: t[:, :4], ValueError, REFERENCES),
    ("levels", "reference_points", lambda t: t[:, :, :2], ValueError, REFERENCES),
    (
        "turns",
        "reference_points",
        lambda t: t[:, :, :, None].repeat(1, 1, 1, 3, 1),
        ValueError,
        "reference_points: expected shape [2, 7, 3, 4, 2 or 4]",
    ),
    ("double beside float", "sampling_offsets", lambda t: t.double(), TypeError, "sampling_offsets: expected"),
    ("half beside float", "attention_logits", lambda t: t.half(), TypeError, "attention_logits: expected element"),
    ("double references", "reference_points", lambda t: t.double(), TypeError, "reference_points: expected element"),
    ("whole numbers", "value", lambda t: t.detach().int(), TypeError, "value: expected element type f16, bf16"),
    ("bytes", "sampling_offsets", lambda t: t.detach().byte(), TypeError, "sampling_offsets: expected element type"),
    ("pixels", "value", lambda t: t[:, :-1], ValueError, "value: expected 67 pixels"),
    ("shape of the mask", "value_mask", lambda t: t[:, 1:], ValueError, "value_mask: expected shape [2, 67]"),
    ("rank of the mask", "value_mask", lambda t: t[0], ValueError, "value_mask: expected rank 2"),
    ("a real mask", "value_mask", lambda t: t.float(), TypeError, "value_mask: expected element type bool or uint8"),
    ("a whole mask", "value_mask", lambda t: t.long(), TypeError, "value_mask: expected element type bool or uint8"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "tensor", "change", "error", "message"), CHANGES, ids=[case[0] for case in CHANGES])
def test_a_wrong_tensor_is_named(
    device: str, way: str, name: str, tensor: str, change: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    wrong = arguments(device, masked=tensor == "value_mask")
    wrong[tensor] = change(wrong[tensor])
    with pytest.raises(error) as caught:
        call(way, wrong)
    assert isinstance(caught.value, fourtap.Error), caught.value
    assert message in str(caught.value)


SETTINGS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("sampling", {"sampling": "cubic"}, ValueError, "sampling: expected 'bilinear' or 'nearest', found 'cubic'"),
    (
        "too few numbers of points",
        {"points_per_level": [4, 8]},
        ValueError,
        "points_per_level: expected 3 numbers, one per level, found 2",
    ),
    ("other points", {"points_per_level": 5}, ValueError, "sampling_offsets: expected shape [2, Q, 3, 15, 2]"),
    ("half a point", {"points_per_level": 4.5}, TypeError, "points_per_level: expected None, a number of points"),
    ("points in words", {"points_per_level": "four"}, TypeError, "points_per_level: expected None, a number of points"),
    ("a scale without boxes", {"box_scale": 0.5}, ValueError, "box_scale: expected none, as reference_points are"),
]


@pytest.mark.parametrize("way", ["eager", "gradients"])
@pytest.mark.parametrize(("name", "settings", "error", "message"), SETTINGS, ids=[case[0] for case in SETTINGS])
def test_a_wrong_setting_is_named(
    device: str, way: str, name: str, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        call(way, {**arguments(device), **settings})
    assert isinstance(caught.value, fourtap.Error), caught.value
    assert message in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_wrong_numbers_of_boxes_are_named(device: str, way: str) -> None:
    boxes = arguments(device, coordinates=4)
    with pytest.raises(fourtap.InputError, match=r"^box_scale: expected 3 numbers, one per level, found 2$"):
        call(way, {**boxes, "box_scale": [0.1, 0.2]})
    with pytest.raises(fourtap.InputError, match=r"^box_scale: expected finite numbers, found inf$"):
        call(way, {**boxes, "box_scale": float("inf")})


@pytest.mark.parametrize("way", WAYS)
def test_points_that_no_level_gets_are_named(device: str, way: str) -> None:
    wrong = arguments(device, points=[3, 6, 1])
    del wrong["points_per_level"]
    message = r"^points_per_level: expected one number for each level, as 10 points are not a multiple of 3 levels"
    with pytest.raises(fourtap.InputError, match=message):
        call(way, wrong)


def test_arrays_and_tensors_do_not_mix(device: str) -> None:
    mixed = arguments("cpu")
    mixed["sampling_offsets"] = mixed["sampling_offsets"].detach().numpy()
    with pytest.raises(fourtap.InputError, match=r"^sampling_offsets: expected a PyTorch tensor, like the others"):
        call("eager", mixed)
    array = np.zeros((1, 2, 1, 1), np.float32)
    with pytest.raises(fourtap.InputError, match=r"^reference_points: expected a NumPy array, like the others"):
        fourtap.ms_deform_attn_from_projections(array, [(1, 2)], torch.zeros(1), array, array)
    with pytest.raises(fourtap.DTypeError, match=r"^value: expected a PyTorch tensor or a NumPy array, found"):
        fourtap.ms_deform_attn_from_projections([1.0], [(1, 2)], array, array, array)  # type: ignore[type-var]


def test_out_is_refused_with_gradients_and_where_inputs_are(device: str) -> None:
    problem = projections.problem(2, device=device)
    out = torch.empty_like(problem.grad_out)
    with pytest.raises(fourtap.InputError, match=r"^out: expected none where gradients are wanted, found a tensor$"):
        problem.attend(out=out)
    with torch.no_grad(), pytest.raises(fourtap.InputError, match=r"^out: expected shape \[2, 7, 15\]"):
        problem.attend(out=out[:, :3])
    with torch.no_grad(), pytest.raises(fourtap.InputError, match=r"^out: expected memory of its own"):
        problem.attend(out=problem.value.flatten()[: out.numel()].view_as(out))


def test_second_derivatives_are_refused(device: str) -> None:
    problem = projections.problem(3, device=device)
    (gradient,) = torch.autograd.grad(problem.attend().sum(), [problem.offsets], create_graph=True)
    with pytest.raises(fourtap.UnsupportedError, match=r"^ms_deform_attn_from_projections: .* a second time$"):
        gradient.sum().backward()
    with Registered():
        (gradient,) = torch.autograd.grad(problem.attend().sum(), [problem.offsets], create_graph=True)
        with pytest.raises(fourtap.UnsupportedError, match=r"^ms_deform_attn_from_projections: .* a second time$"):
            gradient.sum().backward()


def test_forward_mode_is_refused(device: str) -> None:
    problem = projections.problem(4, device=device)
    with forward_ad.dual_level(), torch.no_grad():
        problem.logits = forward_ad.make_dual(problem.logits.detach(), torch.ones_like(problem.logits))
        with pytest.raises(fourtap.UnsupportedError, match=r"^ms_deform_attn_from_projections: .* forward mode"):
            problem.attend()


def test_nested_tensors_are_refused(device: str) -> None:
    wrong = arguments(device)
    logits = wrong["attention_logits"].detach()
    wrong["attention_logits"] = torch.nested.nested_tensor([logits[0], logits[1, :3]])
    with torch.no_grad(), pytest.raises(fourtap.InputError, match=r"^attention_logits: .* found a nested tensor$"):
        fourtap.ms_deform_attn_from_projections(**wrong)
