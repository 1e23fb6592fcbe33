"""Batch norms with fixed statistics, as detectors' backbones have them, in one operator, or seven with gradients.

Models write them down as eleven, most on small tensors. On a GPU a backbone of fifty-five is then bound by launching
them: a third of all operators of RT-DETR are theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

#: What the names of such classes end in.
NAME = "FrozenBatchNorm2d"

_EPSILON = 1e-5
_BUFFERS = ("weight", "bias", "running_mean", "running_var")


def in_one_operator(theirs: type[nn.Module]) -> Callable[[nn.Module, Tensor], Tensor] | None:
    """A ``forward`` for that class that gives the same; ``None`` if the class is not what it is named after."""
    composed = cast("Callable[[nn.Module, Tensor], Tensor]", theirs.forward)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        weight, bias, mean, variance = (cast("Tensor", getattr(self, name)) for name in _BUFFERS)
        # As the composed form does, under autocast: what is read in 16 bit is computed and returned in f32.
        if x.dtype != weight.dtype and torch.promote_types(x.dtype, weight.dtype) == weight.dtype:
            x = x.to(weight.dtype)
        if x.dtype != weight.dtype or x.dim() != 4 or x.numel() == 0:
            return composed(self, x)
        if torch.is_grad_enabled() and x.requires_grad:
            # The one operator would keep x for backward, which has no use for it.
            scale = weight * (variance + _EPSILON).rsqrt()
            shift = torch.addcmul(bias, mean, scale, value=-1)
            return torch.addcmul(shift.view(1, -1, 1, 1), x, scale.view(1, -1, 1, 1))
        return nn.functional.batch_norm(x, mean, variance, weight, bias, training=False, eps=_EPSILON)

    return forward if _agree(theirs, forward) else None


def _agree(theirs: type[nn.Module], ours: Callable[[nn.Module, Tensor], Tensor]) -> bool:
    """Whether both give the same for numbers that tell apart what a class may do otherwise."""
    try:
        with torch.device("cpu"):
            layer = theirs(2)
            for name, numbers in zip(_BUFFERS, ([2.0, -3.0], [0.5, 1.5], [-1.0, 4.0], [1e-5, 9.0]), strict=True):
                getattr(layer, name).copy_(torch.tensor(numbers))
            x = torch.tensor([[[[1.0, -2.0]], [[0.25, 8.0]]]])
        with torch.no_grad():
            expected = theirs.forward(layer, x)
            agree = torch.allclose(expected, ours(layer, x), rtol=1e-5, atol=1e-5)
        return agree and torch.allclose(expected, ours(layer, x.requires_grad_()), rtol=1e-5, atol=1e-5)
    # Whatever a class of another version does: it is then left as it is.
    except Exception:
        return False
