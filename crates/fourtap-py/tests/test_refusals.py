"""Calls of PyTorch tensors that make no sense: each ends in its typed exception, whichever way it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch

import fourtap

Arguments = dict[str, Any]
WAYS = ["eager", "gradients", "registered"]


def arguments(device: str) -> Arguments:
    problem = reference.problem(1, device=device, dtype=torch.float32)
    return {
        "value": problem.value,
        "spatial_shapes": problem.shapes_tensor,
        "sampling_locations": problem.locations,
        "attention_weights": problem.weights,
        "level_start_index": problem.level_start_index,
    }


def call(way: str, arguments: Arguments) -> torch.Tensor:
    if way == "gradients":
        return fourtap.ms_deform_attn(**arguments)
    with torch.no_grad():
        if way == "eager":
            return fourtap.ms_deform_attn(**arguments)
        found: torch.Tensor = torch.ops.fourtap.msda(
            arguments["value"],
            arguments["spatial_shapes"],
            arguments["level_start_index"],
            [],
            arguments["sampling_locations"],
            arguments["attention_weights"],
            False,
        )
    return found


CHANGES: list[tuple[str, str, Callable[[Any], Any], type[Exception], str]] = [
    ("rank of value", "value", lambda t: t[0], ValueError, "value: expected rank 4 [N, S, M, D], found rank 3"),
    ("rank of locations", "sampling_locations", lambda t: t[0], ValueError, "sampling_locations: expected rank 6"),
    ("rank of weights", "attention_weights", lambda t: t[..., None], ValueError, "attention_weights: expected rank 5"),
    ("images", "sampling_locations", lambda t: t[:1], ValueError, "sampling_locations: expected shape [2, Q, 3, 3"),
    ("heads", "value", lambda t: t[:, :, :2], ValueError, "sampling_locations: expected shape [2, Q, 2, 3"),
    ("no channels", "value", lambda t: t[..., :0], ValueError, "value: expected at least 1 channel"),
    ("points", "attention_weights", lambda t: t[..., :2], ValueError, "attention_weights: expected shape"),
    ("pairs", "sampling_locations", lambda t: t[..., :1], ValueError, "sampling_locations: expected shape"),
    ("double beside float", "sampling_locations", lambda t: t.double(), TypeError, "sampling_locations: expected"),
    ("half beside float", "attention_weights", lambda t: t.half(), TypeError, "attention_weights: expected element"),
    ("whole numbers", "value", lambda t: t.detach().int(), TypeError, "value: expected element type f16, bf16"),
    ("complex", "value", lambda t: t.to(torch.complex64), TypeError, "value: expected element type f16, bf16"),
    ("booleans", "attention_weights", lambda t: t > 0, TypeError, "attention_weights: expected element type"),
    ("real levels", "spatial_shapes", lambda t: t.float(), TypeError, "spatial_shapes: expected element type int64"),
    ("shape of levels", "spatial_shapes", lambda t: t[0], ValueError, "spatial_shapes: expected shape [L, 2]"),
    ("triples", "spatial_shapes", lambda t: t[:, [0, 1, 1]], ValueError, "spatial_shapes: expected shape [L, 2]"),
    ("starts", "level_start_index", lambda t: t[:2], ValueError, "level_start_index: expected"),
]
# What only the host can see; levels in device memory are read by the kernel alone, which keeps inside value.
ON_HOST: list[tuple[str, str, Callable[[Any], Any], type[Exception], str]] = [
    ("pixels", "value", lambda t: t[:, :-1], ValueError, "value: expected 67 pixels"),
    (
        "negative level",
        "spatial_shapes",
        lambda t: -t.cpu(),
        ValueError,
        "spatial_shapes[0]: expected height and width",
    ),
    ("huge level", "spatial_shapes", lambda t: t.cpu() * 2**40, ValueError, "spatial_shapes[0]: expected height"),
    ("fewer levels", "spatial_shapes", lambda t: t.cpu()[:2], ValueError, "value: expected 66 pixels"),
    (
        "start outside",
        "level_start_index",
        lambda t: t.cpu() + 60,
        ValueError,
        "level_start_index[0]: expected a start",
    ),
    ("starts overlap", "level_start_index", lambda t: t.cpu() * 0, ValueError, "level_start_index[1]: expected"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "tensor", "change", "error", "message"), CHANGES, ids=[case[0] for case in CHANGES])
def test_a_wrong_tensor_is_named(
    device: str, way: str, name: str, tensor: str, change: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    wrong = arguments(device)
    wrong[tensor] = change(wrong[tensor])
    with pytest.raises(error) as caught:
        call(way, wrong)
    assert isinstance(caught.value, fourtap.Error), caught.value
    assert message in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "tensor", "change", "error", "message"), ON_HOST, ids=[case[0] for case in ON_HOST])
def test_wrong_levels_are_named(
    device: str, way: str, name: str, tensor: str, change: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    wrong = arguments(device)
    wrong["spatial_shapes"] = wrong["spatial_shapes"].cpu()
    wrong["level_start_index"] = wrong["level_start_index"].cpu()
    wrong[tensor] = change(wrong[tensor])
    if tensor == "spatial_shapes":
        wrong["level_start_index"] = None
    with pytest.raises(error) as caught:
        call(way, wrong)
    assert isinstance(caught.value, fourtap.Error), caught.value
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("levels", "starts"),
    [
        ("ab", None),
        ([1, 2], None),
        ([(6, 9), (3,)], None),
        ([(6.5, 9), (3, 4), (1, 1)], None),
        (None, None),
        (7, None),
        ([(6, 9), (3, 4), (1, 1)], "abc"),
        ([(6, 9), (3, 4), (1, 1)], [0.5, 1, 2]),
        ([(6, 9), (3, 4), (True, True)], None),
        ([(6, 9), (3, 4), (1, 1)], [False, 54, 66]),
        (torch.ones(3, 2, dtype=torch.bool), None),
        (np.ones((3, 2), bool), None),
    ],
)
def test_levels_that_are_none_are_refused(device: str, levels: Any, starts: Any) -> None:
    wrong = arguments(device) | {"spatial_shapes": levels, "level_start_index": starts}
    with pytest.raises(fourtap.DTypeError, match=r"(spatial_shapes|level_start_index): expected"):
        call("eager", wrong)


@pytest.mark.parametrize(
    ("levels", "starts", "message"),
    [
        ([(2**70, 1)], None, "spatial_shapes: expected integers that fit into 64 bits, found [(1180591620717411303424"),
        ([[1, -(2**64)]], None, "spatial_shapes: expected integers that fit into 64 bits"),
        ([(6, 9), (3, 4), (1, 1)], [0, 2**63, 66], "level_start_index: expected integers that fit into 64 bits"),
    ],
)
def test_numbers_that_are_too_large_are_not_called_other_than_integers(
    device: str, levels: Any, starts: Any, message: str
) -> None:
    wrong = arguments(device) | {"spatial_shapes": levels, "level_start_index": starts}
    with pytest.raises(fourtap.InputError) as caught:
        call("eager", wrong)
    assert not isinstance(caught.value, fourtap.DTypeError)
    assert message in str(caught.value)


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_levels_may_be_integers_of_any_type(device: str, way: str, dtype: str) -> None:
    right = arguments(device)
    expected = call(way, right)
    kind = getattr(torch, dtype)
    levels = {name: right[name].to(kind) for name in ("spatial_shapes", "level_start_index")}
    assert torch.equal(call(way, right | levels), expected)
    on_host = {name: tensor.cpu() for name, tensor in levels.items()}
    assert torch.equal(call(way, right | on_host), expected)
    if way == "eager":
        arrays = {name: right[name].cpu().numpy().astype(dtype) for name in levels}
        assert torch.equal(call(way, right | arrays), expected)


def test_things_that_are_no_tensors_are_named(device: str) -> None:
    for name in ("sampling_locations", "attention_weights"):
        wrong = arguments(device)
        wrong[name] = wrong[name].detach().cpu().numpy()
        with pytest.raises(fourtap.InputError, match=rf"{name}: expected a PyTorch tensor.*found numpy\.ndarray"):
            call("eager", wrong)
    with pytest.raises(
        fourtap.DTypeError, match=r"value: expected a PyTorch tensor or a NumPy array, found builtins.int"
    ):
        call("eager", arguments(device) | {"value": 3})


@pytest.mark.parametrize("gradient", [False, True])
def test_sparse_tensors_are_refused(device: str, gradient: bool) -> None:
    wrong = arguments(device)
    wrong["value"] = wrong["value"].detach().to_sparse().requires_grad_(gradient)
    with pytest.raises(fourtap.InputError, match=r"value: expected a dense tensor, found torch.sparse_coo"):
        call("eager", wrong)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", ["value", "sampling_locations", "attention_weights"])
def test_nested_tensors_are_refused_by_name(device: str, layout: torch.layout, gradient: bool, name: str) -> None:
    wrong = arguments(device)
    rows = [image.detach() for image in wrong[name]]
    wrong[name] = torch.nested.nested_tensor(rows, layout=layout, requires_grad=gradient)
    with pytest.raises(fourtap.InputError, match=f"^{name}: expected a dense tensor, found a nested tensor$"):
        call("gradients" if gradient else "eager", wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out[:, :-1], "out: expected shape"),
        (lambda out: out.double(), "out: expected element type f32"),
        (lambda out: out[:, :1].expand(out.shape), "out: expected each element at its own address"),
        (lambda out: out.to("meta"), "out: expected"),
    ],
)
def test_a_wrong_out_is_refused_and_not_touched(device: str, change: Callable[[Any], Any], message: str) -> None:
    problem = reference.problem(2, device=device, dtype=torch.float32)
    out = change(torch.full_like(problem.grad_out, 7))
    with torch.no_grad(), pytest.raises(fourtap.Error) as caught:
        fourtap.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights, out=out)
    assert message in str(caught.value)
    assert out.is_meta or bool((out == 7).all())


def test_tensors_on_two_devices_are_refused(device: str) -> None:
    if device == "cpu":
        pytest.skip("there is one device")
    for name in ("sampling_locations", "attention_weights"):
        wrong = arguments(device)
        wrong[name] = wrong[name].detach().cpu()
        with pytest.raises(fourtap.InputError, match=f"{name}: expected memory of cuda:0"):
            call("eager", wrong)
    wrong = {name: tensor.detach().cpu() for name, tensor in arguments(device).items()}
    wrong["spatial_shapes"] = wrong["spatial_shapes"].cuda()
    with pytest.raises(fourtap.InputError, match="spatial_shapes: expected host memory"):
        call("eager", wrong)


def test_derivatives_that_are_not_there_are_refused_not_forgotten(device: str) -> None:
    problem = reference.problem(3, device=device)
    locations, weights = problem.locations.detach(), problem.weights.detach()

    def function(value: torch.Tensor) -> torch.Tensor:
        return fourtap.ms_deform_attn(value, problem.shapes, locations, weights)

    value = problem.value.detach()
    with pytest.raises(fourtap.UnsupportedError, match="found forward mode"):
        torch.func.jvp(function, (value,), (value,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(value, value)
        with pytest.raises(fourtap.UnsupportedError, match="found forward mode"):
            function(dual)
        assert torch.equal(function(value), function(value.clone()))
    gradient = torch.autograd.grad(function(problem.value).sum(), problem.value, create_graph=True)[0]
    with pytest.raises(fourtap.UnsupportedError, match="found a second time"):
        gradient.sum().backward()
