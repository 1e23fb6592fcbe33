"""The attention modules of RT-DETR's and D-FINE's repositories, from their projections on.

They are written in three ways. Which one it is, or none, is tried.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap._joined import is_watched
from fourtap._tracing import length
from fourtap.compat import _trial_cases as cases
from fourtap.compat._offset_scale import offset_scale_of
from fourtap.compat._point_lists import is_unlike_ours, type_from_projections
from fourtap.compat._trial import Case, bare_module, require_agreement, require_arguments, require_one_of
from fourtap.errors import InputError
from fourtap.nn import (
    SpatialShapes,
    attend_from_layers,
    attend_with_layers,
    project,
    renamed,
    require_shape,
)

__all__ = ["from_projections", "one_tensor"]

_NAMES = {"spatial_shapes": "value_spatial_shapes"}


def from_projections(
    owner: type[nn.Module], cores: Sequence[Callable[..., Tensor]], is_ours: Callable[[object], bool]
) -> Callable[..., Tensor] | None:
    """A ``forward`` in place of the class's own, or None if it has none.

    Args:
        owner: The class with the projections.
        cores: Our functions that sample: RT-DETR's, and the one of those with lists of points.
        is_ours: Whether the function that samples, an attribute of the module, is fourtap.

    Raises:
        Disagreement: It computes something else.

    """
    original = vars(owner).get("forward")
    if not isinstance(original, FunctionType):
        return None
    known = _find_way(owner, original, cores)

    @functools.wraps(original)
    def forward(
        self: Any,
        query: Tensor,
        reference_points: Tensor,
        value: Any,
        value_spatial_shapes: SpatialShapes,
        *mask: Tensor | None,
        **named_mask: Tensor | None,
    ) -> Tensor:
        operands = (query, reference_points, value, value_spatial_shapes)
        if is_ours(self.ms_deformable_attn_core) and query.device.type in ("cpu", "cuda"):
            found = known(self, *operands, *mask, **named_mask)
            if found is not None:
                return found
        result: Tensor = original(self, *operands, *mask, **named_mask)
        return result

    return forward


def _find_way(
    owner: type[nn.Module], original: FunctionType, cores: Sequence[Callable[..., Tensor]]
) -> Callable[..., Tensor | None]:
    def require(way: _Way) -> None:
        attend, make_cases = way
        require_arguments(original, inspect.signature(attend).parameters)
        require_agreement(original, attend, make_cases(owner, cores))

    return require_one_of(_WAYS, require)[0]


def _rt_detr(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    value_mask: Tensor | None = None,
) -> Tensor | None:
    """RT-DETR, with the same number of points on all levels."""
    return _attend(self, query, reference_points, value, value_spatial_shapes, value_mask, points=self.num_points)


def _rt_detr_v2(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    value: Tensor,
    value_spatial_shapes: SpatialShapes,
    value_mask: Tensor | None = None,
) -> Tensor | None:
    """RT-DETRv2, with a number of points for each level and two ways to sample."""
    if _samples_otherwise(self.method, query, reference_points, value_spatial_shapes):
        return None
    scale = offset_scale_of(self, self.num_points_scale, self.offset_scale, self.num_points_list)
    return _attend(
        self,
        query,
        reference_points,
        value,
        value_spatial_shapes,
        value_mask,
        points=self.num_points_list,
        nearest=self.method == "discrete",
        box_scale=scale.by_level,
        offset_scale=scale.by_point,
    )


def _attend(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    value: Tensor,
    shapes: SpatialShapes,
    mask: Tensor | None,
    **settings: Any,
) -> Tensor | None:
    # Here true is for pixels that count; numbers might be anything.
    if mask is not None and mask.dtype is not torch.bool:
        return None
    return attend_with_layers(
        self,
        query,
        reference_points,
        value,
        shapes,
        None,
        None if mask is None else ~mask,
        channels=self.embed_dim,
        heads=self.num_heads,
        levels=self.num_levels,
        names=_NAMES,
        **settings,
    )


def _d_fine(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    value: Sequence[Tensor],
    value_spatial_shapes: SpatialShapes,
) -> Tensor | None:
    """D-FINE and DEIM, which have no projections of the value and the result."""
    if _samples_otherwise(self.method, query, reference_points, value_spatial_shapes):
        return None
    heads, levels = self.num_heads, self.num_levels
    require_shape("query", query, ["N", "Q", self.embed_dim])
    batch, queries, _ = query.shape
    require_shape("reference_points", reference_points, [batch, queries, levels, (2, 4)], broadcast=True)
    if length(value_spatial_shapes) != levels:
        raise InputError(f"value_spatial_shapes: expected {levels} levels, found {length(value_spatial_shapes)}")
    joined = one_tensor(value, value_spatial_shapes)
    require_shape("value[0]", value[0], [batch, heads, "D", "H * W"])
    nearest = self.method == "discrete"
    scale = offset_scale_of(self, self.num_points_scale, self.offset_scale, self.num_points_list)
    offsets, logits = project(self, query, heads=heads, nearest=nearest, offset_scale=scale.by_point)
    try:
        attended = attend_from_layers(
            joined.flatten(2),
            value_spatial_shapes,
            reference_points,
            offsets,
            logits,
            heads=heads,
            points=self.num_points_list,
            nearest=nearest,
            box_scale=scale.by_level,
        )
    except InputError as error:
        raise renamed(error, _NAMES) from error
    dtype = (offsets if logits is None else logits).dtype
    return attended.to(type_from_projections(joined, query, reference_points, dtype, self.method))


def _samples_otherwise(method: str, query: Tensor, references: Tensor, shapes: SpatialShapes) -> bool:
    """Whether the original samples in a way that the operator cannot."""
    if is_unlike_ours(method, query, references):
        return True
    if method == "default":
        return False
    # The last column that they read nearest pixels of is that of a square.
    return isinstance(shapes, Tensor) or any(width > height for height, width in shapes)


def one_tensor(levels: Sequence[Tensor], spatial_shapes: SpatialShapes) -> Tensor:
    """``[N, S, M, D]`` of one ``[N, M, D, H * W]`` for each level."""
    if len(levels) != length(spatial_shapes):
        raise InputError(f"value: expected {length(spatial_shapes)} levels, found {len(levels)}")
    first = levels[0]
    if first.dim() != 4:
        raise InputError(f"value[0]: expected shape [N, M, D, H * W], found {list(first.shape)}")
    for index, (level, (height, width)) in enumerate(zip(levels, spatial_shapes, strict=True)):
        require_shape(f"value[{index}]", level, [*first.shape[:3], int(height) * int(width)])
    if _are_neighbours(levels):
        pixels = sum(level.shape[-1] for level in levels)
        whole = first.as_strided((*first.shape[:3], pixels), first.stride(), first.storage_offset())
        return whole.permute(0, 3, 1, 2)
    return torch.cat([level.permute(0, 3, 1, 2) for level in levels], dim=1)


def _are_neighbours(levels: Sequence[Tensor]) -> bool:
    """Whether the levels are parts of one tensor that can be had back without a copy.

    They are: a model splits its features once and gives the parts to all layers of its decoder. But autograd and
    tracers would not know what the whole has to do with any part but the first.
    """
    if is_watched() or not all(type(level) is Tensor for level in levels):
        return False
    if torch.is_grad_enabled() and any(level.requires_grad for level in levels):
        return False
    first = levels[0]
    memory, end = first.untyped_storage().data_ptr(), first.storage_offset()
    for level in levels:
        alike = level.stride() == first.stride() and level.dtype is first.dtype
        if not alike or level.storage_offset() != end or level.untyped_storage().data_ptr() != memory:
            return False
        end += level.shape[-1] * level.stride(-1)
    return True


def _attributes(samples: int, *, projected: bool) -> dict[str, Any]:
    """What all modules have."""
    return {
        "embed_dim": cases.CHANNELS,
        "num_heads": cases.HEADS,
        "head_dim": cases.CHANNELS // cases.HEADS,
        "num_levels": len(cases.SHAPES),
        "total_points": cases.HEADS * samples,
        **cases.layers(samples, projected=projected),
    }


def _cases_with_points(owner: type[nn.Module], cores: Sequence[Callable[..., Tensor]]) -> Iterator[Case]:
    attributes = _attributes(len(cases.SHAPES) * cases.POINTS, projected=True)
    attributes |= {"num_points": cases.POINTS, "ms_deformable_attn_core": cores[0]}

    def call(function: Callable[..., Any], module: nn.Module, given: Mapping[str, Tensor | None]) -> Any:
        mask = () if given["padding"] is None else (given["padding"],)
        levels = [list(shape) for shape in cases.SHAPES]
        return function(module, given["query"], given["references"], given["features"], levels, *mask)

    for operands in cases.operands():
        module = bare_module(owner, attributes, training=operands.training)
        # RT-DETR's own cannot compute with masks: tensors of PyTorch have no `astype`.
        yield operands.case(module, call, optional=operands.padding is not None)


def _cases_with_point_lists(
    owner: type[nn.Module], cores: Sequence[Callable[..., Tensor]], *, projected: bool
) -> Iterator[Case]:
    points = [3, 1]
    # Not what the numbers of points would make it.
    scale = cases.Numbers(5)(sum(points), low=0.2, high=0.9)
    for method, shapes in (("default", cases.SHAPES), ("discrete", ((5, 5), (3, 3)))):
        attributes = {
            **_attributes(sum(points), projected=projected),
            "num_points_list": points,
            "num_points_scale": scale,
            "offset_scale": 0.7,
            "method": method,
            "ms_deformable_attn_core": functools.partial(cores[1], method=method),
        }

        def call(
            function: Callable[..., Any],
            module: nn.Module,
            given: Mapping[str, Tensor | None],
            shapes: Sequence[tuple[int, int]] = shapes,
        ) -> Any:
            features: Any = given["features"]
            levels = [list(shape) for shape in shapes]
            if projected:
                mask = () if given["padding"] is None else (given["padding"],)
                return function(module, given["query"], given["references"], features, levels, *mask)
            return function(module, given["query"], given["references"], cases.by_level(features, shapes), levels)

        # With points, the shapes in the originals do not fit each other.
        for operands in cases.operands(shapes, points=False, levels=False, padding=projected):
            words = f", {method}"
            yield operands.case(bare_module(owner, attributes, training=operands.training), call, words=words)


# As ``forward``, and the cases that it is tried in.
_Way = tuple[
    Callable[..., Tensor | None],
    Callable[[type[nn.Module], Sequence[Callable[..., Tensor]]], Iterator[Case]],
]
_WAYS: tuple[_Way, ...] = (
    (_rt_detr, _cases_with_points),
    (_rt_detr_v2, functools.partial(_cases_with_point_lists, projected=True)),
    (_d_fine, functools.partial(_cases_with_point_lists, projected=False)),
)
