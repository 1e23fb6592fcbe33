"""RT-DETR of ultralytics: its attention module, and the function that this calls.

To make it use fourtap, in models loaded before or after::

    import fourtap.compat.ultralytics
    fourtap.compat.ultralytics.patch()

"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from fourtap._tracing import length
from fourtap.compat._drop_in import Replacements, attend, replace_forward, takes_the_same
from fourtap.compat._package import Package
from fourtap.errors import InputError
from fourtap.nn import SpatialShapes, attend_with_layers

__all__ = ["multi_scale_deformable_attn_pytorch", "patch", "unpatch"]

_NAMES = {"reference_points": "refer_bbox", "spatial_shapes": "value_shapes"}


def multi_scale_deformable_attn_pytorch(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The function that their module calls.

    Args:
        value: ``[N, S, M, D]``.
        value_spatial_shapes: ``[L, 2]``, height and width of each level.
        sampling_locations: ``[N, Q, M, L * P, 2]``; or ``[N, Q, M, L, P, 2]``, as older versions have them.
        attention_weights: ``[N, Q, M, L * P]`` or ``[N, Q, M, L, P]``, alike.

    Returns:
        ``[N, Q, M * D]``, differentiable with respect to value, locations and weights.

    Example:
        >>> import torch
        >>> from fourtap.compat.ultralytics import multi_scale_deformable_attn_pytorch
        >>> value = torch.rand(1, 8 * 12 + 4 * 6, 8, 32)
        >>> locations, weights = torch.rand(1, 10, 8, 2 * 4, 2), torch.rand(1, 10, 8, 2 * 4)
        >>> multi_scale_deformable_attn_pytorch(value, [(8, 12), (4, 6)], locations, weights).shape
        torch.Size([1, 10, 256])

    """
    if sampling_locations.dim() == 5:
        levels = length(value_spatial_shapes)
        if sampling_locations.shape[3] % levels != 0 or attention_weights.shape[3:] != sampling_locations.shape[3:4]:
            raise InputError(
                f"sampling_locations: expected shape [N, Q, M, K, 2] and attention_weights [N, Q, M, K], K a multiple "
                f"of {levels} levels, found {list(sampling_locations.shape)} and {list(attention_weights.shape)}"
            )
        sampling_locations = torch.unflatten(sampling_locations, 3, (levels, -1))
        attention_weights = torch.unflatten(attention_weights, 3, (levels, -1))
    return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def patch() -> list[str]:
    """Makes ultralytics call fourtap, imported before or after; also in models that exist already.

    It replaces the body of the function, so that everybody who imported it calls the new one, and the ``forward`` of
    ``MSDeformAttn`` where that is one we know. Compile models afterwards, and export them after :func:`unpatch`.

    Returns:
        The names of what is replaced now, in the modules that are imported.

    Raises:
        fourtap.UnsupportedError: There is no ultralytics.

    """
    return _package.patch()


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _package.unpatch()


# What the ``forward`` of their module uses in every version, and what some versions use beside it.
_ALWAYS = frozenset(
    "F as_tensor attention_weights flip masked_fill multi_scale_deformable_attn_pytorch n_heads n_levels n_points "
    "output_proj sampling_offsets shape softmax sum torch value_proj view".split()
)
_SOMETIMES = frozenset("ValueError d_model device dtype expand float reshape".split())


def _change(home: ModuleType, replaced: Replacements) -> None:
    function = vars(home).get("multi_scale_deformable_attn_pytorch")
    if not isinstance(function, FunctionType):
        return
    if not function.__closure__ and takes_the_same(function, multi_scale_deformable_attn_pytorch):
        replaced.set_code(f"{function.__module__}.{function.__name__}", function, _forwarding.__code__)
    ours = functools.partial(_from_projections, home, function)
    replace_forward(replaced, home, "MSDeformAttn", _ALWAYS, _SOMETIMES, ours)


_package = Package("ultralytics", ["ultralytics.nn.modules.utils", "ultralytics.nn.modules.transformer"], _change)


# This body runs in the module of the function that gets it, so it can use nothing of this one.
def _forwarding(
    value: Tensor, value_spatial_shapes: Any, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    from fourtap.compat.ultralytics import multi_scale_deformable_attn_pytorch as ours

    return ours(value, value_spatial_shapes, sampling_locations, attention_weights)


def _from_projections(
    home: ModuleType, function: FunctionType, original: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """Their module from its projections on: no locations and no softmax in between."""

    @functools.wraps(original)
    def forward(
        self: Any,
        query: Tensor,
        refer_bbox: Tensor,
        value: Tensor,
        value_shapes: SpatialShapes,
        value_mask: Tensor | None = None,
    ) -> Tensor:
        # Somebody who puts a function of their own there wants it to be called.
        ours = vars(home).get("multi_scale_deformable_attn_pytorch") is function
        if not ours or query.device.type not in ("cpu", "cuda"):
            return original(self, query, refer_bbox, value, value_shapes, value_mask)
        return attend_with_layers(
            self,
            query,
            refer_bbox,
            value,
            value_shapes,
            None,
            value_mask,
            channels=self.d_model,
            heads=self.n_heads,
            levels=self.n_levels,
            points=self.n_points,
            names=_NAMES,
        )

    return forward
