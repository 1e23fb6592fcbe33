"""How mmcv, detrex and Grounding DINO are tried, which have a function, its twin for GPUs and a module in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function

from fourtap.compat import _trial_cases as cases
from fourtap.compat._trial import Case, Disagreement, bare_module, require_agreement, require_same_arguments
from fourtap.compat.deformable_detr import (
    MSDeformAttnFunction,
    ms_deform_attn_backward,
    ms_deform_attn_core_pytorch,
    ms_deform_attn_forward,
)

__all__ = ["module_cases", "require_same_autograd_function", "require_same_function"]


def require_same_function(theirs: Callable[..., Tensor]) -> None:
    """Raises :class:`Disagreement` unless it is ``multi_scale_deformable_attn_pytorch``."""
    require_same_arguments(theirs, ms_deform_attn_core_pytorch)
    require_agreement(theirs, ms_deform_attn_core_pytorch, cases.function_cases(listed=False))


def require_same_autograd_function(theirs: Any) -> None:
    """Raises :class:`Disagreement` unless it is ``MultiScaleDeformableAttnFunction``, around an extension.

    The extension is for GPUs, and is perhaps not built; with fourtap in its place all else is tried as it is written.
    """
    if not isinstance(theirs, type) or not issubclass(theirs, Function):
        raise Disagreement("it is no autograd function")
    methods = {name: staticmethod(_with_extension(getattr(theirs, name))) for name in ("forward", "backward")}
    with_ours: Any = type(theirs.__name__, (Function,), methods)
    require_agreement(with_ours.apply, MSDeformAttnFunction.apply, _function_cases())


def _function_cases() -> Iterator[Case]:
    def call(function: Callable[..., Any], given: Mapping[str, Tensor]) -> Any:
        levels = (cases.tensor_of(), cases.starts_of())
        return function(given["value"], *levels, given["locations"], given["weights"], 64)

    tensors = cases.core_tensors((len(cases.SHAPES), cases.POINTS))
    yield Case("points inside and outside", tensors, call)


def _with_extension(method: Callable[..., Any]) -> FunctionType:
    """The method, without what wraps it, as if the extension were fourtap under every name that it has there."""
    written = inspect.unwrap(method)
    extension = SimpleNamespace(ms_deform_attn_forward=ms_deform_attn_forward, ms_deform_attn_backward=_backward)
    # mmcv and detrex or Grounding DINO.
    known = {**written.__globals__, "ext_module": extension, "_C": extension}
    return FunctionType(written.__code__, known, written.__name__, written.__defaults__, written.__closure__)


def _backward(*operands: Any, im2col_step: int = 64) -> list[Tensor]:
    """Both kinds of extensions: mmcv's writes gradients into tensors of the caller's, which come before the step."""
    found = ms_deform_attn_backward(*operands[:6])
    targets = [operand for operand in operands[6:] if isinstance(operand, Tensor)]
    for target, gradient in zip(targets, found, strict=False):
        target.copy_(gradient)
    return found


class _Half(nn.Module):
    """In place of a dropout, as that draws random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def module_cases(owner: type[nn.Module], *, added: bool) -> Iterator[Case]:
    """For ``MultiScaleDeformableAttention``; ``added``: it drops a share, and adds ``identity`` or its query."""
    attributes = {
        "embed_dims": cases.CHANNELS,
        "embed_dim": cases.CHANNELS,
        "num_heads": cases.HEADS,
        "num_levels": len(cases.SHAPES),
        "num_points": cases.POINTS,
        "im2col_step": 64,
        **cases.layers(len(cases.SHAPES) * cases.POINTS),
        **({"dropout": _Half()} if added else {}),
    }

    def call(function: Callable[..., Any], module: nn.Module, given: Mapping[str, Tensor | None]) -> Any:
        def ordered(name: str, scale: float = 1.0) -> Tensor | None:
            tensor = given[name]
            if tensor is None:
                return None
            return tensor * scale if module.batch_first else tensor.transpose(0, 1) * scale

        named = {
            "key": ordered("features", 2.0),
            "value": ordered("features"),
            "identity": ordered("query", 0.3) if added and given["position"] is not None else None,
            "query_pos": ordered("position"),
            "key_padding_mask": given["padding"],
            "reference_points": given["references"],
            "spatial_shapes": cases.tensor_of(),
            "level_start_index": cases.starts_of(),
        }
        named = {name: argument for name, argument in named.items() if argument is not None}
        return function(module, ordered("query"), **named)

    for batch_first in (True, False):
        for operands in [*cases.operands(), cases.operands_of_itself()]:
            every = {**attributes, "batch_first": batch_first}
            words = ", batch first" if batch_first else ", queries first"
            yield operands.case(bare_module(owner, every, training=operands.training), call, words=words)
