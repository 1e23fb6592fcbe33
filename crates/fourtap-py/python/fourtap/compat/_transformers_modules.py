"""The attention modules of transformers, from their projections on: no locations and no softmax in between.

They are written in four ways. Which one it is, or none, is tried.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _hooks

from fourtap.compat import _trial_cases as cases
from fourtap.compat._offset_scale import OffsetScale, offset_scale_of
from fourtap.compat._point_lists import is_unlike_ours, type_from_projections
from fourtap.compat._trial import Case, bare_module, require_agreement, require_arguments, require_one_of
from fourtap.nn import attend_from_layers, project

__all__ = ["from_projections"]

# What the modules return: the result, and the weights if somebody wants them.
_Attended = tuple[Tensor, Any]


@dataclass(frozen=True)
class _Way:
    """How a module is written."""

    core: str
    "The attribute, or global function, that samples."
    home: str
    "What it is, in the module of transformers: a class or a function."
    attend: Callable[..., _Attended | None]
    "As ``forward``; None if the arguments are not those of a model."
    attributes: Callable[[], Iterator[Mapping[str, Any]]]
    "All kinds of modules, by their attributes."
    operands: Mapping[str, Any]
    "Which operands the original can be called with."
    argument_tells: bool = False
    "Whether the models that use it pass ``output_attentions`` to it truthfully."


def from_projections(
    modeling: ModuleType, attention_class: type[nn.Module], is_ours: Callable[[object], bool]
) -> Callable[..., Any] | None:
    """A ``forward`` in place of the module's own, or None if nothing that samples there is fourtap.

    Args:
        modeling: The module of transformers that the class is in.
        attention_class: The class with the projections.
        is_ours: Whether what samples, a layer or a function, is fourtap.

    Raises:
        Disagreement: It computes something else.

    """
    original = vars(attention_class).get("forward")
    if not isinstance(original, FunctionType):
        return None
    found = _find_way(modeling, attention_class, original, is_ours)
    if found is None:
        return None
    way, inverted = found
    # The weights are for whoever asks for them. The models of Grounding DINO and OmDet-Turbo do not ask but keep them.
    asks = way.argument_tells or _is_recorded(modeling, attention_class)
    core_name, attend = way.core, way.attend

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        core = getattr(self, core_name, None) or getattr(modeling, core_name, None)
        if others or not is_ours(core):
            return original(self, hidden_states, *others, **named)
        wanted = not asks or named.get("output_attentions") or self._forward_hooks or _hooks._global_forward_hooks
        found = attend(self, hidden_states, inverted=inverted, weights_wanted=bool(wanted), **named)
        return original(self, hidden_states, **named) if found is None else found

    return forward


def _find_way(
    modeling: ModuleType,
    attention_class: type[nn.Module],
    original: FunctionType,
    is_ours: Callable[[object], bool],
) -> tuple[_Way, bool] | None:
    """The way that it is written, and whether its masks are true for pixels that count; None if there is no core."""
    cores = [(way, _core_of(modeling, way)) for way in _WAYS]
    choices = [(way, core, inverted) for way, core in cores if is_ours(core) for inverted in (True, False)]
    if not choices:
        return None

    def require(choice: tuple[_Way, Any, bool]) -> None:
        way, core, inverted = choice
        ours = functools.partial(way.attend, inverted=inverted, weights_wanted=True)
        require_arguments(original, {"output_attentions", *inspect.signature(way.attend).parameters})
        require_agreement(original, ours, _cases(way, attention_class, original, core))

    way, _, inverted = require_one_of(choices, require)
    return way, inverted


def _core_of(modeling: ModuleType, way: _Way) -> Any:
    """What samples in modules of this way."""
    home = vars(modeling).get(way.home)
    return bare_module(home, {}) if isinstance(home, type) and issubclass(home, nn.Module) else home


def _cases(way: _Way, attention_class: type[nn.Module], original: FunctionType, core: Any) -> Iterator[Case]:
    known = inspect.signature(original).parameters
    of_nobody = cases.Numbers(7)(cases.BATCH, sum(height * width for height, width in cases.SHAPES)) > 0

    def call(function: Callable[..., Any], module: nn.Module, given: Mapping[str, Tensor | None]) -> Any:
        every = {
            "attention_mask": given["padding"],
            # Neither the original nor ours looks at it.
            "encoder_attention_mask": of_nobody,
            "encoder_hidden_states": given["features"],
            "position_embeddings": given["position"],
            "reference_points": given["references"],
            "spatial_shapes": cases.tensor_of(),
            "spatial_shapes_list": list(cases.SHAPES),
            "level_start_index": cases.starts_of(),
        }
        named = {name: argument for name, argument in every.items() if name in known and argument is not None}
        return function(module, given["query"], **named)

    for attributes in way.attributes():
        for operands in cases.operands(**way.operands):
            every = {**attributes, way.core: core}
            module = bare_module(attention_class, every, training=operands.training)
            yield operands.case(module, call)


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


def _attributes() -> dict[str, Any]:
    """What all modules have."""
    return {
        "d_model": cases.CHANNELS,
        "n_heads": cases.HEADS,
        "n_levels": len(cases.SHAPES),
        "n_points": cases.POINTS,
        "im2col_step": 64,
        "disable_custom_kernels": False,
    }


def _with_points() -> Iterator[dict[str, Any]]:
    yield {**_attributes(), **cases.layers(len(cases.SHAPES) * cases.POINTS)}


def _with_point_lists(
    points: Sequence[int], names: tuple[str, str, str], *, projected: bool
) -> Iterator[dict[str, Any]]:
    """``names`` are those of the list, of what the offsets are scaled by, and of the way to sample."""
    # Not what the numbers of points would make it.
    scale = cases.Numbers(5)(sum(points), low=0.2, high=0.9)
    for method in ("default", "discrete"):
        lists = dict(zip(names, (list(points), scale, method), strict=True))
        layers = cases.layers(sum(points), projected=projected)
        yield {**_attributes(), **lists, "offset_scale": 0.7, **layers}


_POINTS = {"points": True, "boxes": True, "levels": True, "padding": True}
_WAYS = (
    _Way("attn", "MultiScaleDeformableAttention", _deformable_detr, _with_points, _POINTS),
    _Way(
        "multi_scale_deformable_attention",
        "multi_scale_deformable_attention",
        _deformable_detr,
        _with_points,
        _POINTS,
        argument_tells=True,
    ),
    _Way(
        "multi_scale_deformable_attention_v2",
        "multi_scale_deformable_attention_v2",
        _rt_detr_v2,
        functools.partial(
            _with_point_lists,
            [cases.POINTS] * len(cases.SHAPES),
            ("n_points_list", "n_points_scale", "method"),
            projected=True,
        ),
        {**_POINTS, "points": False, "levels": False},
    ),
    _Way(
        "ms_deformable_attn_core",
        "multi_scale_deformable_attention_v2",
        _d_fine,
        functools.partial(
            _with_point_lists,
            [3, 1],
            ("num_points_list", "num_points_scale", "decoder_method"),
            projected=False,
        ),
        {**_POINTS, "points": False, "levels": False, "padding": False},
    ),
)
