"""DCNv4's ``FlashDeformAttnFunction``, for any number of levels, points and channels, on CPUs too."""

from __future__ import annotations

import torch
from torch import Tensor

from fourtap import attention
from fourtap._tracing import length
from fourtap.errors import InputError
from fourtap.nn import SpatialShapes, accepted_type, require_shape

__all__ = ["FlashDeformAttnFunction"]


class FlashDeformAttnFunction:
    """Only ``apply``: the operator is differentiable by itself, so this need not be a ``torch.autograd.Function``."""

    @staticmethod
    def apply(
        value: Tensor,
        value_spatial_shapes: SpatialShapes,
        value_level_start_index: Tensor | None,
        sampling_loc_attn: Tensor,
        im2col_step: int = 64,
        K: int = 8,
    ) -> Tensor:
        """Attention with the softmax inside.

        Args:
            value: ``[N, S, M, D]``.
            value_spatial_shapes: ``[L, 2]``, height and width of each level.
            value_level_start_index: ``[L]``, the first pixel of each level.
            sampling_loc_attn: ``[N, Q, M, L * K * 3]``: first all locations (x, y), then all weights before the
                softmax. Use float32 for accurate locations, also with a 16-bit ``value``.
            im2col_step: Ignored.
            K: Points per level.

        Returns:
            ``[N, Q, M * D]``, differentiable with respect to ``value`` and ``sampling_loc_attn``.

        """
        if value.dim() != 4:
            raise InputError(f"value: expected shape [N, S, M, D], found {list(value.shape)}")
        levels = length(value_spatial_shapes)
        samples = levels * K
        require_shape("sampling_loc_attn", sampling_loc_attn, [value.shape[0], "Q", value.shape[2], samples * 3])
        locations, logits = torch.split(accepted_type(sampling_loc_attn, value), [samples * 2, samples], dim=-1)
        # In parts of a box around a corner of it that is the image's, a location is an offset.
        image = value.new_zeros((1, 1, 1, 4), dtype=torch.float32)
        image[..., 2:].fill_(1.0)
        return attention.ms_deform_attn_from_projections(
            value,
            value_spatial_shapes,
            image,
            torch.unflatten(locations, -1, (samples, 2)),
            logits,
            points_per_level=K,
            box_scale=1.0,
            level_start_index=value_level_start_index,
        )
