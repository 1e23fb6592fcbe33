"""What all replacements share: the call in the older argument order, and attributes of others set and put back."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from fourtap import attention
from fourtap.nn import SpatialShapes, arithmetic_type

_MISSING = object()


def accepted_type(tensor: Tensor, value: Tensor) -> Tensor:
    """The tensor in a type that the operator takes beside ``value``: callers of the originals mix them freely."""
    if tensor.dtype in (value.dtype, torch.float32):
        return tensor
    return tensor.to(arithmetic_type(value.dtype))


def attend(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The operator in the order of arguments that the originals share."""
    return attention.ms_deform_attn(
        value,
        spatial_shapes,
        accepted_type(sampling_locations, value),
        accepted_type(attention_weights, value),
        level_start_index=level_start_index,
    )


class Replacements:
    """What was set in modules and classes of others, so that it can be put back."""

    def __init__(self) -> None:
        self._undo: dict[str, Callable[[], None]] = {}

    @property
    def names(self) -> list[str]:
        """What is replaced now."""
        return sorted(self._undo)

    def set_attribute(self, name: str, owner: Any, attribute: str, replacement: object) -> None:
        """Sets an attribute; its former value is kept under ``name``. Nothing happens if that is already done."""
        if name in self._undo:
            return
        former = vars(owner).get(attribute, _MISSING)
        setattr(owner, attribute, replacement)

        def put_back() -> None:
            # Whoever replaced ours since then would not thank us for undoing that.
            if vars(owner).get(attribute) is not replacement:
                return
            if former is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, former)

        self._undo[name] = put_back

    def set_code(self, name: str, function: FunctionType, replacement: CodeType) -> None:
        """The same for the body of a function, which then changes for everybody who holds the function."""
        if name in self._undo:
            return
        former = function.__code__
        function.__code__ = replacement

        def put_back() -> None:
            if function.__code__ is replacement:
                function.__code__ = former

        self._undo[name] = put_back

    def set_item(self, name: str, owner: dict[Any, Any], key: object, replacement: object) -> None:
        """The same for an entry of a dictionary."""
        if name in self._undo:
            return
        former = owner.get(key, _MISSING)
        owner[key] = replacement

        def put_back() -> None:
            if owner.get(key) is not replacement:
                return
            if former is _MISSING:
                del owner[key]
            else:
                owner[key] = former

        self._undo[name] = put_back

    def undo(self) -> None:
        """Puts everything back."""
        while self._undo:
            _, put_back = self._undo.popitem()
            put_back()
