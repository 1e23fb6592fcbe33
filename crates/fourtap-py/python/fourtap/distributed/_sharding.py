"""How every operator computes with DTensors: which placements need no exchange. Importing this tells PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from fourtap import _dense, _projected_registered, _registered  # noqa: F401  # they define the operators

__all__ = ["OPERATORS"]

# Of one operator: how results and arguments are placed.
Rule = tuple[list[Any], list[Any]]
WHOLE = Replicate()
BY_IMAGES, BY_QUERIES, BY_HEADS = Shard(0), Shard(1), Shard(2)


def _given(tensor: Any, placement: Any) -> Any:
    """Of a tensor that may be missing."""
    return None if tensor is None else placement


def _where(axis: int, size: int, tensor: Any, otherwise: Any = WHOLE) -> Any:
    """Sharded on an axis, unless the tensor has one number there for all."""
    if tensor is None:
        return None
    return Shard(axis) if tensor.ndim > axis and tensor.shape[axis] == size and size > 1 else otherwise


def _those(placements: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Gradients that nobody wants are empty, and the same everywhere."""
    return [placement if want else WHOLE for placement, want in zip(placements, wanted, strict=True)]


def _msda(
    value: Any, shapes: Any, starts: Any, levels: Any, locations: Any, weights: Any, deterministic: Any
) -> list[Rule]:
    def rule(out: Any, of_value: Any, of_samples: Any) -> Rule:
        tables = [_given(shapes, WHOLE), _given(starts, WHOLE), None]
        return [out], [of_value, *tables, of_samples, of_samples, None]

    return [
        rule(WHOLE, WHOLE, WHOLE),
        rule(BY_IMAGES, BY_IMAGES, BY_IMAGES),
        rule(BY_HEADS, BY_HEADS, BY_HEADS),
        rule(BY_QUERIES, WHOLE, BY_QUERIES),
    ]


def _msda_backward(grad_out: Any, *others: Any) -> list[Rule]:
    *operands, wanted = others
    # Of value, locations and weights, for each rule of forward.
    gradients: list[list[Any]] = [
        [WHOLE] * 3,
        [BY_IMAGES] * 3,
        [BY_HEADS] * 3,
        [Partial(), BY_QUERIES, BY_QUERIES],
    ]
    return [
        (_those(placed, wanted), [*out, *inputs, None])
        for placed, (out, inputs) in zip(gradients, _msda(*operands), strict=True)
    ]


def _msda_projected(
    value: Any,
    shapes: Any,
    starts: Any,
    levels: Any,
    references: Any,
    offsets: Any,
    logits: Any,
    mask: Any,
    *settings: Any,
) -> list[Rule]:
    images, queries = value.shape[0], offsets.shape[1]

    def rule(out: Any, of_value: Any, of_references: Any, of_samples: Any, of_mask: Any) -> Rule:
        tables = [_given(shapes, WHOLE), _given(starts, WHOLE), None]
        samples = [of_references, of_samples, _given(logits, of_samples), _given(mask, of_mask)]
        return [out], [of_value, *tables, *samples, *(None for _ in settings)]

    rules = [
        rule(WHOLE, WHOLE, WHOLE, WHOLE, WHOLE),
        rule(BY_IMAGES, BY_IMAGES, _where(0, images, references), BY_IMAGES, BY_IMAGES),
        rule(BY_QUERIES, WHOLE, _where(1, queries, references), BY_QUERIES, WHOLE),
    ]
    # Offsets and logits that are one tensor have no axis of heads.
    return rules if logits is None else [*rules, rule(BY_HEADS, BY_HEADS, WHOLE, BY_HEADS, WHOLE)]


def _msda_projected_backward(grad_out: Any, *others: Any) -> list[Rule]:
    *operands, wanted = others
    value, references, offsets, logits = operands[0], operands[4], operands[5], operands[6]
    images, queries = value.shape[0], offsets.shape[1]
    wanted = [*wanted[:3], wanted[3] and logits is not None]
    # Of value, references, offsets and logits.
    gradients: list[list[Any]] = [
        [WHOLE] * 4,
        [BY_IMAGES, _where(0, images, references, Partial()), BY_IMAGES, BY_IMAGES],
        [Partial(), _where(1, queries, references, Partial()), BY_QUERIES, BY_QUERIES],
        [BY_HEADS, Partial(), BY_HEADS, BY_HEADS],
    ]
    return [
        (_those(placed, wanted), [*out, *inputs, None])
        for placed, (out, inputs) in zip(gradients, _msda_projected(*operands), strict=False)
    ]


# Axes of dense attention's tensors.
OF_SEQUENCES, OF_HEADS, OF_QUERIES = 0, 1, 2


def _axes_of(query: Any, key: Any, left: Any, right: Any) -> list[int]:
    """What may be sharded: heads, if each has keys of its own; queries, if their place does not say what they see."""
    axes = [OF_SEQUENCES]
    if query.shape[1] == key.shape[1]:
        axes.append(OF_HEADS)
    return [*axes, OF_QUERIES] if left is None and right is None else axes


def _dense_rule(axis: int | None, query: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Where queries, keys and values, and a mask are."""
    if axis is None:
        return WHOLE, WHOLE, _given(mask, WHOLE)
    of_mask = mask
    if mask is not None:
        at = axis - (4 - mask.ndim)  # a mask may lack the first axes
        of_mask = _where(at, query.shape[axis], mask) if at >= 0 else WHOLE
    return Shard(axis), WHOLE if axis == OF_QUERIES else Shard(axis), of_mask


def _dense_forward(
    query: Any,
    key: Any,
    value: Any,
    scale: Any,
    left: Any,
    right: Any,
    bottom: Any,
    gqa: Any,
    lse: Any,
    mask: Any = None,
) -> list[Rule]:
    rules = []
    for axis in (None, *_axes_of(query, key, left, right)):
        of_query, of_key, of_mask = _dense_rule(axis, query, mask)
        results = [of_query, of_query if lse else WHOLE]
        rules.append((results, [of_query, of_key, of_key, *[None] * 6, of_mask]))
    return rules


def _dense_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    scale: Any,
    left: Any,
    right: Any,
    bottom: Any,
    gqa: Any,
    mask: Any,
    out: Any,
    lse: Any,
    wanted: Any,
) -> list[Rule]:
    rules = []
    for axis in (None, *_axes_of(query, key, left, right)):
        of_query, of_key, of_mask = _dense_rule(axis, query, mask)
        sums_of_keys = Partial() if axis == OF_QUERIES else of_key
        sums_of_mask = Partial() if axis is not None and of_mask == WHOLE else of_mask
        gradients = _those([of_query, sums_of_keys, sums_of_keys, sums_of_mask], wanted)
        inputs = [of_query, of_query, of_key, of_key, *[None] * 5, of_mask, of_query, of_query, None]
        rules.append((gradients, inputs))
    return rules


_RULES: dict[str, Callable[..., list[Rule]]] = {
    "msda": _msda,
    "msda_backward": _msda_backward,
    "msda_projected": _msda_projected,
    "msda_projected_backward": _msda_projected_backward,
    "dense": _dense_forward,
    "dense_backward": _dense_backward,
}
OPERATORS = tuple(_RULES)
"""The operators of ``torch.ops.fourtap`` that have rules."""

for _name, _rule in _RULES.items():
    register_sharding(getattr(torch.ops.fourtap, _name).default)(_rule)
