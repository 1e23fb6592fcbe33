"""Whether exports to ONNX keep our operators, for whoever translates them, or get them made of PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["is_decomposed", "kept"]

_depth = 0


def is_decomposed() -> bool:
    """Whether a call is part of an export to ONNX in which nobody knows our operators."""
    return _depth == 0 and torch.onnx.is_in_onnx_export()


@contextmanager
def kept() -> Iterator[None]:
    """Keep our operators in exports that are made meanwhile."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
