"""The registered PyTorch operators ``torch.ops.fourtap.msda`` and ``msda_backward``.

For torch.compile, export, fake tensors, modes and transforms: for everything that intercepts operator calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fourtap import _composed, _native
from fourtap._exporting import is_decomposed
from fourtap._shadows import UnknownSizeError, known_number, shadows_of
from fourtap._subclasses import refuse_strangers
from fourtap._transforms import (
    differentiable_by_transforms,
    is_transformed,
    join_images,
    register_vmap,
    split_gradients,
    split_images,
)
from fourtap.errors import InputError, UnsupportedError

__all__ = [
    "LEVELS",
    "LEVEL_NAMES",
    "accept_out",
    "attend",
    "autocast",
    "copy_of_list",
    "gradients",
    "has_tangent",
    "in_usual_order",
    "levels_from",
    "levels_of",
    "no_gradient_into_out",
    "no_second_derivatives",
    "refuse_lost_gradients",
    "wants_gradient",
    "whole_numbers",
    "written_to",
]


def attend(
    value: Tensor,
    shapes: Any,
    starts: Any,
    locations: Tensor,
    weights: Tensor,
    deterministic: bool | None,
    out: Tensor | None,
) -> Tensor:
    """As ``fourtap.ms_deform_attn``."""
    _refuse_strangers(None, value, shapes, starts, locations, weights, out)
    value, locations, weights = autocast(value, locations, weights)
    refuse_lost_gradients("ms_deform_attn", (value, locations, weights), out)
    if is_decomposed():
        result = _composed.attend(value, shapes, starts, locations, weights)
    else:
        shapes, starts, levels = levels_from(shapes, starts)
        sure = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
        call = _differentiable if is_differentiated(value, locations, weights) else torch.ops.fourtap.msda
        result = call(value, shapes, starts, levels, locations, weights, sure)
    return written_to(out, result)


def refuse_lost_gradients(operator: str, tensors: Sequence[Tensor], out: Tensor | None) -> None:
    """Refuse whatever would lose a gradient: ``out`` and forward mode."""
    if wants_gradient(*tensors) and out is not None:
        raise no_gradient_into_out()
    if forward_ad._current_level >= 0 and any(has_tangent(tensor) for tensor in tensors):
        # PyTorch would silently ignore the tangents.
        raise UnsupportedError(f"{operator}: expected derivatives in reverse mode, found forward mode (jvp)")


def _refuse_strangers(
    grad_out: Any, value: Any, shapes: Any, starts: Any, locations: Any, weights: Any, out: Any
) -> None:
    # Dynamo need not trace this: fake and real calls of the operators refuse them too.
    if not torch.compiler.is_dynamo_compiling():
        refuse_strangers(
            grad_out=grad_out,
            value=value,
            spatial_shapes=shapes,
            level_start_index=starts,
            sampling_locations=locations,
            attention_weights=weights,
            out=out,
        )


def accept_out(out: Tensor) -> None:
    """Refuse an ``out`` that PyTorch's own functions would not write to either."""
    if out.requires_grad and torch.is_grad_enabled():
        raise InputError("out: expected a tensor that requires no gradient, found one that does")
    if torch.compiler.is_dynamo_compiling():
        return
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise InputError("out: expected a tensor that may be written outside inference mode, found an inference tensor")
    if torch._C._is_cow_tensor(out):  # type: ignore[attr-defined]
        # Its memory is shared with others until it is written, which asking for the address announces.
        out.data_ptr()


def written_to(out: Tensor | None, result: Tensor) -> Tensor:
    """The result, in ``out`` if there is one."""
    if out is None:
        return result
    accept_out(out)
    if out.shape != result.shape or out.dtype != result.dtype or out.device != result.device:
        raise InputError(
            f"out: expected shape {list(result.shape)} of {result.dtype} on {result.device}, "
            f"found {list(out.shape)} of {out.dtype} on {out.device}"
        )
    return out.copy_(result)


def gradients(
    grad_out: Tensor,
    value: Tensor,
    shapes: Any,
    starts: Any,
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The requested gradients of value, locations and weights."""
    _refuse_strangers(grad_out, value, shapes, starts, locations, weights, None)
    shapes, starts, levels = levels_from(shapes, starts)
    found = torch.ops.fourtap.msda_backward(
        grad_out, value, shapes, starts, levels, locations, weights, deterministic, wanted
    )
    return _those(found, wanted)


def _those(found: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    by_value, by_locations, by_weights = (
        gradient if want else None for gradient, want in zip(found, wanted, strict=True)
    )
    return by_value, by_locations, by_weights


def autocast(value: Tensor, locations: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value in autocast's dtype; locations and weights in one accepted with it: f32, where they must change."""
    kind = value.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        if value.dtype is not torch.float64:
            value = value.to(torch.get_autocast_dtype(kind))
        if locations.dtype is not torch.float32 and locations.dtype is not value.dtype:
            locations = locations.float()
        if weights.dtype is not torch.float32 and weights.dtype is not value.dtype:
            weights = weights.float()
    return value, locations, weights


def in_usual_order(grad_value: Tensor | None) -> Tensor | None:
    """The gradient of ``value`` with the strides that the field's own code gives it, made of ``grid_sample``.

    On the CPU, of one image: batch norm of PyTorch 2.15 reads a gradient wrongly that is channels-last but for the
    stride of the one image, which is what becomes of ours in models that have no layer between the two, as D-FINE.
    """
    if grad_value is None or not grad_value.is_cpu or grad_value.shape[0] != 1:
        return grad_value
    return grad_value.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def has_tangent(tensor: Tensor) -> bool:
    """Whether it has a forward-mode derivative."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


_UNCHANGING = frozenset((int, float, tuple))


def copy_of_list(argument: Any) -> Any:
    """The argument as it is now, for backward: the caller may change a list or an array before that."""
    if type(argument) is list or type(argument) is tuple:
        # The usual case, where it costs something: every call with gradients has one.
        return [item if type(item) in _UNCHANGING else copy_of_list(item) for item in argument]
    if argument is None or isinstance(argument, (int, float, str, bytes, Tensor)) or not hasattr(argument, "__iter__"):
        return argument
    return [copy_of_list(item) for item in argument]


def levels_from(shapes: Any, starts: Any) -> tuple[Tensor | None, Tensor | None, list[int]]:
    """Levels as the registered operators take them: tensors, or a flat list of heights and widths."""
    if isinstance(shapes, Tensor):
        starts = starts if starts is None or isinstance(starts, Tensor) else whole_numbers(starts).to(shapes.device)
        return shapes, starts, []
    sizes = [size for height, width in shapes for size in (height, width)]
    # Sizes that torch.jit traces are tensors, and a list of numbers would make constants of them.
    if starts is None and not any(isinstance(size, Tensor) for size in sizes):
        return None, None, sizes
    table = whole_numbers(sizes).reshape(-1, 2)
    if starts is None:
        return table, None, []
    starts = starts if isinstance(starts, Tensor) else whole_numbers(starts)
    return table.to(starts.device), starts, []


def whole_numbers(numbers: Sequence[Any]) -> Tensor:
    """One tensor of them all. Those that are tensors, as sizes are while torch.jit traces, stay part of the graph."""
    if any(isinstance(number, Tensor) for number in numbers):
        # Not as_tensor, of which the tracer warns.
        each = [n if isinstance(n, Tensor) else torch.full((), n, dtype=torch.int64) for n in numbers]
        return torch.stack(each)
    return torch.as_tensor(numbers)


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd records a call with these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def is_differentiated(*tensors: Tensor) -> bool:
    """Whether a transform of ``torch.func`` may differentiate a call with these tensors."""
    # Dynamo of PyTorch 2.4 cannot trace this check.
    return not torch.compiler.is_dynamo_compiling() and is_transformed() and wants_gradient(*tensors)


def no_gradient_into_out() -> InputError:
    """The error for ``out`` where a gradient would be lost."""
    return InputError("out: expected none where gradients are wanted, found a tensor")


def no_second_derivatives(operator: str) -> UnsupportedError:
    """The error for differentiating a gradient."""
    return UnsupportedError(f"{operator}: expected to be differentiated once, found a second time")


_library: Any = torch.library.Library("fourtap", "DEF")  # type: ignore[no-untyped-call]
LEVEL_NAMES = ("spatial_shapes", "level_start_index")
LEVELS = "Tensor? spatial_shapes, Tensor? level_start_index, SymInt[] levels"
_OPERANDS = f"Tensor value, {LEVELS}, Tensor sampling_locations, Tensor attention_weights, bool deterministic"
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(f"msda({_OPERANDS}) -> Tensor", tags=_tags)
_library.define(f"msda_backward(Tensor grad_out, {_OPERANDS}, bool[3] wanted) -> (Tensor, Tensor, Tensor)", tags=_tags)


def levels_of(shapes: Any, levels: Sequence[int]) -> Any:
    """The levels again, from what :func:`levels_from` made of them."""
    return [levels[at : at + 2] for at in range(0, len(levels), 2)] if shapes is None else shapes


def _msda(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
) -> Tensor:
    return _native.torch_forward(value, levels_of(shapes, levels), starts, locations, weights, None)


def _msda_backward(
    grad_out: Tensor,
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    found = _native.torch_backward(
        grad_out, value, levels_of(shapes, levels), starts, locations, weights, deterministic, tuple(wanted)
    )
    return tuple(grad_out.new_empty(0) if gradient is None else gradient for gradient in found)


def _check(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    grad_out: Tensor | None,
) -> None:
    """The checks of a real call."""
    try:
        shadows = shadows_of(
            "value",
            {
                "value": value,
                "spatial_shapes": shapes,
                "level_start_index": starts,
                "sampling_locations": locations,
                "attention_weights": weights,
                "grad_out": grad_out,
            },
            levels=LEVEL_NAMES,
        )
        sizes = [known_number(size) for size in levels]
    except UnknownSizeError:
        return
    of_value, of_shapes, of_starts, of_locations, of_weights, of_out = shadows
    _native.check(of_value, levels_of(of_shapes, sizes), of_starts, of_locations, of_weights, of_out)


def _msda_fake(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
) -> Tensor:
    _check(value, shapes, starts, levels, locations, weights, None)
    return value.new_empty((value.shape[0], locations.shape[1], value.shape[2] * value.shape[3]))


def _msda_backward_fake(
    grad_out: Tensor,
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    _check(value, shapes, starts, levels, locations, weights, grad_out)
    sources = zip((value, locations, weights), wanted, strict=True)
    return tuple(source.new_empty(source.shape) if want else grad_out.new_empty(0) for source, want in sources)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, shapes, starts, levels, locations, weights, deterministic = inputs
    ctx.save_for_backward(value, shapes, starts, locations, weights)
    ctx.levels, ctx.deterministic = levels, deterministic


def _differentiate(ctx: Any, grad_out: Tensor, compute: Any = None) -> tuple[Tensor | None, ...]:
    value, shapes, starts, locations, weights = ctx.saved_tensors
    needs = ctx.needs_input_grad
    wanted = (needs[0], needs[4], needs[5])
    compute = torch.ops.fourtap.msda_backward if compute is None else compute
    found = compute(grad_out, value, shapes, starts, ctx.levels, locations, weights, ctx.deterministic, wanted)
    by_value, by_locations, by_weights = _those(found, wanted)
    return in_usual_order(by_value), None, None, None, by_locations, by_weights, None


# Tensors that have an axis of images, which a mapped axis becomes part of.
_IMAGES = ("value", "", "", "", "sampling_locations", "attention_weights")


def _map(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    found = torch.ops.fourtap.msda(*join_images((*_IMAGES, ""), info, in_dims, arguments))
    return split_images(found, info), 0


def _map_backward(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    *_, wanted = arguments
    joined = join_images(("grad_out", *_IMAGES, "", ""), info, in_dims, arguments)
    found, out_dims = split_gradients(torch.ops.fourtap.msda_backward(*joined), wanted, info)
    return tuple(found), out_dims


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise no_second_derivatives("ms_deform_attn")


for _device in ("CPU", "CUDA"):
    _library.impl("msda", _msda, _device)
    _library.impl("msda_backward", _msda_backward, _device)
torch.library.register_fake("fourtap::msda", _msda_fake, lib=_library)
torch.library.register_fake("fourtap::msda_backward", _msda_backward_fake, lib=_library)
torch.library.register_autograd("fourtap::msda", _differentiate, setup_context=_remember, lib=_library)
torch.library.register_autograd("fourtap::msda_backward", _refuse, lib=_library)
register_vmap("fourtap::msda", _map, _library)
register_vmap("fourtap::msda_backward", _map_backward, _library)
_differentiable = differentiable_by_transforms(
    torch.ops.fourtap.msda,
    torch.ops.fourtap.msda_backward,
    _remember,
    _differentiate,
    no_second_derivatives("ms_deform_attn"),
)
