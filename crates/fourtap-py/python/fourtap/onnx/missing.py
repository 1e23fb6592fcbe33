"""Operators that models with our nodes have around them, and that PyTorch's exporter has no translation of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fourtap.errors import UnsupportedError

__all__ = ["missing"]

_INT64, _BOOL = 7, 9


def missing(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Their translations, to this opset of onnxscript's."""

    def is_all_true(values: Any) -> Any:
        """D-FINE checks its inputs by it."""
        return op.Cast(op.ReduceMin(op.Cast(values, to=_INT64), keepdims=0), to=_BOOL)

    def running(values: Any, dim: int, *, lowest: bool) -> Any:
        """Grounding DINO finds by these where its phrases begin and end."""
        if dim not in (-1, len(values.shape) - 1):
            raise UnsupportedError(f"cummax: expected one over the last axis in an export, found axis {dim}")
        last = op.Constant(value_ints=[-1])
        length = op.Squeeze(op.Shape(values, start=-1))
        at = op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))
        # Row i of the last two axes has the values up to i, and beyond them one that never counts.
        is_before = op.LessOrEqual(at, op.Unsqueeze(at, last))
        beyond = (op.ReduceMax if lowest else op.ReduceMin)(values, keepdims=0)
        rows = op.Where(is_before, op.Unsqueeze(values, op.Constant(value_ints=[-2])), beyond)
        best = (op.ReduceMin if lowest else op.ReduceMax)(rows, last, keepdims=0)
        is_best = op.And(op.Equal(rows, op.Unsqueeze(best, last)), is_before)
        return best, op.ArgMax(op.Cast(is_best, to=_INT64), axis=-1, keepdims=0, select_last_index=1)

    def cummax(values: Any, dim: int) -> Any:
        return running(values, dim, lowest=False)

    def cummin(values: Any, dim: int) -> Any:
        return running(values, dim, lowest=True)

    found: dict[str, Callable[..., Any]] = {"_is_all_true": is_all_true, "cummax": cummax, "cummin": cummin}
    operators = {getattr(torch.ops.aten, name, None): translated for name, translated in found.items()}
    return {operator.default: translated for operator, translated in operators.items() if operator is not None}
