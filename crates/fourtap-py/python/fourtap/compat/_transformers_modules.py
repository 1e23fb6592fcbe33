"""The attention modules of transformers, from their projections on: no locations and no softmax in between.

They are written in four ways. A module whose ``forward`` uses other names than one of these keeps it.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _hooks

from fourtap.compat._offset_scale import OffsetScale, offset_scale_of
from fourtap.compat._point_lists import is_unlike_ours, type_from_projections
from fourtap.nn import attend_from_layers, project

__all__ = ["from_projections"]

# What the modules return: the result, and the weights if somebody wants them.
_Attended = tuple[Tensor, Any]

# Names that say nothing about which of the ways it is.
_COMMON = frozenset(
    "F ValueError attention_weights d_model device dtype flip float functional im2col_step long masked_fill n_heads "
    "n_levels n_points nn reshape sampling_offsets shape softmax stack sum tensor to torch torch_compilable_check "
    "unsqueeze view".split()
)


@dataclass(frozen=True)
class _Way:
    """How a module is written."""

    names: frozenset[str]
    "All that its ``forward`` uses, but for the common ones."
    factors: frozenset[float]
    "All fractions in it."
    core: str
    "The attribute, or global function, that samples."
    attend: Callable[..., _Attended | None]
    "As ``forward``; None if the arguments are not those of a model."
    argument_tells: bool = False
    "Whether the models that use it pass ``output_attentions`` to it truthfully."


def from_projections(
    modeling: ModuleType, attention_class: type[nn.Module], is_ours: Callable[[object], bool]
) -> Callable[..., Any] | None:
    """A ``forward`` in place of the module's own, or None if that is not known.

    Args:
        modeling: The module of transformers that the class is in.
        attention_class: The class with the projections.
        is_ours: Whether what samples, a layer or a function, is fourtap.

    """
    original = vars(attention_class).get("forward")
    if not isinstance(original, FunctionType):
        return None
    code = original.__code__
    names = frozenset(code.co_names) - _COMMON
    factors = frozenset(constant for constant in code.co_consts if isinstance(constant, float))
    way = next((way for way in _WAYS if way.names == names and way.factors == factors), None)
    if way is None:
        return None
    # Some models say which pixels count, some which do not.
    inverted = any(instruction.opname == "UNARY_INVERT" for instruction in dis.get_instructions(code))
    # The weights are for whoever asks for them. The models of Grounding DINO and OmDet-Turbo do not ask but keep them.
    asks = way.argument_tells or _is_recorded(modeling, attention_class)
    known, attend = way, way.attend

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        core = getattr(self, known.core, None) or getattr(modeling, known.core, None)
        if others or not is_ours(core):
            return original(self, hidden_states, *others, **named)
        wanted = not asks or named.get("output_attentions") or self._forward_hooks or _hooks._global_forward_hooks
        found = attend(self, hidden_states, inverted=inverted, weights_wanted=bool(wanted), **named)
        return original(self, hidden_states, **named) if found is None else found

    return forward


def _is_recorded(modeling: ModuleType, attention_class: type[nn.Module]) -> bool:
    """Whether transformers gets at the weights by hooks."""
    for thing in vars(modeling).values():
        recorders = getattr(thing, "_can_record_outputs", None) if isinstance(thing, type) else None
        if not isinstance(recorders, dict):
            continue
        for recorder in recorders.values():
            for one in recorder if isinstance(recorder, list) else [recorder]:
                if getattr(one, "target_class", one) is attention_class:
                    return True
    return False


def _deformable_detr(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Any = None,
    encoder_attention_mask: Tensor | None = None,
    position_embeddings: Tensor | None = None,
    reference_points: Any = None,
    spatial_shapes: Tensor | None = None,
    spatial_shapes_list: Sequence[tuple[int, int]] | None = None,
    level_start_index: Tensor | None = None,
    *,
    inverted: bool,
    weights_wanted: bool,
    **kwargs: Any,
) -> _Attended | None:
    """Deformable DETR and those who copied from it, Mask2Former and OneFormer."""
    if not _fit(encoder_hidden_states, attention_mask, reference_points, coordinates=(2, 4)):
        return None
    if reference_points.shape[2] not in (1, self.n_levels):
        return None
    attended, logits = _attend(
        self,
        _with(hidden_states, position_embeddings),
        self.value_proj(encoder_hidden_states),
        _padding(attention_mask, inverted),
        reference_points,
        *_levels(spatial_shapes, spatial_shapes_list, level_start_index),
        points=self.n_points,
    )
    weights = torch.unflatten(logits.softmax(-1), -1, (self.n_levels, self.n_points)) if weights_wanted else None
    return self.output_proj(attended), weights


def _rt_detr_v2(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Any = None,
    encoder_attention_mask: Tensor | None = None,
    position_embeddings: Tensor | None = None,
    reference_points: Any = None,
    spatial_shapes: Tensor | None = None,
    spatial_shapes_list: Sequence[tuple[int, int]] | None = None,
    level_start_index: Tensor | None = None,
    *,
    inverted: bool,
    weights_wanted: bool,
    **kwargs: Any,
) -> _Attended | None:
    """RT-DETRv2, with a number of points for each level and two ways to sample."""
    # With points, the shapes in the original do not fit each other.
    if not _fit(encoder_hidden_states, attention_mask, reference_points, coordinates=(4,)):
        return None
    if reference_points.shape[2] != 1:
        return None
    hidden_states = _with(hidden_states, position_embeddings)
    if is_unlike_ours(self.method, hidden_states, reference_points):
        return None
    attended, logits = _attend(
        self,
        hidden_states,
        self.value_proj(encoder_hidden_states),
        _padding(attention_mask, inverted),
        reference_points,
        *_levels(spatial_shapes, spatial_shapes_list, None),
        points=self.n_points_list,
        nearest=self.method == "discrete",
        scale=offset_scale_of(self, self.n_points_scale, self.offset_scale, self.n_points_list),
    )
    return self.output_proj(attended), logits.softmax(-1) if weights_wanted else None


def _d_fine(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    reference_points: Any = None,
    encoder_hidden_states: Any = None,
    spatial_shapes: Tensor | None = None,
    spatial_shapes_list: Sequence[tuple[int, int]] | None = None,
    *,
    inverted: bool,
    weights_wanted: bool,
    **kwargs: Any,
) -> _Attended | None:
    """D-FINE and DEIMv2, which have no projections of the value and the result."""
    # With masks or points, the shapes in the original do not fit each other.
    if attention_mask is not None or not _fit(encoder_hidden_states, None, reference_points, coordinates=(4,)):
        return None
    if reference_points.shape[2] != 1 or is_unlike_ours(self.decoder_method, hidden_states, reference_points):
        return None
    attended, logits = _attend(
        self,
        hidden_states,
        encoder_hidden_states,
        None,
        reference_points,
        *_levels(spatial_shapes, spatial_shapes_list, None),
        points=self.num_points_list,
        nearest=self.decoder_method == "discrete",
        scale=offset_scale_of(self, self.num_points_scale, self.offset_scale, self.num_points_list),
    )
    dtype = type_from_projections(
        encoder_hidden_states, hidden_states, reference_points, logits.dtype, self.decoder_method
    )
    return attended.to(dtype), logits.softmax(-1) if weights_wanted else None


def _fit(features: object, mask: Tensor | None, references: object, *, coordinates: tuple[int, ...]) -> bool:
    """Whether the arguments have the shapes that models pass."""
    if not isinstance(features, Tensor) or not isinstance(references, Tensor):
        return False
    if features.dim() != 3 or references.dim() != 4 or references.shape[-1] not in coordinates:
        return False
    return mask is None or (mask.dtype is torch.bool and mask.shape == features.shape[:2])


def _with(hidden_states: Tensor, position_embeddings: Tensor | None) -> Tensor:
    return hidden_states if position_embeddings is None else hidden_states + position_embeddings


def _padding(mask: Tensor | None, inverted: bool) -> Tensor | None:
    return ~mask if mask is not None and inverted else mask


def _levels(shapes: Any, listed: Any, starts: Any) -> tuple[Any, Any]:
    """The list, where there is one, instead of the tensors that say the same."""
    return (shapes, starts) if listed is None else (listed, None)


def _attend(
    self: Any,
    hidden_states: Tensor,
    value: Tensor,
    mask: Tensor | None,
    references: Tensor,
    shapes: Any,
    starts: Any,
    *,
    points: int | Sequence[int],
    nearest: bool = False,
    scale: OffsetScale | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention, before any projection of it, and the logits, ``[N, Q, M, K]``."""
    by_level, by_point = scale or (None, None)
    offsets, logits = project(self, hidden_states, heads=self.n_heads, nearest=nearest, offset_scale=by_point)
    attended = attend_from_layers(
        value,
        shapes,
        references,
        offsets,
        logits,
        heads=self.n_heads,
        points=points,
        mask=mask,
        value_layer=getattr(self, "value_proj", None),
        level_start_index=starts,
        nearest=nearest,
        box_scale=by_level,
    )
    if logits is None:
        logits = offsets[..., self.sampling_offsets.out_features :]
    return attended, torch.unflatten(logits, -1, (self.n_heads, -1))


_PROJECTED = ("value_proj", "output_proj")
_WAYS = (
    _Way(frozenset(("attn", *_PROJECTED)), frozenset((0.5,)), "attn", _deformable_detr),
    _Way(
        frozenset(("multi_scale_deformable_attention", "with_pos_embed", *_PROJECTED)),
        frozenset((0.5,)),
        "multi_scale_deformable_attention",
        _deformable_detr,
        argument_tells=True,
    ),
    _Way(
        frozenset("multi_scale_deformable_attention_v2 method n_points_list n_points_scale offset_scale".split())
        | frozenset(_PROJECTED),
        frozenset(),
        "multi_scale_deformable_attention_v2",
        _rt_detr_v2,
    ),
    _Way(
        frozenset("ms_deformable_attn_core decoder_method num_points_list num_points_scale offset_scale".split()),
        frozenset(),
        "ms_deformable_attn_core",
        _d_fine,
    ),
)
