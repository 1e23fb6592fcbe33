"""The module of D-FINE and DEIM, as it is written: ``forward`` uses the names that the original does."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .utils import deformable_attention_core_func_v2  # type: ignore[import-not-found]


class Listed(nn.Module):
    """What RT-DETRv2's module has, too."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_levels: int,
        num_points: list[int],
        method: str = "default",
        offset_scale: float = 0.5,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.num_levels, self.num_points_list, self.offset_scale = num_levels, num_points, offset_scale
        scales = [1 / count for count in num_points for _ in range(count)]
        self.register_buffer("num_points_scale", torch.tensor(scales, dtype=torch.float64))
        self.method = method
        self.sampling_offsets = nn.Linear(embed_dim, num_heads * sum(num_points) * 2)
        self.attention_weights = nn.Linear(embed_dim, num_heads * sum(num_points))
        self.ms_deformable_attn_core = functools.partial(deformable_attention_core_func_v2, method=method)


class MSDeformableAttention(Listed):
    def forward(self, query: Tensor, reference_points: Tensor, value: Any, value_spatial_shapes: Any) -> Tensor:
        sizes = (query.shape[0], query.shape[1], self.num_heads, sum(self.num_points_list))
        offsets = self.sampling_offsets(query).reshape(*sizes, 2)
        weights = F.softmax(self.attention_weights(query).reshape(sizes), dim=-1)
        if reference_points.shape[-1] == 2:
            # The shapes do not fit each other, nor do the original's.
            steps = torch.tensor(value_spatial_shapes).flip([1]).reshape(1, 1, 1, self.num_levels, 1, 2)
            locations = reference_points[:, :, None, :, None] + offsets / steps
        else:
            scale = self.num_points_scale.to(dtype=query.dtype).unsqueeze(-1)
            around = reference_points[:, :, None]
            locations = around[..., :2] + offsets * scale * around[..., 2:] * self.offset_scale
        core = self.ms_deformable_attn_core
        return core(value, value_spatial_shapes, locations, weights, self.num_points_list)  # type: ignore[no-any-return]
