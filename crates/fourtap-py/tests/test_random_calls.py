"""Random calls of every operator, in every way and with every kind of tensor that PyTorch and NumPy have.

Each is compared with PyTorch's own functions in f64. A failing test names the seed of its call.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dense_reference
import numpy as np
import pytest
import reference
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fourtap

CASES = int(os.environ.get("FOURTAP_CASES", "1500"))
TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@dataclass
class Call:
    """A call: differentiable operands, others, and the same computed by PyTorch."""

    function: Callable[..., Any]
    real: dict[str, Tensor]
    expected: Callable[..., Tensor]
    others: dict[str, Any] = field(default_factory=dict)


class Subclass(Tensor):
    """Overrides nothing."""


class Passing(TorchDispatchMode):
    """Sees every operator and changes nothing."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def dtypes(choose: random.Random) -> tuple[torch.dtype, torch.dtype]:
    """Of ``value``, and of what says where to sample."""
    dtype = choose.choice(list(TOLERANCE))
    return dtype, dtype if dtype is torch.float64 else torch.float32


def levels(choose: random.Random) -> list[tuple[int, int]]:
    return [(choose.randint(1, 7), choose.randint(1, 7)) for _ in range(choose.randint(1, 4))]


def starts_of(shapes: list[tuple[int, int]]) -> list[int]:
    return [sum(height * width for height, width in shapes[:level]) for level in range(len(shapes))]


def shapes_argument(choose: random.Random, shapes: list[tuple[int, int]]) -> dict[str, Any]:
    kinds = [shapes, [list(pair) for pair in shapes], tuple(shapes), np.array(shapes), torch.tensor(shapes)]
    found: dict[str, Any] = {"spatial_shapes": choose.choice([*kinds, torch.tensor(shapes, dtype=torch.int32)])}
    if choose.random() < 0.3:
        found["level_start_index"] = choose.choice([list, torch.tensor])(starts_of(shapes))
    return found


def given(choose: random.Random) -> Call:
    dtype, of_places = dtypes(choose)
    shapes, images, heads = levels(choose), choose.randint(1, 3), choose.randint(1, 4)
    queries, points, channels = choose.randint(1, 9), choose.randint(1, 5), choose.choice([1, 3, 4, 8, 16, 33])
    pixels = sum(height * width for height, width in shapes)
    axes = (images, queries, heads, len(shapes), points)
    real = {
        "value": numbers(images, pixels, heads, channels).to(dtype),
        "sampling_locations": (torch.rand(*axes, 2, dtype=torch.float64) * 1.4 - 0.2).to(of_places),
        "attention_weights": numbers(*axes).to(of_places),
    }

    def expected(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> Tensor:
        return reference.ms_deform_attn(value, shapes, sampling_locations, attention_weights)

    return Call(fourtap.ms_deform_attn, real, expected, shapes_argument(choose, shapes))


def projected(choose: random.Random) -> Call:
    dtype, of_places = dtypes(choose)
    shapes, images, heads = levels(choose), choose.randint(1, 3), choose.randint(1, 4)
    queries, channels = choose.randint(1, 9), choose.choice([1, 3, 4, 8, 16, 33])
    pixels = sum(height * width for height, width in shapes)
    points = [choose.randint(1, 4)] * len(shapes)
    if choose.random() < 0.3:
        points = [choose.randint(1, 4) for _ in shapes]
    samples, boxes = sum(points), choose.random() < 0.5
    one = [choose.choice([1, size]) for size in (images, queries, len(shapes))]
    references = torch.rand(*one, 4 if boxes else 2, dtype=torch.float64) * 1.2 - 0.1
    scale = [choose.uniform(0.1, 1.0) for _ in shapes] if boxes and choose.random() < 0.5 else None
    mask = torch.rand(images, pixels) < 0.3 if choose.random() < 0.5 else None
    offsets, logits = numbers(images, queries, heads, samples, 2), numbers(images, queries, heads, samples)
    real = {"value": numbers(images, pixels, heads, channels).to(dtype), "reference_points": references.to(of_places)}
    in_one = choose.random() < 0.4
    if in_one:
        real["sampling_offsets"] = torch.cat([offsets.flatten(2), logits.flatten(2)], -1).to(of_places)
    else:
        real |= {"sampling_offsets": offsets.to(of_places), "attention_logits": logits.to(of_places)}
    others = shapes_argument(choose, shapes)
    if len(set(points)) > 1 or choose.random() < 0.3:
        others["points_per_level"] = points
    if scale is not None:
        others["box_scale"] = scale
    if in_one:
        others["attention_logits"] = None
    if mask is not None:
        others["value_mask"] = choose.choice([mask, mask.to(torch.uint8)])

    def expected(
        value: Tensor, reference_points: Tensor, sampling_offsets: Tensor, attention_logits: Tensor | None = None
    ) -> Tensor:
        if attention_logits is None:
            offsets, logits = sampling_offsets.split([2 * heads * samples, heads * samples], -1)
            sampling_offsets = offsets.reshape(images, queries, heads, samples, 2)
            attention_logits = logits.reshape(images, queries, heads, samples)
        reference_points = reference_points.expand(images, queries, len(shapes), -1)
        operands = (value, shapes, reference_points, sampling_offsets, attention_logits)
        return reference.from_projections(*operands, points=points, mask=mask, box_scale=scale)

    return Call(fourtap.ms_deform_attn_from_projections, real, expected, others)


def dense(choose: random.Random) -> Call:
    dtype = choose.choice(list(TOLERANCE))
    queries, keys = choose.randint(1, 20), choose.randint(1, 20)
    channels, of_values = choose.choice([1, 4, 8, 32, 64]), choose.choice([1, 4, 8, 32, 64])
    key_heads = choose.randint(1, 3)
    heads = key_heads * choose.choice([1, 1, 2])
    batch = choose.choice([(), (1,), (2,), (2, 2)])
    grouped = heads != key_heads
    real = {
        "query": numbers(*batch, heads, queries, channels),
        "key": numbers(*batch, key_heads, keys, channels),
        "value": numbers(*batch, key_heads, keys, of_values),
    }
    real = {name: tensor.to(dtype) for name, tensor in real.items()}
    settings: dict[str, Any] = {"enable_gqa": grouped}
    mask: dict[str, Any] = {}
    if choose.random() < 0.4:
        mask = {"is_causal": True, "causal_alignment": choose.choice(["top_left", "bottom_right"])}
    elif choose.random() < 0.3:
        mask = {"window": (choose.choice([None, choose.randint(0, 9)]), choose.choice([None, choose.randint(0, 9)]))}
    if choose.random() < 0.3:
        settings["scale"] = choose.uniform(0.05, 1.0)
    seen = dense_reference.band(queries, keys, **mask)
    hides = torch.zeros(queries, keys, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    kind = choose.choice(["none", "none", "bias", "booleans"])
    axes = tuple(choose.choice([1, size]) for size in (*batch, heads, queries, keys))[choose.randint(0, len(batch)) :]
    hidden: Tensor | None = None
    if kind == "bias":
        real["attn_mask"] = numbers(*axes).to(choose.choice([dtype, torch.float32]) if dtype.itemsize < 8 else dtype)
    elif kind == "booleans":
        hidden = torch.rand(axes) < 0.7
        settings["attn_mask"] = hidden

    def expected(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        logits = hides if attn_mask is None else hides + attn_mask
        if hidden is not None:
            logits = logits + torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(~hidden, -torch.inf)
        if grouped:
            key, value = (tensor.repeat_interleave(heads // key_heads, -3) for tensor in (key, value))
        scale = settings.get("scale", channels**-0.5)
        logits = query @ key.transpose(-2, -1) * scale + logits
        # A query that sees no key gets 0.
        empty = (logits == -torch.inf).all(-1, keepdim=True)
        weights = logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        return weights @ value

    return Call(fourtap.scaled_dot_product_attention, real, expected, settings | mask)


def a_slice(tensor: Tensor) -> Tensor:
    room = tensor.new_full([size + 2 for size in tensor.shape], torch.nan)
    part = room[tuple(slice(1, -1) for _ in tensor.shape)]
    return part.copy_(tensor)


def transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def with_odd_strides_of_ones(tensor: Tensor) -> Tensor:
    strides = [977 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


def negative(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return torch.conj(torch.complex(tensor, -tensor)).imag


def inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


def unaligned(tensor: Tensor) -> Tensor:
    room = tensor.new_empty(tensor.numel() + 1)
    return room[1:].view(tensor.shape).copy_(tensor)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda tensor: tensor,
    "a slice": a_slice,
    "transposed": transposed,
    "every other": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    "odd strides of axes of 1": with_odd_strides_of_ones,
    "unaligned": unaligned,
    "negative": negative,
    "shared until written": lambda tensor: torch._lazy_clone(tensor),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "subclass": lambda tensor: tensor.as_subclass(Subclass),
    "numpy's": lambda tensor: torch.from_numpy(tensor.numpy()) if tensor.dtype is not torch.bfloat16 else tensor,
    "in shared memory": lambda tensor: tensor.clone().share_memory_(),
}
WITHOUT_GRADIENTS = {"inference": inference}


def eager(call: Call, real: dict[str, Tensor]) -> Any:
    return call.function(**real, **call.others)


def in_a_mode(call: Call, real: dict[str, Tensor]) -> Any:
    with Passing():
        return eager(call, real)


def without_recording(call: Call, real: dict[str, Tensor]) -> Any:
    with torch.inference_mode() if call.real["value"].dtype is torch.float32 else torch.no_grad():
        return eager(call, real)


def mapped(call: Call, real: dict[str, Tensor]) -> Any:
    function = torch.vmap(lambda *tensors: call.function(**dict(zip(real, tensors, strict=True)), **call.others))
    return function(*(tensor.expand(2, *tensor.shape) for tensor in real.values()))[1]


def by_numpy(call: Call, real: dict[str, Tensor]) -> Any:
    arrays = {name: tensor.detach().numpy() for name, tensor in real.items()}
    others = {name: each.numpy() if isinstance(each, Tensor) else each for name, each in call.others.items()}
    return torch.from_numpy(call.function(**arrays, **others))


def reversed_by_numpy(call: Call, real: dict[str, Tensor]) -> Any:
    backwards = {}
    for name, tensor in real.items():
        array, axis = tensor.detach().numpy(), len(name) % tensor.dim()
        backwards[name] = np.flip(np.ascontiguousarray(np.flip(array, axis)), axis)
    others = {name: each.numpy() if isinstance(each, Tensor) else each for name, each in call.others.items()}
    return torch.from_numpy(call.function(**backwards, **others))


WAYS = [eager, in_a_mode, without_recording, mapped, by_numpy, reversed_by_numpy]


ON_THE_HOST = ("numpy's", "in shared memory")


def same_shape_without_numbers(call: Call, found: Tensor) -> None:
    meta = {name: tensor.to("meta") for name, tensor in call.real.items()}
    others = {
        name: each.to("meta") if name in ("value_mask", "attn_mask") and isinstance(each, Tensor) else each
        for name, each in call.others.items()
    }
    shape = call.function(**meta, **others)
    assert shape.shape == found.shape and shape.dtype is found.dtype


def gradients_by_transform(call: Call, grad_out: Tensor) -> list[Tensor]:
    def function(*tensors: Tensor) -> Tensor:
        found: Tensor = call.function(**dict(zip(call.real, tensors, strict=True)), **call.others)
        return found

    return list(torch.func.vjp(function, *call.real.values())[1](grad_out))


def to(device: str, call: Call) -> None:
    """Moves all tensors but levels, which may be anywhere."""
    call.real = {name: tensor.to(device) for name, tensor in call.real.items()}
    masks = ("value_mask", "attn_mask")
    call.others = {
        name: each.to(device) if name in masks and each is not None else each for name, each in call.others.items()
    }


def check(seed: int, device: str) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    call = choose.choice([given, projected, dense])(choose)
    dtype = call.real["value"].dtype
    on_host = device == "cpu"
    wide = {name: tensor.to(torch.float64, copy=True).requires_grad_() for name, tensor in call.real.items()}
    expected = call.expected(**wide)
    to(device, call)

    has_arrays = on_host and dtype is not torch.bfloat16
    way = choose.choice([way for way in WAYS if has_arrays or "numpy" not in way.__name__])
    kinds = KINDS | (WITHOUT_GRADIENTS if way is not mapped else {})
    names = [name for name in kinds if on_host or name not in ON_THE_HOST]
    real = {name: kinds[choose.choice(names)](tensor) for name, tensor in call.real.items()}
    if "numpy" in way.__name__:
        real = {name: tensor.resolve_neg() for name, tensor in real.items()}
    found = torch.as_tensor(way(call, real)).as_subclass(Tensor)
    reference.assert_close(found, expected, TOLERANCE[dtype], f"{way.__name__} {call.function.__name__}")
    same_shape_without_numbers(call, found)

    if not on_host and call.function is fourtap.scaled_dot_product_attention and dtype.itemsize > 2:
        # Refused by name.
        return
    grad_out = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(wide.values()), grad_out)
    grad_out = grad_out.to(device)
    if choose.random() < 0.3:
        got = gradients_by_transform(call, grad_out.to(dtype))
    else:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in call.real.values()]
        tensors = {}
        for name, leaf in zip(call.real, leaves, strict=True):
            # What autograd can follow: views and copies of leaves.
            tensors[name] = choose.choice([lambda leaf: leaf, transposed, lambda leaf: leaf * 1])(leaf)
        out = (in_a_mode if choose.random() < 0.3 else eager)(call, tensors)
        got = torch.autograd.grad(out, leaves, grad_out.to(dtype))
    for name, one, other in zip(wide, got, wanted, strict=True):
        # Small gradients are differences of large numbers, which were rounded.
        scale = max(other.abs().max().item(), 0.5)
        off = (one.double().cpu() - other).abs().max().item()
        assert off <= 4 * TOLERANCE[dtype] * scale, f"gradient by {name}: off by {off}, largest magnitude {scale}"


def run(seeds: range, device: str) -> None:
    for seed in seeds:
        try:
            check(seed, device)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def test_random_calls(device: str) -> None:
    run(range(100), device)


@pytest.mark.slow
def test_many_random_calls(device: str) -> None:
    run(range(100, CASES), device)
