"""Two linear layers over the same input as one matrix product, which launches and reads less.

Only where autograd records nothing: there the joined parameters can be kept. With gradients, splitting the result and
joining the gradients again costs what the product saves.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as _hooks

__all__ = ["apply_both", "forget"]

_is_grad_enabled = torch.is_grad_enabled
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Each returns 0 or false unless something intercepts operator calls. What it sees must be the layers themselves.
_WATCHERS: tuple[Any, ...] = (
    torch.compiler.is_compiling,
    torch._C._len_torch_dispatch_stack,
    torch._C._are_functorch_transforms_active,
    torch._C._is_tracing,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS: tuple[Any, ...] = tuple(getattr(_hooks, f"_global{name}") for name in _HOOKS)


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


def apply_both(owner: nn.Module, first: nn.Module, second: nn.Module, query: Tensor) -> tuple[Tensor, Tensor]:
    """The results of both layers of a module."""
    if _is_grad_enabled() or not (_is_untouched(first) and _is_untouched(second)) or type(query) is not Tensor:
        return first(query), second(query)
    if any(watches() for watches in _WATCHERS) or any(_GLOBAL_HOOKS):
        return first(query), second(query)
    joined = _join(owner, first, second, query)
    if joined is None:
        return first(query), second(query)
    both = functional.linear(query, joined.weight, joined.bias)
    end = first.out_features
    return both[..., :end], both[..., end:]


def forget(owner: nn.Module) -> None:
    """Drop what is kept for a module: after a change to its parameters that PyTorch may not have counted."""
    _joined.pop(owner, None)


def _is_untouched(layer: nn.Module) -> bool:
    """Whether calling the layer is nothing but a product with its parameters."""
    attributes = vars(layer)
    return (
        type(layer) is nn.Linear and "forward" not in attributes and not any(attributes.get(hooks) for hooks in _HOOKS)
    )


def _join(owner: nn.Module, first: Any, second: Any, query: Tensor) -> _Joined | None:
    """What is kept, made anew if that is old; None if the layers do not fit each other."""
    every: tuple[Tensor | None, ...] = (first.weight, second.weight, first.bias, second.bias)
    parameters = tuple(tensor for tensor in every if tensor is not None)
    # None or all have a bias, and none was swapped for something that is no parameter.
    if len(parameters) == 3 or any(type(tensor) is not nn.Parameter or tensor.is_inference() for tensor in parameters):
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
    alike = all(tensor.dtype is parameters[0].dtype and tensor.device == query.device for tensor in parameters)
    if not alike or first.in_features != second.in_features:
        return None
    joined = _joined[owner] = _Joined(parameters, dtype, key)
    return joined
