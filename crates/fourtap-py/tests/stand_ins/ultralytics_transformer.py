"""ultralytics' module, as it is written: ``forward`` uses the names that the original does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .utils import multi_scale_deformable_attn_pytorch  # type: ignore[import-not-found]


class MSDeformAttn(nn.Module):
    def __init__(self, d_model: int, n_levels: int, n_heads: int, n_points: int) -> None:
        super().__init__()
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj, self.output_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, refer_bbox: Any, value: Any, value_shapes: Any, value_mask: Any = None) -> Tensor:
        assert sum(shape[0] * shape[1] for shape in value_shapes) == value.shape[1]
        value = self.value_proj(value)
        if value_mask is not None:
            value = value.masked_fill(value_mask[..., None], 0.0)
        value = value.view(value.shape[0], value.shape[1], self.n_heads, -1)
        sizes = (query.shape[0], query.shape[1], self.n_heads, self.n_levels * self.n_points)
        offsets = self.sampling_offsets(query).view(*sizes, 2)
        weights = F.softmax(self.attention_weights(query).view(sizes), -1)
        around = refer_bbox[:, :, None]
        if refer_bbox.shape[-1] == 2:
            steps = torch.as_tensor(value_shapes, dtype=query.dtype, device=query.device).flip(-1)
            steps = steps[:, None].expand(-1, self.n_points, -1).reshape(-1, 2)
            locations = around + offsets / steps
        else:
            locations = around[..., :2] + offsets / self.n_points * around[..., 2:] * 0.5
        output: Tensor = self.output_proj(multi_scale_deformable_attn_pytorch(value, value_shapes, locations, weights))
        return output
