"""How a sequence is split over processes, so that causal attention gives each the same work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from fourtap.errors import InputError, UnsupportedError

__all__ = ["shard_sequence", "unshard_sequence"]


def ring_of(group: Any) -> tuple[int, int]:
    """The rank of this process in the group, and the number of processes there."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise InputError("group: expected processes that have called torch.distributed.init_process_group, found none")
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        # What torch.distributed.new_group returns to processes outside the group.
        if group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise _outside(group)
        kind = f"{type(group).__module__}.{type(group).__qualname__}"
        raise InputError(f"group: expected a torch.distributed.ProcessGroup (mesh.get_group()) or None, found {kind}")
    rank = distributed.get_rank(group)
    if rank < 0:
        raise _outside(group)
    return rank, distributed.get_world_size(group)


def _outside(group: Any) -> InputError:
    return InputError(f"group: expected one with process {distributed.get_rank()} in it, found one without")


def _axis_of(tensor: Any, dim: int) -> int:
    if not isinstance(tensor, Tensor):
        raise InputError(f"tensor: expected a PyTorch tensor, found {type(tensor).__qualname__}")
    if not -tensor.dim() <= dim < tensor.dim():
        raise InputError(f"dim: expected an axis of the tensor, which has {tensor.dim()}, found {dim}")
    return dim % tensor.dim()


def shard_sequence(tensor: Tensor, group: distributed.ProcessGroup | None = None, *, dim: int = -2) -> Tensor:
    """This process's part of a whole sequence: of 2n equal pieces the process of rank i of n has i and 2n - 1 - i.

    An early piece, of which a causal mask hides most keys, comes with a late one: so all processes have the same work.
    PyTorch's ``context_parallel`` splits sequences in the same way. Everything that knows of positions must be split
    alike, such as those of rotary embeddings: ``shard_sequence(torch.arange(length), dim=0)``.

    Args:
        tensor: The whole sequence, in every process.
        group: The processes that share the sequence; by default all.
        dim: The axis of the sequence, whose size is a multiple of 2n.

    Returns:
        The part, 1 / n of the tensor, copied. It is differentiable.

    Raises:
        fourtap.InputError: The length is no multiple of 2n, or this process is not in the group.

    """
    rank, size = ring_of(group)
    axis = _axis_of(tensor, dim)
    length = tensor.shape[axis]
    if length == 0 or length % (2 * size) != 0:
        raise InputError(
            f"tensor: expected a multiple of {2 * size} positions (two pieces for each of {size} processes) "
            f"on axis {axis}, found {length}"
        )
    piece = length // (2 * size)
    early = tensor.narrow(axis, rank * piece, piece)
    late = tensor.narrow(axis, (2 * size - 1 - rank) * piece, piece)
    return torch.cat([early, late], dim=axis)


def unshard_sequence(tensor: Tensor, group: distributed.ProcessGroup | None = None, *, dim: int = -2) -> Tensor:
    """The whole sequence, of the parts that :func:`shard_sequence` made of it, in every process (one all-gather).

    Args:
        tensor: This process's part; the same shape in every process.
        group: As for :func:`shard_sequence`.
        dim: The axis of the sequence.

    Raises:
        fourtap.InputError: The part does not consist of two pieces, or this process is not in the group.
            fourtap.UnsupportedError: A gradient is wanted: compute losses from the parts.

    """
    _, size = ring_of(group)
    axis = _axis_of(tensor, dim)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "tensor: expected one that wants no gradient (compute losses from parts, or detach), found one that does"
        )
    if tensor.shape[axis] % 2 != 0:
        raise InputError(f"tensor: expected two pieces, an even length, on axis {axis}, found {tensor.shape[axis]}")
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    distributed.all_gather(parts, tensor.contiguous(), group=group)
    halves = [part.chunk(2, dim=axis) for part in parts]
    return torch.cat([early for early, _ in halves] + [late for _, late in reversed(halves)], dim=axis)
