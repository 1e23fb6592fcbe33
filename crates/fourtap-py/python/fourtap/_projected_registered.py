"""The registered PyTorch operators ``torch.ops.fourtap.msda_projected`` and ``msda_projected_backward``.

What :mod:`fourtap._registered` is for given locations and weights, for projections. For compiled modules there is also
``zero_pixels_``, which masks what a linear layer put out, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fourtap import _composed, _native
from fourtap._exporting import is_decomposed
from fourtap._registered import (
    LEVELS,
    levels_from,
    levels_of,
    no_second_derivatives,
    refuse_nested,
    refuse_transforms,
    written_to,
)
from fourtap.errors import InputError

if TYPE_CHECKING:
    from fourtap._native import Projections

__all__ = ["NAME", "attend", "autocast", "differentiable", "gradients", "without_useless_gradients"]

#: The operator, in messages.
NAME = "ms_deform_attn_from_projections"


def attend(operands: Projections[Tensor], deterministic: bool | None, out: Tensor | None) -> Tensor:
    """As ``fourtap.ms_deform_attn_from_projections``."""
    value, _, _, references, offsets, logits, mask, _ = operands
    refuse_nested(
        value=value, reference_points=references, sampling_offsets=offsets, attention_logits=logits, value_mask=mask
    )
    operands = without_useless_gradients(autocast(operands))
    refuse_transforms(NAME, differentiable(operands), out)
    if is_decomposed():
        return written_to(out, _composed.attend_from_projections(*_apart(operands)))
    sure = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    return written_to(out, torch.ops.fourtap.msda_projected(*_flat(operands), sure))


def gradients(
    grad_out: Tensor, operands: Projections[Tensor], deterministic: bool, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The requested gradients of value, reference points, offsets and logits."""
    value, _, _, references, offsets, logits, mask, _ = operands
    refuse_nested(
        grad_out=grad_out,
        value=value,
        reference_points=references,
        sampling_offsets=offsets,
        attention_logits=logits,
        value_mask=mask,
    )
    found = torch.ops.fourtap.msda_projected_backward(grad_out, *_flat(operands), deterministic, wanted)
    return _those(found, wanted)


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
        references, offsets = references.detach(), offsets.detach()
    return value, shapes, starts, references, offsets, logits, mask, settings


def _flat(operands: Projections[Tensor]) -> tuple[Any, ...]:
    """The arguments of the registered operators, but for those of gradients."""
    value, shapes, starts, references, offsets, logits, mask, settings = operands
    points, nearest, box_scale, mask_is_applied = settings
    count = len(shapes)
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


def _apart(operands: Projections[Tensor]) -> Any:
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


def _operands(
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
_NAMES = ("value", "reference_points", "sampling_offsets", "attention_logits")
_RANKS = ((4,), (4, 5), (5,), (4,))
# Of those with offsets and logits in one.
_RANKS_OF_BOTH = ((4,), (4, 5), (3,))


def _msda_projected(*arguments: Any) -> Tensor:
    *operands, _deterministic = arguments
    return _native.torch_projected_forward(_operands(*operands), None)


def _msda_projected_backward(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *operands, deterministic, wanted = arguments
    found = _native.torch_projected_backward(grad_out, _operands(*operands), deterministic, tuple(wanted))
    return tuple(grad_out.new_empty(0) if gradient is None else gradient for gradient in found)


def _zero_pixels(value: Tensor, mask: Tensor) -> None:
    if not _native.torch_zero_pixels(value, mask):
        value.masked_fill_(mask[..., None, None], 0.0)


def _msda_projected_fake(*arguments: Any) -> Tensor:
    value, _, offsets, logits = real = [arguments[at] for at in _REAL]
    expected_ranks = _RANKS if logits is not None else _RANKS_OF_BOTH
    for name, tensor, ranks in zip(_NAMES, real, expected_ranks, strict=False):
        if tensor.dim() not in ranks:
            expected = " or ".join(map(str, ranks))
            raise InputError(f"{name}: expected rank {expected}, found rank {tensor.dim()}")
        if tensor.device != value.device:
            raise InputError(f"{name}: expected {value.device} (where value is), found {tensor.device}")
    out: Tensor = value.new_empty((value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3]))
    return out


def _msda_projected_backward_fake(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    wanted = arguments[-1]
    sources = zip((arguments[at] for at in _REAL), wanted, strict=True)
    return tuple(source.new_empty(source.shape) if want else grad_out.new_empty(0) for source, want in sources)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, shapes, starts, levels, references, offsets, logits, mask, *settings = inputs
    ctx.save_for_backward(value, shapes, starts, references, offsets, logits, mask)
    ctx.levels, ctx.settings = levels, settings


def _differentiate(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    value, shapes, starts, references, offsets, logits, mask = ctx.saved_tensors
    operands = (value, shapes, starts, ctx.levels, references, offsets, logits, mask, *ctx.settings)
    needs = ctx.needs_input_grad
    wanted = tuple(needs[at] for at in _REAL)
    found = torch.ops.fourtap.msda_projected_backward(grad_out, *operands, wanted)
    gradients: list[Tensor | None] = [None] * len(operands)
    for at, gradient in zip(_REAL, _those(found, wanted), strict=True):
        gradients[at] = gradient
    return tuple(gradients)


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise no_second_derivatives(NAME)


for _device in ("CPU", "CUDA"):
    _library.impl("msda_projected", _msda_projected, _device)
    _library.impl("msda_projected_backward", _msda_projected_backward, _device)
    _library.impl("zero_pixels_", _zero_pixels, _device)
torch.library.register_fake("fourtap::msda_projected", _msda_projected_fake, lib=_library)
torch.library.register_fake("fourtap::msda_projected_backward", _msda_projected_backward_fake, lib=_library)
torch.library.register_fake("fourtap::zero_pixels_", lambda value, mask: None, lib=_library)
# Not seen by autograd: the attention that comes after it, with the same mask, gives masked pixels a gradient of zero.
_library.impl("zero_pixels_", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_autograd("fourtap::msda_projected", _differentiate, setup_context=_remember, lib=_library)
torch.library.register_autograd("fourtap::msda_projected_backward", _refuse, lib=_library)
