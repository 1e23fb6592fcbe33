"""Two linear layers over the same input as one matrix product, which launches, casts and keeps less.

Where autograd records nothing, the joined parameters of a module of ours are kept. Otherwise they are joined in every
call: with gradients that is little beside what the product saves, half of it in the gradients.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as _hooks

__all__ = ["forget", "is_exported", "is_untouched", "is_watched", "product_of_both"]

_is_grad_enabled = torch.is_grad_enabled
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_compiling = torch.compiler.is_compiling
_is_traced = torch.compiler.is_dynamo_compiling
_count_modes = torch._C._len_torch_dispatch_stack
_is_transforming = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing


class _Joined:
    """The parameters of two layers in one, and what they were made of."""

    def __init__(self, parameters: tuple[Tensor, ...], dtype: torch.dtype, key: Any) -> None:
        # Not an inference tensor, which later calls might not be allowed to use.
        with torch.inference_mode(False), torch.no_grad():
            # As long as these are kept, no other parameter can be at their addresses, which are part of the key.
            self.sources = [parameter.detach() for parameter in parameters]
            first, second = parameters[:2]
            self.weight = torch.cat([first, second]).to(dtype)
            self.bias = torch.cat(parameters[2:]).to(dtype) if len(parameters) > 2 else None
        self.key = key


# Not attributes of the modules, where copies, pickles and tracers would meet them.
_joined: WeakKeyDictionary[nn.Module, _Joined] = WeakKeyDictionary()


def product_of_both(
    first: nn.Module, second: nn.Module, query: Tensor, *, owner: nn.Module | None = None
) -> Tensor | None:
    """The results of both layers side by side; None if the layers must be called.

    With an owner, which must call :func:`forget`, the joined parameters are kept where autograd records nothing.
    """
    if type(query) is not Tensor or not is_untouched(first) or not is_untouched(second):
        return None
    if _is_traced():
        return None if is_exported() else _joined_anew(first, second, query)
    if is_watched():
        return None
    if _is_grad_enabled():
        return _joined_anew(first, second, query)
    if owner is None:
        # Two products are launched faster than parameters are joined, unless both would cast the query.
        return _joined_anew(first, second, query) if _is_cast(query) else None
    joined = _join(owner, first, second, query)
    return None if joined is None else functional.linear(query, joined.weight, joined.bias)


def forget(owner: nn.Module) -> None:
    """Drop what is kept for a module: after a change to its parameters that PyTorch may not have counted."""
    _joined.pop(owner, None)


def is_watched() -> bool:
    """Whether something intercepts calls of operators or layers. What it sees must be the layers themselves."""
    hooks = _hooks._global_forward_hooks or _hooks._global_forward_pre_hooks
    return bool(_is_compiling() or _count_modes() or _is_transforming() or _is_tracing() or hooks)


def is_exported() -> bool:
    """Whether a call may be part of an exported program, which should have nothing in it that only makes it faster."""
    # Not `torch.compiler.is_exporting`: for Dynamo of PyTorch 2.11 that is always true. Nobody knows before 2.7.
    return bool(getattr(torch.compiler, "_is_exporting_flag", True))


def is_untouched(layer: nn.Module) -> bool:
    """Whether calling the layer is nothing but a product with its parameters."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) is nn.Linear and not hooks and "forward" not in layer.__dict__


def _is_cast(query: Tensor) -> bool:
    kind = query.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return False
    return query.dtype not in (torch.float64, torch.get_autocast_dtype(kind))


def _parameters(first: Any, second: Any, query: Tensor) -> tuple[Tensor, ...] | None:
    """The weights and, if there are any, the biases of both layers; None if these do not fit each other."""
    every: tuple[Tensor | None, ...] = (first.weight, second.weight, first.bias, second.bias)
    parameters = tuple(tensor for tensor in every if tensor is not None)
    # One of the layers has a bias, or one has other things than parameters of its own.
    if len(parameters) == 3 or first.in_features != second.in_features:
        return None
    for tensor in parameters:
        if type(tensor) is not nn.Parameter:
            return None
        if tensor.dtype is not parameters[0].dtype or tensor.device != query.device:
            return None
    return parameters


def _joined_anew(first: nn.Module, second: nn.Module, query: Tensor) -> Tensor | None:
    """The product with parameters that are joined for this call, which autograd can follow."""
    parameters = _parameters(first, second, query)
    if parameters is None:
        return None
    bias = torch.cat(parameters[2:]) if len(parameters) > 2 else None
    return functional.linear(query, torch.cat(parameters[:2]), bias)


def _join(owner: nn.Module, first: Any, second: Any, query: Tensor) -> _Joined | None:
    """What is kept, made anew if that is old; None if the layers do not fit each other."""
    parameters = _parameters(first, second, query)
    if parameters is None or any(tensor.is_inference() for tensor in parameters):
        return None
    kind = query.device.type
    dtype = parameters[0].dtype
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind) and dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(kind)
    stream = None
    if query.is_cuda:
        # A graph would go on reading the joined parameters when the layers have got others.
        if torch.cuda.is_current_stream_capturing():
            return None
        # What one stream has joined, another one might read too early.
        stream = _current_stream(query.get_device()) if _current_stream is not None else None
    key = (dtype, stream, [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in parameters])
    joined = _joined.get(owner)
    if joined is not None and joined.key == key:
        return joined
    joined = _joined[owner] = _Joined(parameters, dtype, key)
    return joined
