"""Notes the calls of the operator."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import fourtap.nn
from fourtap import attention


def shapes_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spatial shapes of every call of the operator from now on, on given locations or from projections."""
    seen: list[Any] = []
    given, projected = attention.ms_deform_attn, fourtap.nn.from_projections

    def note(value: Tensor, spatial_shapes: Any, *arguments: Tensor, **options: Any) -> Tensor:
        seen.append(spatial_shapes)
        return given(value, spatial_shapes, *arguments, **options)

    def note_projected(operands: Any, *options: Any) -> Tensor:
        seen.append(operands[1])
        return projected(operands, *options)

    monkeypatch.setattr(attention, "ms_deform_attn", note)
    monkeypatch.setattr(fourtap.nn, "from_projections", note_projected)
    return seen
