"""The registered PyTorch operators ``torch.ops.fourtap.msda_projected`` and ``msda_projected_backward``.

What :mod:`fourtap._registered` is for given locations and weights, for projections. For compiled modules there is also
``zero_pixels_``, which masks what a linear layer put out, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fourtap import _composed, _native
from fourtap._exporting import is_decomposed
from fourtap._registered import (
    LEVEL_NAMES,
    LEVELS,
    in_usual_order,
    is_differentiated,
    levels_from,
    levels_of,
    no_second_derivatives,
    refuse_lost_gradients,
    written_to,
)
from fourtap._shadows import UnknownSizeError, known_number, shadows_of
from fourtap._subclasses import refuse_strangers
from fourtap._tracing import length
from fourtap._transforms import (
    differentiable_by_transforms,
    join_images,
    mapped_first,
    register_vmap,
    split_gradients,
    split_images,
)
from fourtap.errors import DTypeError, InputError

if TYPE_CHECKING:
    from fourtap._native import Projections

__all__ = [
    "NAME",
    "apart",
    "attend",
    "autocast",
    "differentiable",
    "gradients",
    "operands_of",
    "without_useless_gradients",
]

#: The operator, in messages.
NAME = "ms_deform_attn_from_projections"


def attend(operands: Projections[Tensor], deterministic: bool | None, out: Tensor | None) -> Tensor:
    """As ``fourtap.ms_deform_attn_from_projections``."""
    _refuse_strangers(None, operands, out)
    operands = without_useless_gradients(autocast(operands))
    refuse_lost_gradients(NAME, differentiable(operands), out)
    if is_decomposed():
        return written_to(out, _composed.attend_from_projections(*apart(operands)))
    sure = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    call = _differentiable if is_differentiated(*differentiable(operands)) else torch.ops.fourtap.msda_projected
    return written_to(out, call(*_flat(operands), sure))


def gradients(
    grad_out: Tensor, operands: Projections[Tensor], deterministic: bool, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The requested gradients of value, reference points, offsets and logits."""
    _refuse_strangers(grad_out, operands, None)
    found = torch.ops.fourtap.msda_projected_backward(grad_out, *_flat(operands), deterministic, wanted)
    return _those(found, wanted)


def _refuse_strangers(grad_out: Any, operands: Projections[Tensor], out: Any) -> None:
    # Dynamo need not trace this: fake and real calls of the operators refuse them too.
    if not torch.compiler.is_dynamo_compiling():
        refuse_strangers(grad_out=grad_out, out=out, **dict(zip(_TENSORS, operands, strict=False)))


def differentiable(operands: Projections[Tensor]) -> list[Tensor]:
    """Value, reference points, offsets and logits, or both in one."""
    return [tensor for tensor in (operands[0], *operands[3:6]) if tensor is not None]


def autocast(operands: Projections[Tensor]) -> Projections[Tensor]:
    """Value in autocast's dtype; the projections in one accepted with it: f32, where they must change."""
    value, shapes, starts, references, offsets, logits, mask, settings = operands
    kind = value.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return operands
    if value.dtype is not torch.float64:
        value = value.to(torch.get_autocast_dtype(kind))
    accepted = (torch.float32, value.dtype)
    references, offsets = (tensor if tensor.dtype in accepted else tensor.float() for tensor in (references, offsets))
    if logits is not None and logits.dtype not in accepted:
        logits = logits.float()
    return value, shapes, starts, references, offsets, logits, mask, settings


def without_useless_gradients(operands: Projections[Tensor]) -> Projections[Tensor]:
    """The operands, detached where they only choose pixels: what is before them then gets no gradient, not zeros."""
    value, shapes, starts, references, offsets, logits, mask, settings = operands
    _, nearest, _, _ = settings
    if nearest:
        if logits is None:
            # The logits, which have a gradient, are in the same tensor.
            *_, offsets, logits, _, _ = apart(operands)
        references, offsets = references.detach(), offsets.detach()
    return value, shapes, starts, references, offsets, logits, mask, settings


def _flat(operands: Projections[Tensor]) -> tuple[Any, ...]:
    """The arguments of the registered operators, but for those of gradients."""
    value, shapes, starts, references, offsets, logits, mask, settings = operands
    points, nearest, box_scale, mask_is_applied = settings
    count = length(shapes)
    return (
        value,
        *levels_from(shapes, starts),
        references,
        offsets,
        logits,
        mask,
        _for_each_level(points, count),
        nearest,
        _for_each_level(box_scale, count),
        mask_is_applied,
    )


def apart(operands: Projections[Tensor]) -> Any:
    """The operands, with offsets and logits in two tensors."""
    value, shapes, starts, references, offsets, logits, mask, settings = operands
    if logits is None:
        heads = value.shape[2]
        end = offsets.shape[-1] // 3 * 2
        logits = torch.unflatten(offsets[..., end:], -1, (heads, -1))
        offsets = torch.unflatten(offsets[..., :end], -1, (heads, -1, 2))
    return value, shapes, starts, references, offsets, logits, mask, settings


def _for_each_level(numbers: Any, levels: int) -> list[Any]:
    """A setting as a list, which is empty for None."""
    if numbers is None:
        return []
    return list(numbers) if isinstance(numbers, Sequence) else [numbers] * levels


def operands_of(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    references: Tensor,
    offsets: Tensor,
    logits: Tensor | None,
    mask: Tensor | None,
    points: Sequence[int],
    nearest: bool,
    box_scale: Sequence[float],
    mask_is_applied: bool,
) -> Projections[Tensor]:
    """What :func:`_flat` was made of."""
    settings = (points or None, nearest, box_scale or None, mask_is_applied)
    return value, levels_of(shapes, levels), starts, references, offsets, logits, mask, settings


def _those(found: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    return tuple(gradient if want else None for gradient, want in zip(found, wanted, strict=True))


_library: Any = torch.library.Library("fourtap", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERANDS = (
    f"Tensor value, {LEVELS}, Tensor reference_points, Tensor sampling_offsets, Tensor? attention_logits, "
    "Tensor? value_mask, int[] points_per_level, bool nearest, float[] box_scale, bool mask_is_applied, "
    "bool deterministic"
)
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(f"msda_projected({_OPERANDS}) -> Tensor", tags=_tags)
_library.define(
    f"msda_projected_backward(Tensor grad_out, {_OPERANDS}, bool[4] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_library.define("zero_pixels_(Tensor(a!) value, Tensor mask) -> ()", tags=_tags)
# Where the differentiable tensors are among the arguments.
_REAL = (0, 4, 5, 6)
_TENSORS = (
    "value",
    *LEVEL_NAMES,
    "reference_points",
    "sampling_offsets",
    "attention_logits",
    "value_mask",
)


def _msda_projected(*arguments: Any) -> Tensor:
    *operands, _deterministic = arguments
    return _native.torch_projected_forward(operands_of(*operands), None)


def _msda_projected_backward(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *operands, deterministic, wanted = arguments
    found = _native.torch_projected_backward(grad_out, operands_of(*operands), deterministic, tuple(wanted))
    return tuple(grad_out.new_empty(0) if gradient is None else gradient for gradient in found)


def _zero_pixels(value: Tensor, mask: Tensor) -> None:
    if not _native.torch_zero_pixels(value, mask):
        value.masked_fill_(mask[..., None, None], 0.0)


def _check(arguments: Sequence[Any], grad_out: Tensor | None) -> None:
    """The checks of a real call."""
    value, shapes, starts, levels, references, offsets, logits, mask, *settings = arguments
    tensors = dict(zip(_TENSORS, (value, shapes, starts, references, offsets, logits, mask), strict=True))
    try:
        *shadows, of_out = shadows_of("value", tensors | {"grad_out": grad_out}, levels=LEVEL_NAMES)
        sizes = [known_number(size) for size in levels]
    except UnknownSizeError:
        return
    of_value, of_shapes, of_starts, *others = cast("list[Any]", shadows)
    _native.check_projected(operands_of(of_value, of_shapes, of_starts, sizes, *others, *settings), of_out)


def _msda_projected_fake(*arguments: Any) -> Tensor:
    *operands, _deterministic = arguments
    _check(operands, None)
    value, offsets = arguments[0], arguments[5]
    out: Tensor = value.new_empty((value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3]))
    return out


def _msda_projected_backward_fake(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *operands, _deterministic, wanted = arguments
    _check(operands, grad_out)
    sources = zip((arguments[at] for at in _REAL), wanted, strict=True)
    return tuple(source.new_empty(source.shape) if want else grad_out.new_empty(0) for source, want in sources)


def _zero_pixels_fake(value: Tensor, mask: Tensor) -> None:
    shadows_of("value", {"value": value, "value_mask": mask})
    if value.dim() != 4:
        raise InputError(f"value: expected rank 4 [N, S, M, D], found rank {value.dim()}")
    if mask.shape != value.shape[:2]:
        raise InputError(f"value_mask: expected shape {list(value.shape[:2])}, found {list(mask.shape)}")
    if mask.dtype not in (torch.bool, torch.uint8):
        raise DTypeError(f"value_mask: expected element type bool or uint8, found {mask.dtype}")


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, shapes, starts, levels, references, offsets, logits, mask, *settings = inputs
    ctx.save_for_backward(value, shapes, starts, references, offsets, logits, mask)
    ctx.levels, ctx.settings = levels, settings


def _differentiate(ctx: Any, grad_out: Tensor, compute: Any = None) -> tuple[Tensor | None, ...]:
    value, shapes, starts, references, offsets, logits, mask = ctx.saved_tensors
    operands = (value, shapes, starts, ctx.levels, references, offsets, logits, mask, *ctx.settings)
    needs = ctx.needs_input_grad
    wanted = tuple(needs[at] for at in _REAL)
    compute = torch.ops.fourtap.msda_projected_backward if compute is None else compute
    found = compute(grad_out, *operands, wanted)
    gradients: list[Tensor | None] = [None] * len(operands)
    for at, gradient in zip(_REAL, _those(found, wanted), strict=True):
        gradients[at] = in_usual_order(gradient) if at == 0 else gradient
    return tuple(gradients)


# What arguments of backward are by name, those with an axis of images; forward has no `grad_out`.
_IMAGES = ("grad_out", "value", "", "", "", "reference_points", "sampling_offsets", "attention_logits", "value_mask")


def _map(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    _, *mapped = _mapped(info, (None, *in_dims), (None, *arguments))
    return split_images(torch.ops.fourtap.msda_projected(*mapped), info), 0


def _map_backward(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    *_, wanted = arguments
    found = torch.ops.fourtap.msda_projected_backward(*_mapped(info, in_dims, arguments))
    found, out_dims = split_gradients(found, wanted, info)
    references = mapped_first(arguments[5], in_dims[5], info.batch_size)
    if wanted[1] and references.shape[1] == 1:
        found[1] = found[1].sum(1, keepdim=True)
    return tuple(found), out_dims


def _mapped(info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    arguments, in_dims = list(arguments), list(in_dims)
    value, references = (mapped_first(arguments[at], in_dims[at], info.batch_size) for at in (1, 5))
    if references.shape[1] == 1:
        # One for all images stands for those of its own call only.
        arguments[5], in_dims[5] = references.expand(-1, value.shape[1], *references.shape[2:]), 0
    names = _IMAGES + ("",) * (len(arguments) - len(_IMAGES))
    return join_images(names, info, in_dims, arguments)


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise no_second_derivatives(NAME)


for _device in ("CPU", "CUDA"):
    _library.impl("msda_projected", _msda_projected, _device)
    _library.impl("msda_projected_backward", _msda_projected_backward, _device)
    _library.impl("zero_pixels_", _zero_pixels, _device)
torch.library.register_fake("fourtap::msda_projected", _msda_projected_fake, lib=_library)
torch.library.register_fake("fourtap::msda_projected_backward", _msda_projected_backward_fake, lib=_library)
torch.library.register_fake("fourtap::zero_pixels_", _zero_pixels_fake, lib=_library)
# Not seen by autograd: the attention that comes after it, with the same mask, gives masked pixels a gradient of zero.
_library.impl("zero_pixels_", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_autograd("fourtap::msda_projected", _differentiate, setup_context=_remember, lib=_library)
torch.library.register_autograd("fourtap::msda_projected_backward", _refuse, lib=_library)
register_vmap("fourtap::msda_projected", _map, _library)
register_vmap("fourtap::msda_projected_backward", _map_backward, _library)
_differentiable = differentiable_by_transforms(
    torch.ops.fourtap.msda_projected,
    torch.ops.fourtap.msda_projected_backward,
    _remember,
    _differentiate,
    no_second_derivatives(NAME),
)
