"""Dense attention for PyTorch tensors.

As in :mod:`fourtap._torch`, plain tensors in eager mode go straight to the compiled part. Everything that intercepts
operator calls gets ``torch.ops.fourtap.dense``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias, CausalVariant

from fourtap import _native
from fourtap._broadcast import are_aligned, attend_broadcast
from fourtap._registered import has_tangent, is_differentiated, no_second_derivatives, wants_gradient
from fourtap._route import Route
from fourtap._shadows import UnknownSizeError, known_number, shadows_of
from fourtap._subclasses import refuse_strangers
from fourtap._tracing import unwarned
from fourtap._transforms import differentiable_by_transforms, mapped_first, register_vmap
from fourtap.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from fourtap._native import DenseSettings

__all__ = ["attend_densely", "autocast", "refuse_derivatives"]

_NAMES = ("query", "key", "value", "attn_mask")
_is_traced = torch.compiler.is_dynamo_compiling
_attend_if_plain = _native.torch_dense_if_plain


def attend_densely(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings) -> Any:
    """As ``fourtap.scaled_dot_product_attention``: the result, or with ``return_lse`` a pair of it and the LSE."""
    if isinstance(attn_mask, CausalBias):
        wanted, attn_mask = _with_causal_bias(attn_mask, query, key, wanted), None
    if _is_traced():
        return _attend_registered(query, key, value, attn_mask, wanted)
    result = _attend_if_plain(query, key, value, attn_mask, wanted)
    if type(result) is not Route:
        return result
    if result is Route.REGISTERED:
        return _attend_registered(query, key, value, attn_mask, wanted)
    refuse_strangers(query=query, key=key, value=value, attn_mask=attn_mask)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    refuse_derivatives(query, key, value, attn_mask)
    attend = _call_operator if _wants_gradient(query, key, value, attn_mask) else _native.torch_dense
    return _attend_any(attend, query, key, value, attn_mask, wanted)


def _with_causal_bias(bias: CausalBias, query: Tensor, key: Tensor, wanted: DenseSettings) -> DenseSettings:
    """The settings that mask what PyTorch's causal bias masks, which has no memory to be read."""
    scale, left, right, bottom_right, enable_gqa, return_lse = wanted
    for name, tensor, length in (("query", query, bias.seq_len_q), ("key", key, bias.seq_len_kv)):
        if tensor.ndim > 1 and tensor.shape[-2] != length:
            raise InputError(
                f"attn_mask: expected a causal bias for the {tensor.shape[-2]} positions of {name}, found for {length}"
            )
    is_lower_right = bias.variant == CausalVariant.LOWER_RIGHT
    if left is right is None or bias.seq_len_q == bias.seq_len_kv:
        bottom_right = is_lower_right
    elif is_lower_right != bottom_right:
        raise InputError(
            f"attn_mask: expected a causal bias aligned as causal_alignment says, found {bias.variant.name}"
        )
    return scale, left, 0, bottom_right, enable_gqa, return_lse


def _attend_registered(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings
) -> Any:
    if not _is_traced():
        # Dynamo need not trace this: fake and real calls of the operator refuse them too.
        refuse_strangers(query=query, key=key, value=value, attn_mask=attn_mask)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    refuse_derivatives(query, key, value, attn_mask)
    return _attend_any(_call_operator, query, key, value, attn_mask, wanted)


def _call_operator(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings) -> Any:
    *settings, return_lse = wanted
    # Gradients are computed from the LSE.
    tensors = [tensor for tensor in (query, key, value, attn_mask) if isinstance(tensor, Tensor)]
    keeps_lse = return_lse or wants_gradient(*tensors)
    call = _differentiable if is_differentiated(*tensors) else torch.ops.fourtap.dense
    out, lse = call(query, key, value, *settings, keeps_lse, attn_mask)
    return (out, lse) if return_lse else out


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return wants_gradient(*(tensor for tensor in tensors if isinstance(tensor, Tensor)))


def _attend_any(
    attend: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings
) -> Any:
    """What ``attend`` gives for tensors that may have to be broadcast first."""
    grouped = wanted[4]
    are_tensors = all(isinstance(tensor, Tensor) for tensor in (query, key, value))
    if not are_tensors or unwarned(are_aligned, query, key, value, grouped):
        return attend(query, key, value, attn_mask, wanted)
    return attend_broadcast(lambda *aligned: attend(*aligned, wanted), query, key, value, attn_mask, grouped, torch)


def autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors in autocast's dtype, as for PyTorch's scaled_dot_product_attention: all but float64.

    A bias may stay in float32.
    """
    *operands, attn_mask = tensors
    kind = operands[0].device.type  # type: ignore[union-attr]
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    if _is_cast(attn_mask) and attn_mask.dtype is not torch.float32:  # type: ignore[union-attr]
        attn_mask = attn_mask.to(dtype)  # type: ignore[union-attr]
    return *(tensor.to(dtype) if _is_cast(tensor) else tensor for tensor in operands), attn_mask  # type: ignore[union-attr]


def _is_cast(tensor: Tensor | None) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype is not torch.float64


def refuse_derivatives(*tensors: Tensor | None) -> None:
    """Refuse to lose a gradient, of which there is none on CUDA in 32 and 64 bits, or a tangent."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            continue
        if wants_gradient(tensor):
            _refuse_gradient(name, tensors[0])
        if forward_ad._current_level >= 0 and has_tangent(tensor):
            raise UnsupportedError(f"{name}: expected a tensor without a derivative, found forward mode (jvp)")


def _refuse_gradient(name: str, query: Any) -> None:
    """Refuse the gradient of the tensor of this name, if backward would: before forward has done its work in vain.

    All tensors have the type of query, but for a bias, which may be in float32 whatever that is.
    """
    if query.is_cuda and query.dtype in (torch.float32, torch.float64):
        raise UnsupportedError(
            f"{name}: expected query, key and value of float16 or bfloat16 where a gradient is wanted on CUDA (the CPU "
            f"has gradients of every type; torch.autocast casts to 16 bits, torch.no_grad() and {name}.detach() ask "
            f"for none), found {query.dtype}"
        )


_library: Any = torch.library.Library("fourtap", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERANDS = "Tensor query, Tensor key, Tensor value"
_SETTINGS = "float? scale, SymInt? left, SymInt? right, bool bottom_right, bool enable_gqa"
_library.define(
    f"dense({_OPERANDS}, {_SETTINGS}, bool return_lse, Tensor? attn_mask=None) -> (Tensor, Tensor)",
    # The result has the memory order of query, so query's strides must not change between tracing and running.
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_library.define(
    f"dense_backward(Tensor grad_out, {_OPERANDS}, {_SETTINGS}, Tensor? attn_mask, Tensor out, Tensor lse, "
    "bool[4] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _dense(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    wanted, attn_mask = _settings(others)
    found = _native.torch_dense(query, key, value, attn_mask, wanted)
    return found if isinstance(found, tuple) else (found, query.new_empty(0))


def _settings(others: tuple[Any, ...]) -> tuple[Any, Tensor | None]:
    """The settings, and the mask, which comes last, since it may be left out."""
    return others[:6], others[6] if len(others) > 6 else None


def _dense_fake(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    settings, attn_mask = _settings(others)
    _check((query, key, value, attn_mask), settings, None)
    rank, return_lse = query.dim(), settings[5]
    *rows, _ = query.shape
    # As empty_out in src/dense.rs: heads together, where they are in query.
    if rank > 2 and rows[-2] > 1 and rows[-1] > 1 and query.stride(-3) < query.stride(-2):
        out = query.new_empty((*rows[:-2], rows[-1], rows[-2], value.shape[-1])).transpose(-3, -2)
    else:
        out = query.new_empty((*rows, value.shape[-1]))
    if not return_lse:
        return out, query.new_empty(0)
    return out, query.new_empty(rows, dtype=torch.float64 if query.dtype is torch.float64 else torch.float32)


def _check(tensors: Sequence[Tensor | None], settings: Sequence[Any], of_backward: Sequence[Tensor] | None) -> None:
    """The checks of a real call; those of a backward one have ``grad_out``, ``out`` and ``lse``."""
    every = dict(zip((*_NAMES, "grad_out", "out", "lse"), (*tensors, *(of_backward or ())), strict=False))
    try:
        shadows = shadows_of("query", every)
        scale, left, right, *flags = settings
        if scale is not None:
            scale = known_number(scale)
        sides = [side if side is None else known_number(side) for side in (left, right)]
    except UnknownSizeError:
        return
    query, key, value, attn_mask, *others = shadows
    _native.check_dense(query, key, value, attn_mask, (scale, *sides, *flags), cast("Any", tuple(others) or None))


def _dense_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *settings, attn_mask, out, lse, wanted = others
    found = _native.torch_dense_backward(
        grad_out, query, key, value, attn_mask, out, lse, (*settings, True), tuple(wanted)
    )
    return tuple(query.new_empty(0) if gradient is None else gradient for gradient in found)  # type: ignore[return-value]


def _dense_backward_fake(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *settings, attn_mask, out, lse, wanted = others
    _check((query, key, value, attn_mask), (*settings, True), (grad_out, out, lse))
    sources = zip((query, key, value, attn_mask), wanted, strict=True)
    return tuple(source.new_empty(source.shape) if want else query.new_empty(0) for source, want in sources)  # type: ignore[return-value]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, *settings, return_lse, attn_mask = inputs
    out, lse = output
    # For calls of the operator itself. Here autograd is off, so the tensors alone do not tell.
    names = dict(zip((0, 1, 2, 9), _NAMES, strict=True))
    for at, is_needed in enumerate(ctx.needs_input_grad):
        if is_needed:
            _refuse_gradient(names[at], query)
    if not return_lse:
        raise InputError("return_lse: expected True where gradients are wanted, found False")
    ctx.save_for_backward(query, key, value, attn_mask, out, lse)
    ctx.mark_non_differentiable(lse)
    ctx.settings = settings


def _differentiate(ctx: Any, grad_out: Tensor, grad_lse: Tensor, compute: Any = None) -> tuple[Tensor | None, ...]:
    query, key, value, attn_mask, out, lse = ctx.saved_tensors
    *needs, needs_bias = (*ctx.needs_input_grad, False)[:10]  # the mask is not counted where it was left out
    wanted = (*needs[:3], needs_bias)
    compute = torch.ops.fourtap.dense_backward if compute is None else compute
    found = compute(grad_out, query, key, value, *ctx.settings, attn_mask, out, lse, wanted)
    by_query, by_key, by_value, by_bias = (
        gradient if want else None for gradient, want in zip(found, wanted, strict=True)
    )
    every = (by_query, by_key, by_value, None, None, None, None, None, None, by_bias)
    return every[: len(ctx.needs_input_grad)]


def _map(info: Any, in_dims: Sequence[Any], query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Any, Any]:
    settings, attn_mask = _settings(others)
    dims = (*in_dims[:3], in_dims[9] if len(in_dims) > 9 else None)
    joined = _Joined(info.batch_size, (query, key, value, attn_mask), dims)
    query, key, value, attn_mask = joined.operands
    out, lse = torch.ops.fourtap.dense(query, key, value, *settings, attn_mask)
    return_lse = settings[5]
    return (joined.split(out), joined.split(lse) if return_lse else lse), (0, 0 if return_lse else None)


def _map_backward(info: Any, in_dims: Sequence[Any], grad_out: Tensor, *arguments: Any) -> tuple[Any, Any]:
    query, key, value, *settings, attn_mask, out, lse, wanted = arguments
    of_grad_out, *of_inputs, of_mask, of_out, of_lse, _ = *in_dims[:4], *in_dims[-4:]
    joined = _Joined(info.batch_size, (query, key, value, attn_mask), (*of_inputs, of_mask))
    query, key, value, attn_mask = joined.operands
    of_forward = (joined.join(out, of_out), joined.join(lse, of_lse))
    grad_out = joined.join(grad_out, of_grad_out)
    found = torch.ops.fourtap.dense_backward(grad_out, query, key, value, *settings, attn_mask, *of_forward, wanted)
    split = [joined.split(gradient) if want else gradient for gradient, want in zip(found, wanted, strict=True)]
    if wanted[3]:
        split[3] = split[3].sum_to_size(joined.mask_sizes).reshape(joined.mask_shape)
    return tuple(split), tuple(0 if want else None for want in wanted)


class _Joined:
    """The tensors of one call for all that ``vmap`` maps: the mapped axis and those before the heads become one."""

    def __init__(self, size: int, tensors: Sequence[Tensor | None], dims: Sequence[int | None]) -> None:
        *operands, attn_mask = tensors
        *of_operands, of_mask = dims
        whole: Any = operands[0]
        rank = whole.dim() - (of_operands[0] is not None)
        self.size = size
        first = mapped_first(whole, of_operands[0], size)
        # Axes between the mapped one and the heads; a tensor without heads has none.
        self.batch = first.shape[1:-3] if rank > 3 else first.shape[1:1]
        self.operands = [self.join(tensor, dim) for tensor, dim in zip(operands, of_operands, strict=True)]
        if attn_mask is not None:
            attn_mask = mapped_first(attn_mask, of_mask, size)
            self.mask_shape = attn_mask.shape
            # An axis of size 1 for each that the mask of a call lacks.
            missing = (1,) * (1 + len(self.batch) + min(rank, 3) - attn_mask.dim())
            self.mask_sizes = (size, *missing, *attn_mask.shape[1:])
            attn_mask = attn_mask.reshape(self.mask_sizes)
            own = self.mask_sizes[1 + len(self.batch) :]
            attn_mask = attn_mask.expand(size, *self.batch, *own).reshape((-1, *own))
        self.operands.append(attn_mask)

    def join(self, tensor: Any, dim: int | None) -> Any:
        """The tensor of one call for all."""
        tensor = mapped_first(tensor, dim, self.size)
        return tensor.flatten(0, len(self.batch)) if self.batch else tensor

    def split(self, result: Tensor) -> Tensor:
        """The result of that call with the axes of all apart again."""
        return torch.unflatten(result, 0, (self.size, *self.batch))


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise no_second_derivatives("scaled_dot_product_attention")


for _device in ("CPU", "CUDA"):
    _library.impl("dense", _dense, _device)
    _library.impl("dense_backward", _dense_backward, _device)
torch.library.register_fake("fourtap::dense", _dense_fake, lib=_library)
torch.library.register_fake("fourtap::dense_backward", _dense_backward_fake, lib=_library)
torch.library.register_autograd("fourtap::dense", _differentiate, setup_context=_remember, lib=_library)
torch.library.register_autograd("fourtap::dense_backward", _refuse, lib=_library)
register_vmap("fourtap::dense", _map, _library)
register_vmap("fourtap::dense_backward", _map_backward, _library)
_differentiable = differentiable_by_transforms(
    torch.ops.fourtap.dense,
    torch.ops.fourtap.dense_backward,
    _remember,
    _differentiate,
    no_second_derivatives("scaled_dot_product_attention"),
)
