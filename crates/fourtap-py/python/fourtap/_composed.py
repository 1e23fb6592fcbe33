"""The operator made of PyTorch's own: for programs that leave PyTorch, to runtimes that do not have ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from fourtap._tracing import length, numbers, unwarned

if TYPE_CHECKING:
    from fourtap._native import ProjectionSettings as Settings

__all__ = ["attend", "attend_from_projections"]


def attend(value: Tensor, shapes: Any, starts: Any, locations: Tensor, weights: Tensor) -> Tensor:
    """As ``fourtap.ms_deform_attn``, by one ``grid_sample`` per level.

    Heights, widths and starts may be numbers of any kind: sizes of tensors that are traced stay what they are, so the
    program exported takes other image sizes.
    """
    # All levels are computed in one type, as grid_sample demands.
    dtype = torch.promote_types(torch.promote_types(value.dtype, locations.dtype), weights.dtype)
    places, shares = locations.to(dtype).unbind(3), weights.to(dtype).unbind(3)
    return _sum_of_levels(value, shapes, starts, places, shares, sample=_interpolated)


def attend_from_projections(
    value: Tensor,
    shapes: Any,
    starts: Any,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    mask: Tensor | None,
    settings: Settings,
) -> Tensor:
    """As ``fourtap.ms_deform_attn_from_projections``, but that "nearest" is undefined for NaN."""
    points, nearest, box_scale, _ = settings
    levels, samples = length(shapes), logits.shape[-1]
    dtype = torch.float64 if value.dtype is torch.float64 else torch.float32
    counts = _for_each_level(samples // levels if points is None else points, levels)
    factors = _for_each_level(box_scale, levels)
    if mask is not None:
        value = value.masked_fill(mask.bool()[..., None, None], 0.0)
    if references.dim() == 4:
        references = references.unsqueeze(3)
    # [N, Q, 1, P or 1, 2 or 4] per level.
    references = references.to(dtype).unsqueeze(2)
    turns = numbers(references.shape)[3]
    around = references.unbind(3) if turns == levels else [references[:, :, :, 0]] * levels
    parts = zip(_pairs(shapes), around, torch.split(offsets.to(dtype), counts, dim=3), counts, factors, strict=True)
    places = []
    for (height, width), reference, offset, count, factor in parts:
        *_, turns, coordinates = numbers(reference.shape)
        if turns not in (1, *numbers([count])):
            reference = reference.repeat(1, 1, 1, count // reference.shape[3], 1)
        if coordinates == 4:
            offset = offset * reference[..., 2:] * (0.5 / unwarned(max, count, 1) if factor is None else factor)
        else:
            offset = torch.stack([offset[..., 0] / width, offset[..., 1] / height], dim=-1)
        places.append(reference[..., :2] + offset)
    shares = torch.split(logits.softmax(-1, dtype=dtype), counts, dim=3)
    return _sum_of_levels(value, shapes, starts, places, shares, sample=_nearest if nearest else _interpolated)


def _sum_of_levels(
    value: Tensor,
    shapes: Any,
    starts: Any,
    places: Sequence[Tensor],
    shares: Sequence[Tensor],
    *,
    sample: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """``places`` are ``[N, Q, M, P, 2]`` per level, ``shares`` ``[N, Q, M, P]``, both of one type."""
    images, _, heads, channels = value.shape
    # [N, M * D, S]
    pixels = value.to(shares[0].dtype).flatten(2).transpose(1, 2)
    start: Any = 0
    total: Any = 0
    for level, (height, width) in enumerate(_pairs(shapes)):
        if starts is not None:
            start = starts[level]
        end = start + height * width
        image = pixels[:, :, start:end].reshape(-1, channels, height, width)
        samples = sample(image, places[level].transpose(1, 2).flatten(0, 1))
        share = shares[level].transpose(1, 2).flatten(0, 1).unsqueeze(1)
        total = total + (samples * share).sum(-1)
        start = end
    result: Tensor = total.reshape(images, heads * channels, -1).transpose(1, 2).to(value.dtype)
    return result


def _interpolated(image: Tensor, places: Tensor) -> Tensor:
    """``[N * M, D, Q, P]`` of an image ``[N * M, D, H, W]`` at ``[N * M, Q, P, 2]``."""
    return functional.grid_sample(image, 2 * places - 1, mode="bilinear", padding_mode="zeros", align_corners=False)


def _nearest(image: Tensor, places: Tensor) -> Tensor:
    """The same, of the nearest pixel: that of the border for places outside."""
    height, width = image.shape[-2:]
    column = (places[..., 0] * width + 0.5).to(torch.int64).clamp(min=0)
    row = (places[..., 1] * height + 0.5).to(torch.int64).clamp(min=0)
    # Not clamp's max: a size that is traced is a tensor.
    column = torch.where(column < width, column, width - 1)
    row = torch.where(row < height, row, height - 1)
    pixel = (row * width + column).flatten(1).unsqueeze(1).expand(-1, image.shape[1], -1)
    return torch.unflatten(image.flatten(2).gather(2, pixel), 2, places.shape[1:3])


def _for_each_level(setting: Any, levels: int) -> list[Any]:
    return list(setting) if isinstance(setting, Sequence) else [setting] * levels


def _pairs(shapes: Any) -> Any:
    """Unbound, not iterated over: a tracer warns of that."""
    return [pair.unbind() for pair in shapes.unbind()] if isinstance(shapes, Tensor) else shapes
