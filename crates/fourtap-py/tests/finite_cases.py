"""What FOURTAP_CHECK=1 finds; test_finite.py runs these in a process that has it set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fourtap
from fourtap.nn import MSDeformAttn

LEVELS = [(3, 2), (2, 1)]
GIVEN = ("value", "sampling_locations", "attention_weights")
PROJECTED = ("value", "reference_points", "sampling_offsets", "attention_logits")
DENSE = ("query", "key", "value", "attn_mask")


def operands(names: tuple[str, ...], device: str) -> dict[str, Tensor]:
    sizes = {
        GIVEN: ((2, 8, 3, 4), (2, 5, 3, 2, 2, 2), (2, 5, 3, 2, 2)),
        PROJECTED: ((2, 8, 3, 4), (2, 5, 2, 2), (2, 5, 3, 4, 2), (2, 5, 3, 4)),
        DENSE: ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4), (2, 3, 5, 6)),
    }[names]
    # On CUDA dense attention has gradients in 16 bits only.
    dtype = torch.bfloat16 if names is DENSE else torch.float32
    return {name: torch.rand(*size, device=device).to(dtype) for name, size in zip(names, sizes, strict=True)}


CALLS: dict[tuple[str, ...], tuple[str, Callable[..., Any]]] = {
    GIVEN: (
        "ms_deform_attn",
        lambda value, sampling_locations, attention_weights, **options: fourtap.ms_deform_attn(
            value, LEVELS, sampling_locations, attention_weights, **options
        ),
    ),
    PROJECTED: (
        "ms_deform_attn_from_projections",
        lambda value, reference_points, sampling_offsets, attention_logits, **options: (
            fourtap.ms_deform_attn_from_projections(
                value, LEVELS, reference_points, sampling_offsets, attention_logits, **options
            )
        ),
    ),
    DENSE: ("scaled_dot_product_attention", fourtap.scaled_dot_product_attention),
}
EVERY = [(names, name) for names in CALLS for name in names]
HIDDEN = ("attention_logits", "attn_mask")


def spoiled(tensor: Any, *numbers: float) -> Any:
    found = tensor.clone() if isinstance(tensor, Tensor) else tensor.copy()
    found.reshape(-1)[: len(numbers)] = torch.tensor(numbers) if isinstance(tensor, Tensor) else np.array(numbers)
    return found


def message(name: str, tensor: Any, count: int, call: str) -> str:
    kinds = "NaN or plus infinity" if name in HIDDEN else "NaN or infinite"
    total = int(np.prod(tensor.shape))
    return (
        f"{name}: expected finite numbers, as FOURTAP_CHECK is set, found {count} of {total} that are {kinds} "
        f"\\(in {call}\\)"
    )


@pytest.mark.parametrize(("names", "name"), EVERY)
@pytest.mark.parametrize("way", ["plain", "gradients", "autocast", "compiled", "operator", "NumPy"])
def test_names_the_tensor_the_call_and_the_count(device: str, names: tuple[str, ...], name: str, way: str) -> None:
    call, function = CALLS[names]
    tensors: dict[str, Any] = operands(names, device)
    if way == "NumPy":
        tensors = {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}
    if way == "gradients":
        tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    if way == "compiled":
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    cast = torch.autocast(device, torch.bfloat16, enabled=way == "autocast")
    watched = torch.utils.flop_counter.FlopCounterMode(display=False) if way == "operator" else cast
    with watched:
        function(**tensors)
        numbers = (torch.nan, torch.inf) if name in HIDDEN else (torch.nan, torch.inf, -torch.inf)
        with torch.no_grad():
            bad = {**tensors, name: spoiled(tensors[name], *numbers)}
        if way == "gradients":
            bad[name].requires_grad_()
        with pytest.raises(fourtap.InputError, match=message(name, tensors[name], len(numbers), call)):
            function(**bad)


@pytest.mark.parametrize("names", CALLS)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_checked(device: str, names: tuple[str, ...], compiled: bool) -> None:
    call, function = CALLS[names]
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    out = function(**{name: tensor.requires_grad_() for name, tensor in operands(names, device).items()})
    with pytest.raises(fourtap.InputError, match=message("grad_out", out, 1, f"backward of {call}")):
        out.backward(spoiled(torch.ones_like(out), torch.nan))


@pytest.mark.parametrize("numpy", [False, True])
def test_gradients_without_autograd_are_checked(device: str, numpy: bool) -> None:
    value, locations, weights = operands(GIVEN, device).values()
    grad = torch.ones(2, 5, 12, device=device)
    tensors: list[Any] = [grad, value, locations, weights]
    if numpy:
        tensors = [tensor.cpu().numpy() for tensor in tensors]
    grad, value, locations, weights = tensors
    fourtap.ms_deform_attn_backward(grad, value, LEVELS, locations, weights)
    with pytest.raises(fourtap.InputError, match=r"^grad_out: .*found 1 of 120"):
        fourtap.ms_deform_attn_backward(spoiled(grad, np.nan), value, LEVELS, locations, weights)


@pytest.mark.parametrize(("names", "name"), [(PROJECTED, "attention_logits"), (DENSE, "attn_mask")])
def test_minus_infinity_hides(device: str, names: tuple[str, ...], name: str) -> None:
    tensors = operands(names, device)
    tensors[name] = spoiled(tensors[name], -torch.inf, -torch.inf)
    CALLS[names][1](**tensors)
    CALLS[names][1](**{other: tensor.float().cpu().numpy() for other, tensor in tensors.items()})


def test_what_is_masked_may_be_anything(device: str) -> None:
    tensors = operands(PROJECTED, device)
    tensors["value"][1, 3] = torch.nan
    mask = torch.zeros(2, 8, dtype=torch.bool, device=device)
    mask[1, 3] = True
    CALLS[PROJECTED][1](**tensors, value_mask=mask)
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    CALLS[PROJECTED][1](**arrays, value_mask=mask.cpu().numpy())
    with pytest.raises(fourtap.InputError, match=r"^value: "):
        CALLS[PROJECTED][1](**tensors)


def test_masks_of_booleans_are_none_of_its_business(device: str) -> None:
    tensors = operands(DENSE, device)
    tensors["attn_mask"] = tensors["attn_mask"] > 0.3
    fourtap.scaled_dot_product_attention(**tensors)


@pytest.mark.parametrize("names", [GIVEN, PROJECTED])
def test_a_refused_call_has_written_nothing(device: str, names: tuple[str, ...]) -> None:
    tensors, function = operands(names, device), CALLS[names][1]
    out = torch.full((2, 5, 12), 7.0, device=device)
    with pytest.raises(fourtap.InputError):
        function(**{**tensors, "value": spoiled(tensors["value"], torch.nan)}, out=out)
    assert (out == 7).all()
    assert function(**tensors, out=out) is out
    assert torch.equal(out, function(**tensors))


def test_other_errors_come_first(device: str) -> None:
    value, locations, weights = operands(GIVEN, device).values()
    with pytest.raises(fourtap.InputError, match=r"^attention_weights: expected (rank|shape)"):
        fourtap.ms_deform_attn(spoiled(value, torch.nan), LEVELS, locations, weights[0])


def test_modules_are_checked(device: str) -> None:
    module = MSDeformAttn(12, 2, 3, 2, device=device)
    query, points = torch.rand(2, 5, 12, device=device), torch.rand(2, 5, 2, 2, device=device)
    module(query, points, torch.rand(2, 8, 12, device=device), LEVELS)
    with torch.no_grad():
        module.attention_weights.bias[0] = torch.nan
    # The layers are one product with gradients, two without.
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(fourtap.InputError, match=r"^attention_logits: .* 10 of 120 "):
            module(query, points, torch.rand(2, 8, 12, device=device), LEVELS)


def test_calls_can_be_captured() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tensors = operands(PROJECTED, "cuda")
    mask = torch.zeros(2, 8, dtype=torch.bool, device="cuda")
    CALLS[PROJECTED][1](**tensors, value_mask=mask)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        CALLS[PROJECTED][1](**tensors, value_mask=mask)
