"""detrex's module of the operator, which puts a class that raises in place of its own without the extension.

All else is written as in mmcv, which it is a copy of; only its extension returns gradients.
"""

from __future__ import annotations

from typing import Any

import reference
import torch
from torch import Tensor, nn
from torch.autograd import Function


class MultiScaleDeformableAttnFunction(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *others: Any) -> Any:
        ctx.step = others[-1]
        ctx.save_for_backward(value, *others[:-1])
        return _C.ms_deform_attn_forward(value, *others)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        found = _C.ms_deform_attn_backward(*ctx.saved_tensors, grad_output.contiguous(), ctx.step)
        return found[0], None, None, found[1], found[2], None


def multi_scale_deformable_attn_pytorch(
    value: Tensor, value_spatial_shapes: Tensor, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    return reference.ms_deform_attn(value, value_spatial_shapes.tolist(), sampling_locations, attention_weights)


class MultiScaleDeformableAttention(nn.Module):
    def __init__(
        self, embed_dims: int, num_heads: int, num_levels: int, num_points: int, batch_first: bool = False
    ) -> None:
        super().__init__()
        self.embed_dims, self.num_heads, self.batch_first = embed_dims, num_heads, batch_first
        self.num_levels, self.num_points, self.im2col_step = num_levels, num_points, 64
        self.dropout = nn.Dropout(0.0)
        self.sampling_offsets = nn.Linear(embed_dims, num_heads * num_levels * num_points * 2)
        self.attention_weights = nn.Linear(embed_dims, num_heads * num_levels * num_points)
        self.value_proj, self.output_proj = nn.Linear(embed_dims, embed_dims), nn.Linear(embed_dims, embed_dims)

    def forward(
        self,
        query: Tensor,
        key: Any = None,
        value: Any = None,
        identity: Any = None,
        query_pos: Any = None,
        key_padding_mask: Any = None,
        reference_points: Any = None,
        spatial_shapes: Any = None,
        level_start_index: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        if not self.batch_first:
            query, value = query.permute(1, 0, 2), value.permute(1, 0, 2)
        images, queries, pixels = query.shape[0], query.shape[1], value.shape[1]
        if (spatial_shapes[:, 0] * spatial_shapes[:, 1]).sum() != pixels:
            raise ValueError
        value = self.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask[..., None], 0.0)
        value = value.view(images, pixels, self.num_heads, -1)
        sizes = (images, queries, self.num_heads, self.num_levels, self.num_points)
        offsets = self.sampling_offsets(query).view(*sizes, 2)
        weights = self.attention_weights(query).view(images, queries, self.num_heads, -1).softmax(-1).view(sizes)
        centres = reference_points[:, :, None, :, None, :2]
        if reference_points.shape[-1] == 2:
            locations = centres + offsets / torch.stack([spatial_shapes[:, 1], spatial_shapes[:, 0]], -1)[:, None]
        else:
            locations = centres + offsets / self.num_points * reference_points[:, :, None, :, None, 2:] * 0.5
        if value.is_cuda:
            operands = (value, spatial_shapes, level_start_index, locations, weights, self.im2col_step)
            output = MultiScaleDeformableAttnFunction.apply(*operands)
        else:
            output = multi_scale_deformable_attn_pytorch(value, spatial_shapes, locations, weights)
        output = self.output_proj(output)
        if not self.batch_first:
            output = output.permute(1, 0, 2)
        dropped: Tensor = self.dropout(output)
        return dropped + identity


class _Raising(type):
    def __getattr__(cls, name: str) -> Any:
        raise ImportError("Cannot import 'detrex._C'")


try:
    from detrex import _C  # type: ignore[import-not-found]
except ImportError:

    class _Dummy(metaclass=_Raising):
        def __init__(self, *arguments: Any) -> None:
            raise ImportError("Cannot import 'detrex._C'")

    MultiScaleDeformableAttention = _Dummy  # type: ignore[assignment,misc]
