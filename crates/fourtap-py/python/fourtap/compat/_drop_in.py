"""What all replacements share: the call in the originals' argument order, and patching and restoring attributes."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from fourtap import attention
from fourtap.nn import SpatialShapes, accepted_type

_MISSING = object()


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
    """Patched attributes of other packages' modules and classes, so that they can be restored."""

    def __init__(self) -> None:
        self._undo: dict[str, Callable[[], None]] = {}

    @property
    def names(self) -> list[str]:
        """The names of what is replaced now."""
        return sorted(self._undo)

    def set_attribute(self, name: str, owner: Any, attribute: str, replacement: object) -> None:
        """Sets an attribute; its former value is kept under ``name``. Nothing happens if that is already done."""
        if name in self._undo:
            return
        former = vars(owner).get(attribute, _MISSING)
        setattr(owner, attribute, replacement)

        def put_back() -> None:
            # If it was replaced again since then, leave it alone.
            if vars(owner).get(attribute) is not replacement:
                return
            if former is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, former)

        self._undo[name] = put_back

    def set_code(self, name: str, function: FunctionType, replacement: CodeType) -> None:
        """The same for the body of a function, which then changes for all holders of the function."""
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
        """Restores everything."""
        while self._undo:
            _, put_back = self._undo.popitem()
            put_back()
