"""Results that are written to a tensor of the caller's: autograd must hear of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fourtap.errors import InputError

__all__ = ["count_write", "refuse_gradient_of"]


def refuse_gradient_of(out: object) -> None:
    """Refuse to write to a tensor that autograd would have a gradient for."""
    if isinstance(out, Tensor) and out.requires_grad and torch.is_grad_enabled():
        raise InputError("out: expected a tensor that requires no gradient, found one that does")


def count_write(out: Tensor) -> Tensor:
    """Let a graph that has saved what was there before raise an error, not compute gradients from the result."""
    if not torch.compiler.is_dynamo_compiling() and not out.is_inference():
        increment_version(out)
    return out
