"""Notes the calls of the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import fourtap.nn
from fourtap import attention
from fourtap.compat import _trial


def trials(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether drop-ins are trying something just now: those calls are nobody's."""
    running: list[object] = []
    run = _trial._run

    def noting(*arguments: Any) -> Any:
        running.append(arguments)
        try:
            return run(*arguments)
        finally:
            running.pop()

    monkeypatch.setattr(_trial, "_run", noting)
    return lambda: bool(running)


def shapes_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spatial shapes of every call of the operator from now on, on given locations or from projections."""
    seen: list[Any] = []
    is_tried = trials(monkeypatch)
    given, projected = attention.ms_deform_attn, fourtap.nn.from_projections

    def note(value: Tensor, spatial_shapes: Any, *arguments: Tensor, **options: Any) -> Tensor:
        if not is_tried():
            seen.append(spatial_shapes)
        return given(value, spatial_shapes, *arguments, **options)

    def note_projected(operands: Any, *options: Any) -> Tensor:
        if not is_tried():
            seen.append(operands[1])
        return projected(operands, *options)

    monkeypatch.setattr(attention, "ms_deform_attn", note)
    monkeypatch.setattr(fourtap.nn, "from_projections", note_projected)
    return seen
