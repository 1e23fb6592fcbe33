"""The original Grounding DINO, package or repository ``groundingdino``, without its extension ``groundingdino._C``.

To run it as it is, without building anything::

    import fourtap.compat.groundingdino
    fourtap.compat.groundingdino.patch()  # before or after its own imports

"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from fourtap.compat._drop_in import Replacements, replace_forward
from fourtap.compat._extension import Extension
from fourtap.compat._mmcv_trials import module_cases, require_same_autograd_function, require_same_function
from fourtap.compat._package import Package
from fourtap.compat.deformable_detr import (
    FUNCTIONS,
    MSDeformAttnFunction,
    ms_deform_attn_backward,
    ms_deform_attn_core_pytorch,
    ms_deform_attn_forward,
)
from fourtap.errors import InputError
from fourtap.nn import SpatialShapes, attend_with_layers

__all__ = [
    "MultiScaleDeformableAttnFunction",
    "install",
    "ms_deform_attn_backward",
    "ms_deform_attn_forward",
    "multi_scale_deformable_attn_pytorch",
    "patch",
    "uninstall",
    "unpatch",
]

MultiScaleDeformableAttnFunction = MSDeformAttnFunction
multi_scale_deformable_attn_pytorch = ms_deform_attn_core_pytorch

_extension = Extension("groundingdino._C", FUNCTIONS)


def install(*, force: bool = False) -> None:
    """Makes ``from groundingdino import _C`` load fourtap; nothing else changes. :func:`patch` does this, and more.

    Args:
        force: If the real extension is imported already, replace its two functions in place.
            Without this it is an error, since code that imported the extension meant to use it.

    Example:
        >>> import sys
        >>> from fourtap.compat import groundingdino
        >>> groundingdino.install()
        >>> sys.modules["groundingdino._C"].ms_deform_attn_forward is groundingdino.ms_deform_attn_forward
        True
        >>> groundingdino.uninstall()

    """
    _extension.install(force=force)


def uninstall() -> None:
    """Undoes :func:`install`."""
    _extension.uninstall()


def patch(*, strict: bool = False) -> list[str]:
    """Makes Grounding DINO call fourtap, imported before or after; also in models that exist already.

    It stands in for the extension unless that is imported already, and replaces the function, the autograd function and
    the ``forward`` of the module; class names and checkpoints stay as they are. What computes something else than
    fourtap does is left alone: both are tried on small cases first.

    Args:
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``;
            also in modules that are imported later.

    Returns:
        The names of what is replaced now, in the modules that are imported.

    Raises:
        fourtap.UnsupportedError: There is no groundingdino; or with ``strict``, and then nothing is replaced.

    """
    names = _package.patch(strict=strict)
    if "groundingdino._C" not in sys.modules:
        # Even where one is built: its import fails as soon as PyTorch is another than it was built for.
        install()
    return names


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _package.unpatch()
    uninstall()


def _change(home: ModuleType, replaced: Replacements) -> None:
    ours: Any = MultiScaleDeformableAttnFunction
    replaced.try_everywhere(home, "MultiScaleDeformableAttnFunction", ours, require_same_autograd_function)
    ours = multi_scale_deformable_attn_pytorch
    replaced.try_everywhere(home, "multi_scale_deformable_attn_pytorch", ours, require_same_function)
    if vars(home).get("multi_scale_deformable_attn_pytorch") is ours:
        forward = functools.partial(_from_projections, home)
        cases = functools.partial(module_cases, added=False)
        replace_forward(replaced, home, "MultiScaleDeformableAttention", forward, cases)


_package = Package("groundingdino", ["groundingdino.models.GroundingDINO.ms_deform_attn"], _change)


def _from_projections(home: ModuleType, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Their module from its projections on: no locations and no softmax in between."""

    @functools.wraps(original)
    def forward(
        self: Any,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        query_pos: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        reference_points: Tensor | None = None,
        spatial_shapes: SpatialShapes | None = None,
        level_start_index: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        # Somebody who puts a function of their own there wants it to be called.
        ours = vars(home).get("multi_scale_deformable_attn_pytorch") is multi_scale_deformable_attn_pytorch
        if not ours or query.device.type not in ("cpu", "cuda"):
            levels = (reference_points, spatial_shapes, level_start_index)
            return original(self, query, key, value, query_pos, key_padding_mask, *levels, **kwargs)
        if reference_points is None or spatial_shapes is None:
            missing = "reference_points" if reference_points is None else "spatial_shapes"
            raise InputError(f"{missing}: expected a tensor, found None")
        if value is None:
            value = query
        if query_pos is not None:
            query = query + query_pos
        if not self.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        output = attend_with_layers(
            self,
            query,
            reference_points,
            value,
            spatial_shapes,
            level_start_index,
            key_padding_mask,
            channels=self.embed_dim,
            heads=self.num_heads,
            levels=self.num_levels,
            points=self.num_points,
            names={"value_mask": "key_padding_mask"},
        )
        return output if self.batch_first else output.transpose(0, 1)

    return forward
