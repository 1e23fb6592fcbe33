"""The operator made of PyTorch's own: for programs that leave PyTorch, to runtimes that do not have ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["attend"]


def attend(value: Tensor, shapes: Any, starts: Any, locations: Tensor, weights: Tensor) -> Tensor:
    """As ``fourtap.ms_deform_attn``, by one ``grid_sample`` per level.

    Heights, widths and starts may be numbers of any kind: sizes of tensors that are traced stay what they are, so the
    program exported takes other image sizes.
    """
    images, _, heads, channels = value.shape
    # All levels are computed in one type, as grid_sample demands.
    dtype = torch.promote_types(torch.promote_types(value.dtype, locations.dtype), weights.dtype)
    # [N, M * D, S], [N * M, Q, P, 2] per level and [N * M, 1, Q, P] per level.
    pixels = value.to(dtype).flatten(2).transpose(1, 2)
    grids = (2 * locations.to(dtype) - 1).transpose(1, 2).flatten(0, 1).unbind(2)
    shares = weights.to(dtype).transpose(1, 2).flatten(0, 1).unsqueeze(1).unbind(3)
    start: Any = 0
    total: Any = 0
    for level, (height, width) in enumerate(_pairs(shapes)):
        if starts is not None:
            start = starts[level]
        end = start + height * width
        image = pixels[:, :, start:end].reshape(-1, channels, height, width)
        samples = functional.grid_sample(
            image, grids[level], mode="bilinear", padding_mode="zeros", align_corners=False
        )
        total = total + (samples * shares[level]).sum(-1)
        start = end
    result: Tensor = total.reshape(images, heads * channels, -1).transpose(1, 2).to(value.dtype)
    return result


def _pairs(shapes: Any) -> Any:
    """Unbound, not iterated over: a tracer warns of that."""
    return [pair.unbind() for pair in shapes.unbind()] if isinstance(shapes, Tensor) else shapes
