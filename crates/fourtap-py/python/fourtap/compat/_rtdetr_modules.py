"""The attention modules of RT-DETR's and D-FINE's repositories, from their projections on.

They are written in three ways. A module whose ``forward`` uses other names than one of these keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fourtap._joined import is_watched
from fourtap._tracing import length
from fourtap.compat._drop_in import is_written_with
from fourtap.compat._offset_scale import offset_scale_of
from fourtap.compat._point_lists import is_unlike_ours, type_from_projections
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

# What the ``forward`` of all modules uses.
_ALWAYS = frozenset(
    "F attention_weights flip ms_deformable_attn_core num_heads num_levels reshape sampling_offsets shape softmax "
    "tensor torch".split()
)
_SOMETIMES = frozenset("ValueError astype dtype format sum to unsqueeze".split())
_PROJECTED = frozenset(("head_dim", "output_proj", "value_proj"))
_LISTED = frozenset(("num_points_list", "num_points_scale", "offset_scale"))


def from_projections(owner: type[nn.Module], is_ours: Callable[[object], bool]) -> Callable[..., Tensor] | None:
    """A ``forward`` in place of the class's own, or None if that is not known.

    Args:
        owner: The class with the projections.
        is_ours: Whether the function that samples, an attribute of the module, is fourtap.

    """
    original = vars(owner).get("forward")
    if not isinstance(original, FunctionType):
        return None
    attend = next((attend for names, factors, attend in _WAYS if _is_way(original, names, factors)), None)
    if attend is None:
        return None
    known = attend

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


def _is_way(original: FunctionType, names: frozenset[str], factors: frozenset[float]) -> bool:
    return is_written_with(original, _ALWAYS | names, _SOMETIMES, factors)


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


_WAYS: tuple[tuple[frozenset[str], frozenset[float], Callable[..., Tensor | None]], ...] = (
    (_PROJECTED | {"num_points"}, frozenset((0.5,)), _rt_detr),
    (_PROJECTED | _LISTED, frozenset(), _rt_detr_v2),
    (_LISTED, frozenset(), _d_fine),
)
