"""Deformable DETR's operator and module, and the extension that its repository and many others build.

To run such a repository as it is, without building anything::

    import fourtap.compat.deformable_detr
    fourtap.compat.deformable_detr.install()  # before its own imports

"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fourtap import attention
from fourtap.compat._drop_in import attend
from fourtap.compat._extension import Extension
from fourtap.nn import MSDeformAttn, SpatialShapes, accepted_type

__all__ = [
    "MSDeformAttn",
    "MSDeformAttnFunction",
    "install",
    "ms_deform_attn_backward",
    "ms_deform_attn_core_pytorch",
    "ms_deform_attn_forward",
    "uninstall",
]


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int = 64,
) -> Tensor:
    """``[N, Q, M * D]``; arguments as :func:`fourtap.ms_deform_attn`, in the extension's order."""
    return attend(value, spatial_shapes, level_start_index, sampling_loc, attn_weight)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    im2col_step: int = 64,
) -> list[Tensor]:
    """The gradients of value, locations and weights."""
    gradients = attention.ms_deform_attn_backward(
        grad_output,
        value,
        spatial_shapes,
        accepted_type(sampling_loc, value),
        accepted_type(attn_weight, value),
        level_start_index=level_start_index,
    )
    return list(gradients)


class MSDeformAttnFunction:
    """Only ``apply``: the operator is differentiable by itself, so this need not be a ``torch.autograd.Function``."""

    @staticmethod
    def apply(
        value: Tensor,
        value_spatial_shapes: SpatialShapes,
        value_level_start_index: Tensor | None,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int = 64,
    ) -> Tensor:
        """``[N, Q, M * D]``, differentiable with respect to value, locations and weights."""
        return attend(value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights)


def ms_deform_attn_core_pytorch(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """What the original offers for checking its kernels and for CPUs; here the same operator as the others."""
    return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def install(*, force: bool = False) -> None:
    """Makes ``import MultiScaleDeformableAttention`` load fourtap, so that repositories that need it run unchanged.

    Args:
        force: If the real extension is imported already, replace its two functions in place.
            Without this it is an error, since code that imported the extension meant to use it.

    Example:
        >>> from fourtap.compat import deformable_detr
        >>> deformable_detr.install()
        >>> import MultiScaleDeformableAttention as MSDA
        >>> MSDA.ms_deform_attn_forward is deformable_detr.ms_deform_attn_forward
        True
        >>> deformable_detr.uninstall()

    """
    _extension.install(force=force)


def uninstall() -> None:
    """Undoes :func:`install`."""
    _extension.uninstall()


# What is in the extension, and in others that do the same.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ms_deform_attn_forward": ms_deform_attn_forward,
    "ms_deform_attn_backward": ms_deform_attn_backward,
}
_extension = Extension("MultiScaleDeformableAttention", FUNCTIONS)
