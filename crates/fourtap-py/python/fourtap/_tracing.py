"""Checks of sizes while ``torch.jit`` traces, when sizes are tensors.

The tracer warns of every size that becomes a number. Those of checks leave nothing in the graph, so its warnings would
only hide those about the user's own lines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["is_tracing", "length", "numbers", "unwarned"]

T = TypeVar("T")

is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]


def unwarned(check: Callable[..., T], *arguments: Any) -> T:
    """What the check returns, without the tracer's warnings."""
    if not is_tracing():
        return check(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return check(*arguments)


def numbers(sizes: Sequence[Any]) -> Sequence[Any]:
    """The sizes, with a number in place of every tensor."""
    return unwarned(_numbers, sizes) if is_tracing() else sizes


def _numbers(sizes: Sequence[Any]) -> Sequence[Any]:
    return [int(size) if isinstance(size, Tensor) else size for size in sizes]


def length(levels: Any) -> int:
    """How many levels a tensor or list has."""
    return unwarned(len, levels)
