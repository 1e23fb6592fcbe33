"""Dense attention for PyTorch tensors.

As in :mod:`fourtap._torch`, plain tensors in eager mode go straight to the compiled part. Everything that intercepts
operator calls gets ``torch.ops.fourtap.dense``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fourtap import _native
from fourtap._broadcast import are_aligned, attend_broadcast
from fourtap._registered import has_tangent, no_second_derivatives, refuse_nested, wants_gradient
from fourtap._route import Route
from fourtap.errors import DTypeError, InputError, UnsupportedError

if TYPE_CHECKING:
    from fourtap._native import DenseSettings

__all__ = ["attend_densely", "autocast", "refuse_derivatives"]

_NAMES = ("query", "key", "value", "attn_mask")
_is_traced = torch.compiler.is_dynamo_compiling
_attend_if_plain = _native.torch_dense_if_plain


def attend_densely(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings) -> Any:
    """As ``fourtap.scaled_dot_product_attention``: the result, or with ``return_lse`` a pair of it and the LSE."""
    if _is_traced():
        return _attend_registered(query, key, value, attn_mask, wanted)
    result = _attend_if_plain(query, key, value, attn_mask, wanted)
    if type(result) is not Route:
        return result
    if result is Route.REGISTERED:
        return _attend_registered(query, key, value, attn_mask, wanted)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    refuse_derivatives(query, key, value, attn_mask)
    attend = _call_operator if _wants_gradient(query, key, value, attn_mask) else _native.torch_dense
    return _attend_any(attend, query, key, value, attn_mask, wanted)


def _attend_registered(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings
) -> Any:
    refuse_nested(query=query, key=key, value=value, attn_mask=attn_mask)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    refuse_derivatives(query, key, value, attn_mask)
    return _attend_any(_call_operator, query, key, value, attn_mask, wanted)


def _call_operator(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings) -> Any:
    *settings, return_lse = wanted
    # Gradients are computed from the LSE.
    keeps_lse = return_lse or _wants_gradient(query, key, value, attn_mask)
    out, lse = torch.ops.fourtap.dense(query, key, value, *settings, keeps_lse, attn_mask)
    return (out, lse) if return_lse else out


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return wants_gradient(*(tensor for tensor in tensors if isinstance(tensor, Tensor)))


def _attend_any(
    attend: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, wanted: DenseSettings
) -> Any:
    """What ``attend`` gives for tensors that may have to be broadcast first."""
    grouped = wanted[4]
    are_tensors = all(isinstance(tensor, Tensor) for tensor in (query, key, value))
    if not are_tensors or are_aligned(query, key, value, grouped):
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
            # Dynamo of PyTorch 2.4 cannot trace this check.
            if not _is_traced() and torch._C._are_functorch_transforms_active():
                raise UnsupportedError(f"{name}: expected gradients by torch.autograd, found a transform of torch.func")
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
    (_, _, _, _, enable_gqa, return_lse), attn_mask = _settings(others)
    rank = query.dim()
    if rank < 2:
        raise InputError(f"query: expected rank 2 or more [..., H, S, D], found rank {rank}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dim() != rank:
            raise InputError(f"{name}: expected rank {rank} (that of query), found rank {tensor.dim()}")
        if tensor.device != query.device:
            raise InputError(f"{name}: expected {query.device} (where query is), found {tensor.device}")
        if tensor.dtype is not query.dtype:
            raise DTypeError(f"{name}: expected element type {query.dtype}, found {tensor.dtype}")
    if key.shape[:-3] != query.shape[:-3] or key.shape[-1] != query.shape[-1]:
        raise InputError(f"key: expected batch and channels of query {list(query.shape)}, found {list(key.shape)}")
    if value.shape[:-1] != key.shape[:-1]:
        raise InputError(f"value: expected shape {[*key.shape[:-1]]} and channels, found {list(value.shape)}")
    if rank > 2 and not (query.shape[-3] % key.shape[-3] == 0 if enable_gqa else query.shape[-3] == key.shape[-3]):
        raise InputError(f"key: expected heads that fit the {query.shape[-3]} of query, found {key.shape[-3]}")
    if attn_mask is not None:
        _check_mask(attn_mask, query, key)
    *rows, _ = query.shape
    # As empty_out in src/dense.rs: heads together, where they are in query.
    if rank > 2 and rows[-2] > 1 and rows[-1] > 1 and query.stride(-3) < query.stride(-2):
        out = query.new_empty((*rows[:-2], rows[-1], rows[-2], value.shape[-1])).transpose(-3, -2)
    else:
        out = query.new_empty((*rows, value.shape[-1]))
    if not return_lse:
        return out, query.new_empty(0)
    return out, query.new_empty(rows, dtype=torch.float64 if query.dtype is torch.float64 else torch.float32)


def _check_mask(attn_mask: Tensor, query: Tensor, key: Tensor) -> None:
    whole = (*query.shape[:-1], key.shape[-2])
    found = tuple(attn_mask.shape)
    if len(found) > len(whole) or not all(
        size == 1 or size == axis for size, axis in zip(reversed(found), reversed(whole), strict=False)
    ):
        raise InputError(f"attn_mask: expected shape broadcasting to {list(whole)}, found {list(found)}")
    if attn_mask.device != query.device:
        raise InputError(f"attn_mask: expected {query.device} (where query is), found {attn_mask.device}")
    if attn_mask.dtype not in (torch.bool, torch.uint8, torch.float32, query.dtype):
        raise DTypeError(f"attn_mask: expected element type bool, float32 or {query.dtype}, found {attn_mask.dtype}")


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
    *_, attn_mask, _, _, wanted = others
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


def _differentiate(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, attn_mask, out, lse = ctx.saved_tensors
    *needs, needs_bias = (*ctx.needs_input_grad, False)[:10]  # the mask is not counted where it was left out
    wanted = (*needs[:3], needs_bias)
    found = torch.ops.fourtap.dense_backward(grad_out, query, key, value, *ctx.settings, attn_mask, out, lse, wanted)
    by_query, by_key, by_value, by_bias = (
        gradient if want else None for gradient, want in zip(found, wanted, strict=True)
    )
    every = (by_query, by_key, by_value, None, None, None, None, None, None, by_bias)
    return every[: len(ctx.needs_input_grad)]


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise no_second_derivatives("scaled_dot_product_attention")


for _device in ("CPU", "CUDA"):
    _library.impl("dense", _dense, _device)
    _library.impl("dense_backward", _dense_backward, _device)
torch.library.register_fake("fourtap::dense", _dense_fake, lib=_library)
torch.library.register_fake("fourtap::dense_backward", _dense_backward_fake, lib=_library)
torch.library.register_autograd("fourtap::dense", _differentiate, setup_context=_remember, lib=_library)
torch.library.register_autograd("fourtap::dense_backward", _refuse, lib=_library)
