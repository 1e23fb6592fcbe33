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
from fourtap._registered import has_tangent, refuse_nested
from fourtap._route import Route
from fourtap.errors import DTypeError, InputError, UnsupportedError

if TYPE_CHECKING:
    from fourtap._native import DenseSettings

__all__ = ["attend_densely"]

_NAMES = ("query", "key", "value")
_is_traced = torch.compiler.is_dynamo_compiling
_attend_if_plain = _native.torch_dense_if_plain


def attend_densely(query: Tensor, key: Tensor, value: Tensor, wanted: DenseSettings) -> Any:
    """As ``fourtap.scaled_dot_product_attention``: the result, or with ``return_lse`` a pair of it and the LSE."""
    if _is_traced():
        return _attend_registered(query, key, value, wanted)
    result = _attend_if_plain(query, key, value, wanted)
    if type(result) is not Route:
        return result
    if result is Route.REGISTERED:
        return _attend_registered(query, key, value, wanted)
    query, key, value = _autocast(query, key, value)
    _refuse_derivatives(query, key, value)
    return _native.torch_dense(query, key, value, wanted)


def _attend_registered(query: Tensor, key: Tensor, value: Tensor, wanted: DenseSettings) -> Any:
    refuse_nested(query=query, key=key, value=value)
    query, key, value = _autocast(query, key, value)
    _refuse_derivatives(query, key, value)
    out, lse = torch.ops.fourtap.dense(query, key, value, *wanted)
    return (out, lse) if wanted[-1] else out


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype, as for PyTorch's scaled_dot_product_attention: all but float64."""
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) if _is_cast(tensor) else tensor for tensor in tensors)


def _is_cast(tensor: Tensor) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype is not torch.float64


def _refuse_derivatives(*tensors: Tensor) -> None:
    """Refuse to lose a gradient or a tangent."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise _no_gradient(name)
        if forward_ad._current_level >= 0 and has_tangent(tensor):
            raise UnsupportedError(f"{name}: expected a tensor without a derivative, found forward mode (jvp)")


def _no_gradient(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}: expected a tensor that needs no gradient, since scaled_dot_product_attention has no backward yet "
        f"(call it under torch.no_grad(), or with {name}.detach()), found requires_grad=True"
    )


_library: Any = torch.library.Library("fourtap", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "dense(Tensor query, Tensor key, Tensor value, float? scale, SymInt? left, SymInt? right, bool bottom_right, "
    "bool enable_gqa, bool return_lse) -> (Tensor, Tensor)",
    # The result has the memory order of query, so query's strides must not change between tracing and running.
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _dense(query: Tensor, key: Tensor, value: Tensor, *wanted: Any) -> tuple[Tensor, Tensor]:
    found = _native.torch_dense(query, key, value, wanted)
    return found if isinstance(found, tuple) else (found, query.new_empty(0))


def _dense_fake(query: Tensor, key: Tensor, value: Tensor, *wanted: Any) -> tuple[Tensor, Tensor]:
    _, _, _, _, enable_gqa, return_lse = wanted
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
    *rows, _ = query.shape
    # As empty_out in src/dense.rs: heads together, where they are in query.
    if rank > 2 and rows[-2] > 1 and rows[-1] > 1 and query.stride(-3) < query.stride(-2):
        out = query.new_empty((*rows[:-2], rows[-1], rows[-2], value.shape[-1])).transpose(-3, -2)
    else:
        out = query.new_empty((*rows, value.shape[-1]))
    if not return_lse:
        return out, query.new_empty(0)
    return out, query.new_empty(rows, dtype=torch.float64 if query.dtype is torch.float64 else torch.float32)


def _refuse_gradient(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    raise _no_gradient(_NAMES[ctx.needs_input_grad.index(True)])


def _no_backward(ctx: Any, *grads: Tensor) -> None:
    raise AssertionError("the forward pass was refused")


for _device in ("CPU", "CUDA"):
    _library.impl("dense", _dense, _device)
torch.library.register_fake("fourtap::dense", _dense_fake, lib=_library)
torch.library.register_autograd("fourtap::dense", _no_backward, setup_context=_refuse_gradient, lib=_library)
