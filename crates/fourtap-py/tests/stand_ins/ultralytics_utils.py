"""The function that ultralytics' module calls, with levels and points in one axis or in two."""

from __future__ import annotations

from typing import Any

import reference
from torch import Tensor


def multi_scale_deformable_attn_pytorch(
    value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    if sampling_locations.dim() == 5:
        sampling_locations = sampling_locations.unflatten(3, (len(value_spatial_shapes), -1))
        attention_weights = attention_weights.unflatten(3, (len(value_spatial_shapes), -1))
    return reference.ms_deform_attn(value, value_spatial_shapes, sampling_locations, attention_weights)
