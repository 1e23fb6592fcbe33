"""Roboflow's RF-DETR, package ``rfdetr``: its attention module.

To make it use fourtap, in models loaded before or after::

    import fourtap.compat.rfdetr
    fourtap.compat.rfdetr.patch()

"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap._tracing import length
from fourtap.compat import _trial_cases as cases
from fourtap.compat._drop_in import Replacements, attend, replace_forward
from fourtap.compat._package import Package
from fourtap.compat._trial import Case, bare_module, require_agreement, require_arguments
from fourtap.errors import InputError
from fourtap.nn import INPUT_NAMES, SpatialShapes, attend_with_layers

__all__ = ["ms_deform_attn_core_pytorch", "patch", "unpatch"]


def ms_deform_attn_core_pytorch(
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    value_spatial_shapes_hw: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """The function that their module calls.

    Args:
        value: ``[N, M, D, S]``.
        value_spatial_shapes: ``[L, 2]``, height and width of each level.
        sampling_locations: ``[N, Q, M, L, P, 2]`` or ``[N, Q, M, L * P, 2]``.
        attention_weights: ``[N, Q, M, L * P]``.
        value_spatial_shapes_hw: Used instead of ``value_spatial_shapes``, if given.

    Returns:
        ``[N, Q, M * D]``, differentiable with respect to value, locations and weights.

    Example:
        >>> import torch
        >>> from fourtap.compat.rfdetr import ms_deform_attn_core_pytorch
        >>> value = torch.rand(1, 8, 32, 8 * 12 + 4 * 6)
        >>> locations, weights = torch.rand(1, 10, 8, 2, 4, 2), torch.rand(1, 10, 8, 2 * 4)
        >>> ms_deform_attn_core_pytorch(value, [(8, 12), (4, 6)], locations, weights).shape
        torch.Size([1, 10, 256])

    """
    shapes = value_spatial_shapes if value_spatial_shapes_hw is None else value_spatial_shapes_hw
    levels = length(shapes)
    if value.dim() != 4:
        raise InputError(f"value: expected shape [N, M, D, S], found {list(value.shape)}")
    if attention_weights.dim() != 4 or attention_weights.shape[3] % levels != 0:
        expected = f"[N, Q, M, K], K a multiple of {levels} levels"
        raise InputError(f"attention_weights: expected shape {expected}, found {list(attention_weights.shape)}")
    points = attention_weights.shape[3] // levels
    if sampling_locations.dim() == 5 and sampling_locations.shape[3] == levels * points:
        sampling_locations = torch.unflatten(sampling_locations, 3, (levels, points))
    weights = torch.unflatten(attention_weights, 3, (levels, points))
    return attend(value.permute(0, 3, 1, 2), shapes, None, sampling_locations, weights)


def patch(*, strict: bool = False) -> list[str]:
    """Makes rfdetr call fourtap, imported before or after; also in models that exist already.

    It replaces the ``forward`` of ``MSDeformAttn``, or else the function that it calls. What computes something else
    than fourtap does is left alone: both are tried on small cases first. A model that is exported
    (``model.export()``) computes as it did before. Compile models afterwards.

    Args:
        strict: Whether it is an error that something is left alone, instead of a line in the log of ``fourtap.compat``;
            also in modules that are imported later.

    Returns:
        The names of what is replaced now, in the modules that are imported.

    Raises:
        fourtap.UnsupportedError: There is no rfdetr; or with ``strict``, and then nothing is replaced.

    """
    return _package.patch(strict=strict)


def unpatch() -> None:
    """Undoes :func:`patch`."""
    _package.unpatch()


def _change(home: ModuleType, replaced: Replacements) -> None:
    function = "ms_deform_attn_core_pytorch"
    replace_forward(replaced, home, "MSDeformAttn", functools.partial(_from_projections, home), _cases)
    if f"{home.__name__}.MSDeformAttn.forward" not in replaced.names:
        replaced.try_everywhere(home, function, ms_deform_attn_core_pytorch, _require_same_function)


def _require_same_function(theirs: Callable[..., Tensor]) -> None:
    # Older versions do without the last argument.
    require_arguments(theirs, inspect.signature(ms_deform_attn_core_pytorch).parameters)
    require_agreement(theirs, ms_deform_attn_core_pytorch, _function_cases())


def _function_cases() -> Iterator[Case]:
    tensors = cases.core_tensors((len(cases.SHAPES), cases.POINTS))

    def call(function: Callable[..., Any], given: Mapping[str, Tensor], joined: bool) -> Any:
        value, locations = given["value"].permute(0, 2, 3, 1).contiguous(), given["locations"]
        locations = locations.flatten(3, 4) if joined else locations
        return function(value, cases.tensor_of(), locations, given["weights"].flatten(3))

    for joined in (False, True):
        words = f"points inside and outside{', in one axis with levels' if joined else ''}"
        yield Case(words, tensors, functools.partial(call, joined=joined), optional=joined)


def _cases(owner: type[nn.Module]) -> Iterator[Case]:
    attributes = {
        "d_model": cases.CHANNELS,
        "n_heads": cases.HEADS,
        "n_levels": len(cases.SHAPES),
        "n_points": cases.POINTS,
        "im2col_step": 64,
        "_export": False,
        **cases.layers(len(cases.SHAPES) * cases.POINTS),
    }
    original = vars(owner)["forward"]
    takes_list = "input_spatial_shapes_hw" in inspect.signature(original).parameters

    def call(function: Callable[..., Any], module: nn.Module, given: Mapping[str, Tensor | None], listed: bool) -> Any:
        levels = (cases.tensor_of(), cases.starts_of())
        named = {"input_spatial_shapes_hw": list(cases.SHAPES)} if listed else {}
        mask = () if given["padding"] is None else (given["padding"],)
        return function(module, given["query"], given["references"], given["features"], *levels, *mask, **named)

    for listed in (False, True) if takes_list else (False,):
        for operands in cases.operands():
            module = bare_module(owner, attributes, training=operands.training)
            yield operands.case(module, functools.partial(call, listed=listed))


_package = Package("rfdetr", ["rfdetr.models.ops.modules.ms_deform_attn"], _change)


def _from_projections(home: ModuleType, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Their module from its projections on: no locations and no softmax in between."""
    function = vars(home).get("ms_deform_attn_core_pytorch")

    @functools.wraps(original)
    def forward(
        self: Any,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: SpatialShapes,
        input_level_start_index: Tensor | None = None,
        input_padding_mask: Tensor | None = None,
        input_spatial_shapes_hw: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        # What is exported should have PyTorch's own operators in it. And somebody who puts a function of their own
        # there wants it to be called.
        theirs = getattr(self, "_export", False) or vars(home).get("ms_deform_attn_core_pytorch") is not function
        if theirs or query.device.type not in ("cpu", "cuda"):
            listed = {} if input_spatial_shapes_hw is None else {"input_spatial_shapes_hw": input_spatial_shapes_hw}
            levels = (input_spatial_shapes, input_level_start_index)
            return original(self, query, reference_points, input_flatten, *levels, input_padding_mask, **listed)
        shapes, starts = input_spatial_shapes, input_level_start_index
        if input_spatial_shapes_hw is not None:
            shapes, starts = input_spatial_shapes_hw, None
        return attend_with_layers(
            self,
            query,
            reference_points,
            input_flatten,
            shapes,
            starts,
            input_padding_mask,
            channels=self.d_model,
            heads=self.n_heads,
            levels=self.n_levels,
            points=self.n_points,
            names=INPUT_NAMES,
        )

    return forward
