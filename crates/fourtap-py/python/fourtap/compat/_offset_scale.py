"""What an offset of 1 is of a box, where models have a buffer for it: RT-DETRv2, D-FINE, DEIM and DEIMv2.

The buffer has a number for each point: one through the number of points on its level, unless a checkpoint or somebody's
hand says otherwise. It counts as it is at every call.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fourtap._joined import is_watched

__all__ = ["OffsetScale", "offset_scale_of"]


class OffsetScale(NamedTuple):
    """The scale of offsets in its two factors."""

    by_level: list[float]
    "For the operator."
    by_point: Tensor | None
    "What offsets are to be multiplied with before, if the operator cannot do all of it."


class _Numbers(NamedTuple):
    """What was read of a buffer on a GPU, and whereby a change of it is noticed."""

    buffer: Tensor
    version: int
    address: int
    found: list[float]


# By the module, which does not keep them alive: copies and checkpoints of it know nothing of this.
_read: weakref.WeakKeyDictionary[nn.Module, _Numbers] = weakref.WeakKeyDictionary()


def offset_scale_of(module: nn.Module, buffer: Tensor, factor: float, points: Sequence[int]) -> OffsetScale:
    """The scale, by numbers where these can be had.

    Args:
        module: Whose buffer it is.
        buffer: A number for each point.
        factor: By which all of them are multiplied.
        points: The number of points of each level.

    """
    numbers = _numbers_of(module, buffer)
    scale = None if numbers is None else _by_level(tuple(numbers), factor, tuple(points))
    return OffsetScale([factor] * len(points), buffer) if scale is None else OffsetScale(scale, None)


def _numbers_of(module: nn.Module, buffer: Tensor) -> list[float] | None:
    """The buffer's; None if they must stay a tensor, as part of a graph or program, or as something with gradients."""
    if torch.compiler.is_dynamo_compiling() or is_watched() or type(buffer) is not Tensor or buffer.requires_grad:
        return None
    if buffer.dim() != 1 or buffer.device.type not in ("cpu", "cuda"):
        return None
    if buffer.device.type == "cpu":
        found: list[float] = buffer.tolist()
        return found
    # A captured graph is replayed after changes; and those of tensors made in inference mode are not counted.
    if torch.cuda.is_current_stream_capturing() or buffer.is_inference():
        return None
    # Reading it again would wait for the GPU.
    known = _read.get(module)
    if known is not None and known.buffer is buffer:
        if known.version == buffer._version and known.address == buffer.data_ptr():
            return known.found
    known = _Numbers(buffer, buffer._version, buffer.data_ptr(), buffer.tolist())
    _read[module] = known
    return known.found


# All layers of a model have the same, in all calls.
@functools.lru_cache
def _by_level(numbers: tuple[float, ...], factor: float, points: tuple[int, ...]) -> list[float] | None:
    """The scale of each level; None if its points differ, or the operator would refuse it."""
    if len(numbers) != sum(points):
        return None
    scale = []
    for count, end in zip(points, accumulate(points), strict=True):
        level = set(numbers[end - count : end])
        if len(level) > 1:
            return None
        # Nobody reads that of a level without points.
        scale.append(factor * level.pop() if level else factor)
    return scale if all(map(math.isfinite, scale)) else None
