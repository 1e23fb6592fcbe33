"""The operator from projections for PyTorch tensors.

As in :mod:`fourtap._torch`, plain tensors in eager mode go straight to the compiled part; everything else goes through
the operators of :mod:`fourtap._projected_registered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fourtap import _native, _projected_registered, _registered
from fourtap._registered import copy_of_list
from fourtap._route import Route

if TYPE_CHECKING:
    from fourtap._native import Projections

__all__ = ["from_projections"]

_is_traced = torch.compiler.is_dynamo_compiling
_forward = _native.torch_projected_forward_if_plain
# Since PyTorch 2.10.
_KNOWS_MEMORY = hasattr(Tensor, "__dlpack_c_exchange_api__")
_is_grad_enabled = torch.is_grad_enabled
_is_deterministic = torch.are_deterministic_algorithms_enabled
_backward = _native.torch_projected_backward_if_plain


def from_projections(operands: Projections[Tensor], deterministic: bool | None, out: Tensor | None) -> Tensor:
    """As ``fourtap.ms_deform_attn_from_projections``."""
    found = Route.REGISTERED if _is_traced() else _forward(operands, out)
    if isinstance(found, Tensor):
        return found
    if found is Route.REGISTERED:
        return _projected_registered.attend(operands, deterministic, out)
    if found is Route.AUTOCAST:
        operands = _projected_registered.autocast(operands)
        if not _registered.wants_gradient(*_projected_registered.differentiable(operands)):
            return _native.torch_projected_forward(operands, out)
    if out is not None:
        raise _registered.no_gradient_into_out()
    operands = _projected_registered.without_useless_gradients(operands)
    return _apply(*operands, deterministic)  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    """Eager mode with gradients. Only what the caller has anyway is kept: no locations and no weights."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        shapes: Any,
        starts: Any,
        references: Tensor,
        offsets: Tensor,
        logits: Tensor | None,
        mask: Tensor | None,
        settings: Any,
        deterministic: bool | None,
    ) -> Tensor:
        # The levels may be tensors or not; saving those that are lets autograd detect later changes to them.
        ctx.save_for_backward(
            value,
            references,
            offsets,
            logits,
            mask,
            shapes if isinstance(shapes, Tensor) else None,
            starts if isinstance(starts, Tensor) else None,
        )
        shapes, starts = copy_of_list(shapes), copy_of_list(starts)
        ctx.levels = (shapes, starts)
        settings = tuple(copy_of_list(setting) for setting in settings)
        ctx.settings = settings
        ctx.deterministic = deterministic
        operands = (value, shapes, starts, references, offsets, logits, mask, settings)
        return _native.torch_projected_forward(operands, None)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        value, references, offsets, logits, mask, shapes, starts = ctx.saved_tensors
        other_shapes, other_starts = ctx.levels
        needs = ctx.needs_input_grad
        operands = (
            value,
            other_shapes if shapes is None else shapes,
            other_starts if starts is None else starts,
            references,
            offsets,
            logits,
            mask,
            ctx.settings,
        )
        deterministic = _is_deterministic() if ctx.deterministic is None else ctx.deterministic
        wanted = (needs[0], needs[3], needs[4], needs[5])
        # With create_graph=True the gradients will be differentiated again, which must raise an error, not be ignored.
        compute = _Gradients.apply if _is_grad_enabled() else _compute_gradients
        by_value, by_references, by_offsets, by_logits = compute(grad_out, deterministic, wanted, *operands)
        by_value = _registered.in_usual_order(by_value)
        return by_value, None, None, by_references, by_offsets, by_logits, None, None, None


# As in `fourtap._torch`.
_apply = super(torch.autograd.Function, _Attention).apply if _KNOWS_MEMORY else _Attention.apply


class _Gradients(torch.autograd.Function):
    """Gradients that refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        return _compute_gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise _registered.no_second_derivatives(_projected_registered.NAME)


def _compute_gradients(
    grad_out: Tensor, deterministic: bool, wanted: tuple[bool, bool, bool, bool], *operands: Any
) -> tuple[Tensor | None, ...]:
    found = _backward(grad_out, operands, deterministic, wanted)
    if found is not None:
        return found
    return _projected_registered.gradients(grad_out, operands, deterministic, wanted)
