"""RF-DETR's module and function, as they are written: ``forward`` uses the names that the original does."""

from __future__ import annotations

from typing import Any

import reference
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def ms_deform_attn_core_pytorch(
    value: Tensor,
    value_spatial_shapes: Any,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    value_spatial_shapes_hw: Any = None,
) -> Tensor:
    shapes = value_spatial_shapes_hw or value_spatial_shapes.tolist()
    if sampling_locations.dim() == 5:
        sampling_locations = sampling_locations.unflatten(3, (len(shapes), -1))
    weights = attention_weights.unflatten(3, (len(shapes), -1))
    return reference.ms_deform_attn(value.permute(0, 3, 1, 2), shapes, sampling_locations, weights)


class MSDeformAttn(nn.Module):
    def __init__(self, d_model: int, n_levels: int, n_heads: int, n_points: int) -> None:
        super().__init__()
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self._export = False
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj, self.output_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(
        self,
        query: Tensor,
        reference_points: Any,
        input_flatten: Any,
        input_spatial_shapes: Any,
        input_level_start_index: Any,
        input_padding_mask: Any = None,
        input_spatial_shapes_hw: Any = None,
    ) -> Tensor:
        batch, queries, _ = query.shape
        assert (input_spatial_shapes[:, 0] * input_spatial_shapes[:, 1]).sum() == input_flatten.shape[1]
        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)
        value = value.transpose(1, 2).contiguous().view(batch, self.n_heads, self.d_model // self.n_heads, -1)
        weights = F.softmax(self.attention_weights(query).view(batch, queries, self.n_heads, -1), -1)
        offsets = self.sampling_offsets(query).view(batch, queries, self.n_heads, self.n_levels, self.n_points, 2)
        around = reference_points[:, :, None, :, None]
        if reference_points.shape[-1] == 2:
            steps = torch.stack([input_spatial_shapes[:, 1], input_spatial_shapes[:, 0]], -1)
            locations = around + offsets / steps[:, None]
        else:
            locations = around[..., :2] + offsets / self.n_points * around[..., 2:] * 0.5
        if self._export:
            locations = locations.view(batch, queries, self.n_heads, self.n_levels * self.n_points, 2)
        operands = (value, input_spatial_shapes, locations, weights, input_spatial_shapes_hw)
        output: Tensor = self.output_proj(ms_deform_attn_core_pytorch(*operands))
        return output
