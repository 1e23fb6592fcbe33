"""How every operator computes with DTensors: which placements need no exchange."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from fourtap import _dense, _projected_registered, _registered  # noqa: F401  # they define the operators
from fourtap._when_sharded import first_that_matters

__all__ = ["OPERATORS", "ensure_registered"]

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


def _splits_heads(value: Any) -> bool:
    """Whether devices get equal numbers of heads, however many axes of the mesh these are sharded on.

    The result has heads and channels on one axis. PyTorch divides that by its own size, so with unequal numbers of
    heads nobody's part would be what PyTorch takes it for.
    """
    heads, sizes = value.shape[2], value.mesh.shape
    several = (math.prod(some) for count in range(1, len(sizes) + 1) for some in itertools.combinations(sizes, count))
    # PyTorch itself does not shard on more devices than there are heads.
    return all(heads % devices == 0 for devices in several if devices <= heads)


def _msda(
    value: Any, shapes: Any, starts: Any, levels: Any, locations: Any, weights: Any, deterministic: Any
) -> list[Rule]:
    def rule(out: Any, of_value: Any, of_samples: Any) -> Rule:
        tables = [_given(shapes, WHOLE), _given(starts, WHOLE), None]
        return [out], [of_value, *tables, of_samples, of_samples, None]

    rules = [
        rule(WHOLE, WHOLE, WHOLE),
        rule(BY_IMAGES, BY_IMAGES, BY_IMAGES),
        rule(BY_QUERIES, WHOLE, BY_QUERIES),
    ]
    return [*rules, rule(BY_HEADS, BY_HEADS, BY_HEADS)] if _splits_heads(value) else rules


def _msda_backward(grad_out: Any, *others: Any) -> list[Rule]:
    *operands, wanted = others
    # Of value, locations and weights, for each rule of forward.
    gradients: list[list[Any]] = [
        [WHOLE] * 3,
        [BY_IMAGES] * 3,
        [Partial(), BY_QUERIES, BY_QUERIES],
        [BY_HEADS] * 3,
    ]
    return [
        (_those(placed, wanted), [*out, *inputs, None])
        for placed, (out, inputs) in zip(gradients, _msda(*operands), strict=False)
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
    by_heads = logits is not None and _splits_heads(value)
    return [*rules, rule(BY_HEADS, BY_HEADS, WHOLE, BY_HEADS, WHOLE)] if by_heads else rules


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


# Axes of dense attention's tensors, counted from the end: before heads there may be axes, or not even heads.
OF_HEADS, OF_QUERIES = -3, -2


def _axes_of(query: Any, key: Any, left: Any, right: Any) -> list[int]:
    """What may be sharded: heads, if each has keys of its own; queries, if their place does not say what they see."""
    axes = list(range(-query.ndim, OF_HEADS))
    if query.ndim >= -OF_HEADS and query.shape[OF_HEADS] == key.shape[OF_HEADS]:
        axes.append(OF_HEADS)
    return [*axes, OF_QUERIES] if left is None and right is None else axes


def _dense_rule(axis: int | None, query: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Where queries, keys and values, and a mask are."""
    if axis is None:
        return WHOLE, WHOLE, _given(mask, WHOLE)
    of_query = Shard(query.ndim + axis)
    of_mask = _given(mask, WHOLE)
    if mask is not None and mask.ndim >= -axis:  # it may lack the first axes
        of_mask = _where(mask.ndim + axis, query.shape[axis], mask)
    return of_query, WHOLE if axis == OF_QUERIES else of_query, of_mask


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


@functools.cache
def ensure_registered() -> None:
    """Tell PyTorch, once."""
    known = DTensor._op_dispatcher.sharding_propagator
    for name, rule in _RULES.items():
        operator = getattr(torch.ops.fourtap, name).default
        register_sharding(operator)(rule)
        # By itself it takes the first integer, but gradients depend on which are wanted.
        known.op_to_schema_info[operator].static_argnum = first_that_matters(operator)


ensure_registered()
