"""The axes of dense attention before positions and channels, broadcast against each other and joined to one.

For PyTorch tensors and NumPy arrays alike; ``library`` is ``torch`` or ``numpy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fourtap.errors import InputError

__all__ = ["are_aligned", "attend_broadcast"]

Attend = Callable[[Any, Any, Any, Any], Any]
_NAMES = ("query", "key", "value")
# Batch, heads, positions and channels.
_RANK = 4


def are_aligned(query: Any, key: Any, value: Any, grouped: bool) -> bool:
    """Whether the compiled part takes the tensors as they are, or knows best what is wrong with them."""
    rank = query.ndim
    if rank < 2:
        return True
    if rank > _RANK or key.ndim != rank or value.ndim != rank:
        return False
    inner = 3 if grouped else 2
    before = query.shape[:-inner]
    return key.shape[:-inner] == before and value.shape[:-inner] == before  # type: ignore[no-any-return]


def attend_broadcast(
    attend: Attend, query: Any, key: Any, value: Any, attn_mask: Any, grouped: bool, library: Any
) -> Any:
    """What ``attend`` gives for the tensors, expanded to the same axes and with all axes before the heads in one."""
    tensors = [query, key, value]
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if tensor.ndim < 2:
            raise InputError(f"{name}: expected rank 2 or more [..., H, S, D], found rank {tensor.ndim}")
    if grouped:
        tensors = [tensor if tensor.ndim > 2 else tensor[None] for tensor in tensors]
    # With groups, query and keys have heads of their own.
    inner = 3 if grouped else 2
    whole: tuple[int, ...] = ()
    for name, tensor in zip(_NAMES, tensors, strict=True):
        before = tuple(tensor.shape[:-inner])
        try:
            whole = tuple(library.broadcast_shapes(whole, before))
        except (RuntimeError, ValueError):
            axes = "heads" if grouped else "positions"
            hint = "" if grouped else " (with enable_gqa=True heads of query share those of key)"
            raise InputError(
                f"{name}: expected axes before the {axes} that broadcast with {list(whole)} of query{hint}, "
                f"found {list(before)} of {list(tensor.shape)}"
            ) from None
    tensors = [library.broadcast_to(tensor, whole + tuple(tensor.shape[-inner:])) for tensor in tensors]
    batch = whole if grouped else whole[:-1]
    if len(whole) + inner <= _RANK:
        query, key, value = tensors
        return attend(query, key, value, attn_mask)
    sequences = math.prod(batch)
    # Reshaping copies where strides do not allow to see the axes as one.
    query, key, value = (_reshaped(tensor, (sequences, *tensor.shape[-3:])) for tensor in tensors)
    if attn_mask is not None and attn_mask.ndim > 3:
        rows, own = tuple(attn_mask.shape[-3:]), tuple(attn_mask.shape[:-3])
        pairs = list(zip(reversed(own), reversed(batch), strict=False))
        if len(own) > len(batch) or not all(size == 1 or size == axis for size, axis in pairs):
            whole = (*batch, query.shape[-3], query.shape[-2], key.shape[-2])
            raise InputError(f"attn_mask: expected shape broadcasting to {list(whole)}, found {list(attn_mask.shape)}")
        if all(size == 1 for size in own):
            attn_mask = _reshaped(attn_mask, rows)
        else:
            attn_mask = _reshaped(library.broadcast_to(attn_mask, batch + rows), (sequences, *rows))
    found = attend(query, key, value, attn_mask)
    if isinstance(found, tuple):
        return tuple(_reshaped(result, batch + tuple(result.shape[1:])) for result in found)
    return _reshaped(found, batch + tuple(found.shape[1:]))


def _reshaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Reshaped in its first axes. Of a DTensor they are gathered before, unless it is evenly sharded on the first.

    PyTorch can only reshape such ones, also their gradients.
    """
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor.reshape(shape)
    from torch.distributed.tensor import Replicate

    joins = tensor.ndim > len(shape)
    before = 1 + tensor.ndim - len(shape) if joins else 1
    is_even = (tensor.shape[0] if joins else shape[0]) % tensor.device_mesh.size() == 0

    def fits(placement: Any) -> bool:
        axis = getattr(placement, "dim", None)
        return axis is None or axis >= before or (axis == 0 and is_even)

    fitting = tensor.redistribute(placements=[on if fits(on) else Replicate() for on in placements]).reshape(shape)
    # To where it is already: the gradient is then brought there, too, before it is reshaped back.
    return fitting.redistribute(placements=fitting.placements)
