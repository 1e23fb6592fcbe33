"""The functions of RT-DETR's, D-FINE's and DEIM's repositories."""

from __future__ import annotations

from typing import Any

import reference
import torch
from torch import Tensor


def deformable_attention_core_func(
    value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    return reference.ms_deform_attn(value, value_spatial_shapes, sampling_locations, attention_weights)


def deformable_attention_core_func_v2(
    value: Any,
    value_spatial_shapes: Any,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Any,
    method: str = "default",
) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.cat(list(value), dim=-1).permute(0, 3, 1, 2)
    total: Any = 0
    ends = [sum(num_points_list[: level + 1]) for level in range(len(num_points_list))]
    first = 0
    for (height, width), count, end in zip(value_spatial_shapes, num_points_list, ends, strict=True):
        pixels = value[:, first : first + height * width]
        first += height * width
        places, weights = (tensor[:, :, :, end - count : end] for tensor in (sampling_locations, attention_weights))
        if method == "default":
            size = [(height, width)]
            total = total + reference.ms_deform_attn(pixels, size, places.unsqueeze(3), weights.unsqueeze(3))
            continue
        # They clamp columns as if the level were a square.
        steps = torch.tensor([width, height], device=value.device)
        nearest = (places * steps + 0.5).to(torch.int64).clamp(0, height - 1)
        images, heads = (torch.arange(size, device=value.device) for size in (value.shape[0], value.shape[2]))
        found = pixels[images[:, None, None, None], nearest[..., 1] * width + nearest[..., 0], heads[:, None]]
        total = total + (found * weights[..., None]).sum(-2).flatten(2)
    result: Tensor = total
    return result
