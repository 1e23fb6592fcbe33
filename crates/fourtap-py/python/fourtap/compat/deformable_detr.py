"""Deformable DETR's operator and module, and the extension that its repository and many others build.

To run such a repository as it is, without building anything::

    import fourtap.compat.deformable_detr
    fourtap.compat.deformable_detr.install()  # before its own imports

"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType

from torch import Tensor

from fourtap import attention
from fourtap.compat._drop_in import Replacements, attend
from fourtap.errors import UnsupportedError
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

_EXTENSION = "MultiScaleDeformableAttention"
_replaced = Replacements()


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
    functions = {
        "ms_deform_attn_forward": ms_deform_attn_forward,
        "ms_deform_attn_backward": ms_deform_attn_backward,
    }
    extension = sys.modules.get(_EXTENSION)
    if extension is None:
        extension = ModuleType(_EXTENSION, f"fourtap in place of the extension {_EXTENSION}.")
        # importlib.util.find_spec, which some use to test for the extension, fails on modules without a spec.
        extension.__spec__ = importlib.machinery.ModuleSpec(_EXTENSION, loader=None, origin=__name__)
        vars(extension).update(functions)
        _replaced.set_item(_EXTENSION, sys.modules, _EXTENSION, extension)
        return
    if all(getattr(extension, name, None) is function for name, function in functions.items()):
        return
    if not force:
        origin = getattr(extension, "__file__", None) or "an unknown place"
        raise UnsupportedError(
            f"{_EXTENSION}: expected not to be imported yet, found it imported from {origin}; call install() before "
            "whatever imports it, or install(force=True) to replace its functions"
        )
    for name, function in functions.items():
        _replaced.set_attribute(f"{_EXTENSION}.{name}", extension, name, function)


def uninstall() -> None:
    """Undoes :func:`install`."""
    _replaced.undo()
