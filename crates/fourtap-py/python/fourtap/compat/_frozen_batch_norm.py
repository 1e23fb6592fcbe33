"""Batch norms with fixed statistics, as detectors' backbones have them, in one operator, or seven with gradients.

Models write them down as eleven, most on small tensors. On a GPU a backbone of fifty-five is then bound by launching
them: a third of all operators of RT-DETR are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from fourtap.compat._trial import Case, bare_module, require_agreement, require_arguments
from fourtap.compat._trial_cases import Numbers

#: What the names of such classes end in.
NAME = "FrozenBatchNorm2d"

_EPSILON = 1e-5
_BUFFERS = ("weight", "bias", "running_mean", "running_var")


def in_one_operator(theirs: type[nn.Module]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A ``forward`` for that class that gives the same.

    Raises:
        Disagreement: The class is not what it is named after.

    """
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

    require_arguments(composed, ("self", "x", "input"))
    require_agreement(composed, forward, _cases(theirs))
    return forward


def _cases(theirs: type[nn.Module]) -> Iterator[Case]:
    """Numbers that tell apart what a class may do otherwise."""
    numbers = Numbers(4)
    every = ([2.0, -3.0, 0.5], [0.5, 1.5, -2.0], [-1.0, 4.0, 0.25], [1e-5, 9.0, 2e-4])
    statistics = {
        # Which float32 would round.
        name: torch.tensor(values, dtype=torch.float64, device="cpu") * 1.1
        for name, values in zip(_BUFFERS, every, strict=True)
    }
    for training in (False, True):
        module = bare_module(theirs, statistics, training=training)

        def call(function: Callable[..., Tensor], given: Mapping[str, Tensor], module: nn.Module = module) -> Tensor:
            return function(module, given["x"])

        yield Case("images", {"x": numbers(2, 3, 4, 5, high=4.0)}, call, module)
