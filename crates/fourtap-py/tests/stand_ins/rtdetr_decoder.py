"""RT-DETR's module, as it is written: ``forward`` uses the names that the original does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .utils import deformable_attention_core_func  # type: ignore[import-not-found]


class MSDeformableAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, num_levels: int, num_points: int) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.num_levels, self.num_points = num_levels, num_points
        self.sampling_offsets = nn.Linear(embed_dim, num_heads * num_levels * num_points * 2)
        self.attention_weights = nn.Linear(embed_dim, num_heads * num_levels * num_points)
        self.value_proj, self.output_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.ms_deformable_attn_core = deformable_attention_core_func

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        value: Tensor,
        value_spatial_shapes: Any,
        value_mask: Any = None,
    ) -> Tensor:
        value = self.value_proj(value)
        if value_mask is not None:
            value = value * value_mask.unsqueeze(-1)
        value = value.reshape(value.shape[0], value.shape[1], self.num_heads, self.head_dim)
        sizes = (query.shape[0], query.shape[1], self.num_heads, self.num_levels, self.num_points)
        offsets = self.sampling_offsets(query).reshape(*sizes, 2)
        weights = F.softmax(self.attention_weights(query).reshape(*sizes[:3], -1), dim=-1).reshape(sizes)
        around = reference_points[:, :, None, :, None]
        if reference_points.shape[-1] == 2:
            steps = torch.tensor(value_spatial_shapes).flip([1])
            locations = around + offsets / steps[:, None]
        else:
            locations = around[..., :2] + offsets / self.num_points * around[..., 2:] * 0.5
        output: Tensor = self.output_proj(self.ms_deformable_attn_core(value, value_spatial_shapes, locations, weights))
        return output
