"""RT-DETRv2's module, as it is written: ``forward`` uses the names that the original does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dfine_decoder import Listed


class MSDeformableAttention(Listed):
    def __init__(self, embed_dim: int, *others: Any, **options: Any) -> None:
        super().__init__(embed_dim, *others, **options)
        self.value_proj, self.output_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        value: Any,
        value_spatial_shapes: Any,
        value_mask: Any = None,
    ) -> Tensor:
        value = self.value_proj(value)
        if value_mask is not None:
            value = value * value_mask.to(value.dtype).unsqueeze(-1)
        value = value.reshape(value.shape[0], value.shape[1], self.num_heads, self.head_dim)
        sizes = (query.shape[0], query.shape[1], self.num_heads, sum(self.num_points_list))
        offsets = self.sampling_offsets(query).reshape(*sizes, 2)
        weights = F.softmax(self.attention_weights(query).reshape(sizes), dim=-1)
        if reference_points.shape[-1] == 2:
            steps = torch.tensor(value_spatial_shapes).flip([1]).reshape(1, 1, 1, self.num_levels, 1, 2)
            locations = reference_points[:, :, None, :, None] + offsets / steps
        else:
            scale = self.num_points_scale.to(dtype=query.dtype).unsqueeze(-1)
            around = reference_points[:, :, None]
            locations = around[..., :2] + offsets * scale * around[..., 2:] * self.offset_scale
        core = self.ms_deformable_attn_core
        attended = core(value, value_spatial_shapes, locations, weights, self.num_points_list)
        output: Tensor = self.output_proj(attended)
        return output
