"""Fake, meta, exported and real calls accept and refuse the same arguments, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import fourtap

Change = Callable[[Tensor], Tensor]
CHANGES: dict[str, Change] = {
    "a missing axis": lambda tensor: tensor[0],
    "one more axis": lambda tensor: tensor[None],
    "a shorter first axis": lambda tensor: tensor[1:],
    "a shorter second axis": lambda tensor: tensor[:, 1:],
    "a shorter third axis": lambda tensor: tensor[:, :, 1:],
    "a shorter last axis": lambda tensor: tensor[..., 1:],
    "a longer last axis": lambda tensor: torch.cat([tensor, tensor], -1),
    "no last axis": lambda tensor: tensor[..., :0],
    "integers": lambda tensor: tensor.to(torch.int32),
    "float16": lambda tensor: tensor.to(torch.float16),
    "float64": lambda tensor: tensor.to(torch.float64),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


def given() -> dict[str, Any]:
    return {
        "value": torch.randn(2, 10, 2, 4),
        "spatial_shapes": [(2, 3), (1, 4)],
        "sampling_locations": torch.rand(2, 3, 2, 2, 2, 2),
        "attention_weights": torch.rand(2, 3, 2, 2, 2),
    }


def projected() -> dict[str, Any]:
    return {
        "value": torch.randn(2, 10, 2, 4),
        "spatial_shapes": [(2, 3), (1, 4)],
        "reference_points": torch.rand(2, 3, 2, 2),
        "sampling_offsets": torch.randn(2, 3, 2, 4, 2),
        "attention_logits": torch.randn(2, 3, 2, 4),
        "value_mask": torch.rand(2, 10) < 0.3,
    }


def in_one() -> dict[str, Any]:
    both = torch.randn(2, 3, 2 * 4 * 3)
    return projected() | {"sampling_offsets": both, "attention_logits": None}


def dense() -> dict[str, Any]:
    return {
        "query": torch.randn(2, 4, 5, 8),
        "key": torch.randn(2, 4, 7, 8),
        "value": torch.randn(2, 4, 7, 6),
        "attn_mask": torch.randn(2, 1, 5, 7),
    }


OPERATORS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[..., Any]]] = {
    "given": (given, fourtap.ms_deform_attn),
    "projected": (projected, fourtap.ms_deform_attn_from_projections),
    "in one": (in_one, fourtap.ms_deform_attn_from_projections),
    "dense": (dense, fourtap.scaled_dot_product_attention),
}


def changed_calls() -> list[Any]:
    calls = []
    for operator, (make, _) in OPERATORS.items():
        for name, tensor in make().items():
            if isinstance(tensor, Tensor):
                changes = [change for change in CHANGES if tensor.dim() > 2 or change != "a shorter third axis"]
                calls += [pytest.param(operator, name, change, id=f"{operator}-{name}-{change}") for change in changes]
    return calls


def outcome(call: Callable[[], Any]) -> tuple[type | None, str]:
    try:
        found = call()
    except fourtap.Error as error:
        return type(error), str(error)
    return None, f"{tuple(found.shape)} {found.dtype}"


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in arguments.items()}


def fake(arguments: dict[str, Any]) -> dict[str, Any]:
    mode = FakeTensorMode()
    return {key: mode.from_tensor(value) if isinstance(value, Tensor) else value for key, value in arguments.items()}


@pytest.mark.parametrize(("operator", "name", "change"), changed_calls())
def test_a_changed_tensor(operator: str, name: str, change: str) -> None:
    make, call = OPERATORS[operator]
    arguments = make()
    arguments[name] = CHANGES[change](arguments[name])
    real = outcome(lambda: call(**arguments))
    assert outcome(lambda: call(**on("meta", arguments))) == real
    assert outcome(lambda: call(**fake(arguments))) == real


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("given", {}),
    ("given", {"spatial_shapes": [(2, 3), (1, 3)]}),
    ("given", {"spatial_shapes": [(2, 3)]}),
    ("given", {"spatial_shapes": [(2, 3), (1, 4), (0, 0)]}),
    ("given", {"spatial_shapes": [(2, 3), (-1, -4)]}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 4)])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 3)])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3)])}),
    ("given", {"spatial_shapes": torch.tensor([2, 3])}),
    ("given", {"spatial_shapes": torch.tensor([(2.0, 3.0), (1.0, 4.0)])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 4)]), "level_start_index": torch.tensor([0, 6])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 4)]), "level_start_index": torch.tensor([4, 0])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 4)]), "level_start_index": torch.tensor([0, 5])}),
    ("given", {"spatial_shapes": torch.tensor([(2, 3), (1, 4)]), "level_start_index": torch.tensor([0.0, 6.0])}),
    ("projected", {}),
    ("projected", {"points_per_level": [1, 3]}),
    ("projected", {"points_per_level": [1, 2]}),
    ("projected", {"points_per_level": [4]}),
    ("projected", {"points_per_level": 3}),
    ("projected", {"box_scale": 0.5}),
    ("projected", {"reference_points": torch.rand(2, 3, 2, 4), "box_scale": [0.5, 0.2]}),
    ("projected", {"reference_points": torch.rand(2, 3, 2, 4), "box_scale": [0.5]}),
    ("projected", {"reference_points": torch.rand(2, 3, 2, 3)}),
    ("projected", {"reference_points": torch.rand(1, 3, 1, 1, 2)}),
    ("projected", {"value_mask": torch.zeros(2, 10)}),
    ("projected", {"spatial_shapes": torch.tensor([(2, 3), (1, 3)])}),
    ("dense", {}),
    ("dense", {"is_causal": True, "window": 2}),
    ("dense", {"key": torch.randn(2, 2, 7, 8), "value": torch.randn(2, 2, 7, 6), "enable_gqa": True}),
    ("dense", {"key": torch.randn(2, 3, 7, 8), "value": torch.randn(2, 3, 7, 6), "enable_gqa": True}),
    ("dense", {"scale": float("nan")}),
    ("dense", {"attn_mask": torch.ones(5, 7, dtype=torch.uint8)}),
    ("dense", {"attn_mask": torch.ones(5, 7, dtype=torch.int64)}),
]


@pytest.mark.parametrize(("operator", "settings"), SETTINGS, ids=range(len(SETTINGS)))
def test_settings(operator: str, settings: dict[str, Any]) -> None:
    make, call = OPERATORS[operator]
    arguments = make() | settings
    real = outcome(lambda: call(**arguments))
    levels = {key: arguments[key] for key in ("spatial_shapes", "level_start_index") if key in arguments}
    # Levels in host memory are read, whatever the rest is.
    assert outcome(lambda: call(**on("meta", arguments) | levels)) == real
    kind, _ = outcome(lambda: call(**fake(arguments)))
    are_known = all(not isinstance(level, Tensor) for level in levels.values())
    assert kind is real[0] or (kind is None and not are_known)


@pytest.mark.parametrize("operator", OPERATORS)
def test_tensors_of_several_devices_are_refused(operator: str) -> None:
    make, call = OPERATORS[operator]
    for name, tensor in make().items():
        if isinstance(tensor, Tensor):
            with pytest.raises(fourtap.InputError, match=r": expected .*, found (meta|cpu)$"):
                call(**make() | {name: tensor.to("meta")})


def test_export_takes_no_wrong_program() -> None:
    class Layer(torch.nn.Module):
        def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
            return fourtap.ms_deform_attn(value, [(2, 3), (1, 3)], locations, weights)

    tensors = given()
    del tensors["spatial_shapes"]
    with pytest.raises(Exception, match="value: expected"):
        torch.export.export(Layer(), tuple(tensors.values()))


def test_sizes_that_change_stay_free() -> None:
    """A check looks at the numbers that a program is traced with, and does not tie the program to them."""
    counts = []

    def backend(graph: Any, inputs: Any) -> Any:
        counts.append(graph)
        return graph

    function = torch.compile(
        lambda *tensors: fourtap.scaled_dot_product_attention(*tensors), backend=backend, dynamic=True
    )
    for queries, keys in ((5, 7), (6, 9), (11, 3)):
        tensors = [torch.randn(2, 4, length, 8) for length in (queries, keys, keys)]
        torch.testing.assert_close(function(*tensors), fourtap.scaled_dot_product_attention(*tensors))
    assert len(counts) == 1


@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_gradients_are_those_of_real_calls(dtype: torch.dtype, wanted: int) -> None:
    """Also those that nobody wants."""
    value, _, locations, weights = given().values()
    grad_out = torch.randn(2, 3, 8, dtype=dtype)
    operands = (grad_out, value.to(dtype), None, None, [2, 3, 1, 4], locations, weights, False)
    flags = [bool(wanted & bit) for bit in (1, 2, 4)]
    opcheck(torch.ops.fourtap.msda_backward.default, (*operands, flags), test_utils=("test_schema", "test_faketensor"))
    value, _, references, offsets, logits, mask = projected().values()
    operands = (grad_out, value.to(dtype), None, None, [2, 3, 1, 4], references, offsets, logits, mask)
    flags = [*flags, not flags[0]]
    opcheck(
        torch.ops.fourtap.msda_projected_backward.default,
        (*operands, [], False, [], False, False, flags),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("wanted", range(16))
def test_fake_gradients_of_dense_attention_are_those_of_real_calls(wanted: int) -> None:
    query, key, value, bias = (tensor.to(torch.bfloat16) for tensor in dense().values())
    out, lse = torch.ops.fourtap.dense(query, key, value, None, None, None, False, False, True, bias.float())
    flags = [bool(wanted & bit) for bit in (1, 2, 4, 8)]
    arguments = (query, key, value, None, None, None, False, False, bias.float(), out, lse, flags)
    opcheck(
        torch.ops.fourtap.dense_backward.default,
        (torch.randn_like(out), *arguments),
        test_utils=("test_schema", "test_faketensor"),
    )
