"""Checks of calls whose tensors have no memory, as fake and meta tensors: those of real calls, made of shadows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourtap._subclasses import refuse_strangers
from fourtap.errors import InputError

__all__ = ["Shadow", "UnknownSizeError", "known_number", "shadows_of"]


class Shadow(NamedTuple):
    """What a check looks at of a tensor; the compiled part reads these fields."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    numbers: list[int] | None
    """Of levels that have memory, since they are beside tensors that have none."""


class UnknownSizeError(Exception):
    """A size is not known before the program runs, so nothing can be checked before."""


def known_number(number: Any) -> Any:
    """A size or setting as the program is traced with it. Looking at it does not tie the program to it."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return number
    if not number.node.has_hint():
        raise UnknownSizeError
    return number.node.hint


def shadows_of(first: str, tensors: dict[str, Tensor | None], levels: Sequence[str] = ()) -> list[Shadow | None]:
    """Shadows of the tensors, which must be where the first of these names is; those of levels may be on the CPU."""
    refuse_strangers(**tensors)
    whole: Any = tensors[first]
    place = whole.device
    if place.type not in ("cpu", "cuda", "meta"):
        raise InputError(f"{first}: expected a tensor on the CPU or a CUDA device, found {place}")
    made: list[Shadow | None] = []
    for name, tensor in tensors.items():
        if tensor is None:
            made.append(None)
            continue
        if tensor.device != place and not (name in levels and tensor.device.type == "cpu"):
            raise InputError(f"{name}: expected {place} (where {first} is), found {tensor.device}")
        has_memory = name in levels and type(tensor) is Tensor and not (tensor.is_meta or tensor.is_floating_point())
        made.append(
            Shadow(
                tuple(map(known_number, tensor.shape)),
                tuple(map(known_number, tensor.stride())),
                tensor.dtype,
                tensor.flatten().tolist() if has_memory else None,
            )
        )
    return made
