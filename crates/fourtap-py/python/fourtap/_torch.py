"""The operator for PyTorch tensors.

Plain tensors in eager mode go straight to the compiled part, which reads their addresses: that costs a fraction of what
PyTorch's dispatcher does. Everything else goes through the operators of :mod:`fourtap._registered`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fourtap import _native, _registered
from fourtap._registered import copy_of_list
from fourtap._route import Route

__all__ = ["Tensor", "attend", "forward", "gradients", "is_traced"]

# Export without Dynamo uses fake tensors, which are recognised anyway.
is_traced = torch.compiler.is_dynamo_compiling
# The usual path, which `fourtap.ms_deform_attn` calls directly: another function call would be measurable.
forward = _native.torch_forward_if_plain
# Since PyTorch 2.10.
_KNOWS_MEMORY = hasattr(Tensor, "__dlpack_c_exchange_api__")
_is_grad_enabled = torch.is_grad_enabled
_is_deterministic = torch.are_deterministic_algorithms_enabled
_backward = _native.torch_backward_if_plain


def attend(
    found: Route,
    value: Tensor,
    shapes: Any,
    starts: Any,
    locations: Tensor,
    weights: Tensor,
    deterministic: bool | None,
    out: Tensor | None,
) -> Tensor:
    """As ``fourtap.ms_deform_attn``, where :func:`forward` returned a route or must not be called."""
    if found is Route.REGISTERED:
        return _registered.attend(value, shapes, starts, locations, weights, deterministic, out)
    if found is Route.AUTOCAST:
        value, locations, weights = _registered.autocast(value, locations, weights)
        if not _registered.wants_gradient(value, locations, weights):
            return _native.torch_forward(value, shapes, starts, locations, weights, out)
    if out is not None:
        raise _registered.no_gradient_into_out()
    return _apply(value, shapes, starts, locations, weights, deterministic)  # type: ignore[no-any-return]


def gradients(
    grad_out: Tensor,
    value: Tensor,
    shapes: Any,
    starts: Any,
    locations: Tensor,
    weights: Tensor,
    deterministic: bool | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``fourtap.ms_deform_attn_backward``."""
    sure = _is_deterministic() if deterministic is None else deterministic
    found = _compute_gradients(grad_out, value, shapes, starts, locations, weights, sure, (True, True, True))
    return cast("tuple[Tensor, Tensor, Tensor]", found)


class _Attention(torch.autograd.Function):
    """Eager mode with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        shapes: Any,
        starts: Any,
        locations: Tensor,
        weights: Tensor,
        deterministic: bool | None,
    ) -> Tensor:
        # The levels may be tensors or not; saving those that are lets autograd detect later changes to them.
        ctx.save_for_backward(
            value,
            locations,
            weights,
            shapes if isinstance(shapes, Tensor) else None,
            starts if isinstance(starts, Tensor) else None,
        )
        shapes, starts = copy_of_list(shapes), copy_of_list(starts)
        ctx.levels = (shapes, starts)
        ctx.deterministic = deterministic
        return _native.torch_forward(value, shapes, starts, locations, weights, None)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        value, locations, weights, shapes, starts = ctx.saved_tensors
        other_shapes, other_starts = ctx.levels
        needs = ctx.needs_input_grad
        arguments = (
            grad_out,
            value,
            other_shapes if shapes is None else shapes,
            other_starts if starts is None else starts,
            locations,
            weights,
            _is_deterministic() if ctx.deterministic is None else ctx.deterministic,
            (needs[0], needs[3], needs[4]),
        )
        # With create_graph=True the gradients will be differentiated again, which must raise an error, not be ignored.
        compute = _Gradients.apply if _is_grad_enabled() else _compute_gradients
        grad_value, grad_locations, grad_weights = compute(*arguments)
        return _registered.in_usual_order(grad_value), None, None, grad_locations, grad_weights, None


# For plain tensors this does what `_Attention.apply` does. Some versions of PyTorch first look, in Python, for wrappers
# that outlived their transform, which is slow.
_apply = super(torch.autograd.Function, _Attention).apply if _KNOWS_MEMORY else _Attention.apply


class _Gradients(torch.autograd.Function):
    """Gradients that refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        return _compute_gradients(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise _registered.no_second_derivatives("ms_deform_attn")


def _compute_gradients(
    grad_out: Tensor,
    value: Tensor,
    shapes: Any,
    starts: Any,
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    found = _backward(grad_out, value, shapes, starts, locations, weights, deterministic, wanted)
    if found is not None:
        return found
    return _registered.gradients(grad_out, value, shapes, starts, locations, weights, deterministic, wanted)
