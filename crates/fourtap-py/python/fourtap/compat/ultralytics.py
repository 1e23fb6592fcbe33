"""RT-DETR of ultralytics: its attention module, and the function that this calls.

To make it use fourtap, in models loaded before or after::

    import fourtap.compat.ultralytics
    fourtap.compat.ultralytics.patch()

"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap._tracing import length
from fourtap.compat import _trial_cases as cases
from fourtap.compat._drop_in import Replacements, attend, replace_forward
from fourtap.compat._package import Package
from fourtap.compat._trial import (
    Case,
    bare_module,
    require_agreement,
    require_plain_function,
    require_same_arguments,
)
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


def patch(*, strict: bool = False) -> list[str]:
    """Makes ultralytics call fourtap, imported before or after; also in models that exist already.

    It replaces the body of the function, so that everybody who imported it calls the new one, and the ``forward`` of
    ``MSDeformAttn``. What computes something else than fourtap does is left alone: both are tried on small cases first.
    Compile models afterwards, and export them after :func:`unpatch`.

    Args:
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``;
            also in modules that are imported later.

    Returns:
        The names of what is replaced now, in the modules that are imported.

    Raises:
        fourtap.UnsupportedError: There is no ultralytics; or with ``strict``, and then nothing is replaced.

    """
    return _package.patch(strict=strict)


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _package.unpatch()


def _change(home: ModuleType, replaced: Replacements) -> None:
    function = vars(home).get("multi_scale_deformable_attn_pytorch")
    if not isinstance(function, FunctionType):
        return
    replaced.try_code(f"{function.__module__}.{function.__name__}", function, functools.partial(_body_for, function))
    if function.__code__ is _forwarding.__code__:
        ours = functools.partial(_from_projections, home, function)
        replace_forward(replaced, home, "MSDeformAttn", ours, _cases)


def _body_for(function: FunctionType) -> CodeType:
    ours = multi_scale_deformable_attn_pytorch
    require_plain_function(function)
    require_same_arguments(function, ours)
    # Versions differ in the axes of locations.
    require_agreement(function, ours, cases.function_cases(joined=(True, False)))
    return _forwarding.__code__


def _cases(owner: type[nn.Module]) -> Iterator[Case]:
    attributes = {
        "d_model": cases.CHANNELS,
        "n_heads": cases.HEADS,
        "n_levels": len(cases.SHAPES),
        "n_points": cases.POINTS,
        "im2col_step": 64,
        **cases.layers(len(cases.SHAPES) * cases.POINTS),
    }

    def call(function: Callable[..., Any], module: nn.Module, given: Mapping[str, Tensor | None]) -> Any:
        shapes = [list(shape) for shape in cases.SHAPES]
        mask = () if given["padding"] is None else (given["padding"],)
        return function(module, given["query"], given["references"], given["features"], shapes, *mask)

    for levels in (False, True):
        for operands in cases.operands(levels=levels):
            module = bare_module(owner, attributes, training=operands.training)
            # The versions with one axis for levels and points take one reference for all levels only.
            yield operands.case(module, call, optional=levels)


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
