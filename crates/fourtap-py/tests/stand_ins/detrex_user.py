"""A module of detrex that imports what the operator's has."""

from __future__ import annotations

from detrex.layers.multi_scale_deform_attn import (  # type: ignore[import-not-found]
    MultiScaleDeformableAttention,
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)

__all__ = ["MultiScaleDeformableAttention", "MultiScaleDeformableAttnFunction", "multi_scale_deformable_attn_pytorch"]
