"""Two linear layers over the same input as one matrix product, which launches, casts and keeps less.

Their parameters are joined in every call. No joined copy outlives one: nobody tells about writes to ``parameter.data``,
through NumPy, or by a kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as _hooks
from torch.utils._device import DeviceContext

__all__ = ["is_exported", "is_untouched", "is_watched", "owns_result", "product_of_both"]

_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_is_traced = torch.compiler.is_dynamo_compiling
_count_modes = torch._C._len_torch_dispatch_stack
_is_transforming = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing
_count_function_modes = torch._C._len_torch_function_stack
_mode_at = torch._C._get_function_stack_at
# As PyTorch has them: others may keep what they return.
_forward = nn.Linear.forward
_linear = functional.linear


def product_of_both(first: nn.Module, second: nn.Module, query: Tensor) -> Tensor | None:
    """The results of both layers side by side; None if the layers must be called."""
    if type(query) is not Tensor or not is_untouched(first) or not is_untouched(second):
        return None
    if _is_traced():
        return None if is_exported() else _joined(first, second, query)
    if is_watched():
        return None
    # Elsewhere joining the parameters costs what one product less saves, unless both products would cast the query.
    return _joined(first, second, query) if _is_grad_enabled() or _is_cast(query) else None


def is_watched() -> bool:
    """Whether something intercepts calls of operators or layers. What it sees must be the layers themselves."""
    return bool(_is_compiling() or _count_modes() or _is_transforming() or _is_tracing() or _has_global_hooks())


def owns_result(layer: nn.Module) -> bool:
    """Whether nobody but the caller can have got hold of what the layer has just put out.

    It may then be changed in place: a product does not need its result for its gradients.
    """
    if not is_untouched(layer):
        return False
    if _is_traced():
        return True
    if is_watched() or functional.linear is not _linear:
        return False
    if type(layer._parameters.get("weight")) not in (nn.Parameter, Tensor):
        return False
    # A default device is such a mode. Other ones see every result.
    return all(type(_mode_at(index)) is DeviceContext for index in range(_count_function_modes()))


def is_exported() -> bool:
    """Whether a call may be part of an exported program, which should have nothing in it that only makes it faster."""
    # Not `torch.compiler.is_exporting`: for Dynamo of PyTorch 2.11 that is always true. Nobody knows before 2.7.
    return bool(getattr(torch.compiler, "_is_exporting_flag", True))


def is_untouched(layer: nn.Module) -> bool:
    """Whether calling the layer is nothing but a product with its parameters."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__ or nn.Linear.forward is not _forward:
        return False
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return not hooks and not _has_global_hooks()


def _has_global_hooks() -> bool:
    return bool(
        _hooks._global_forward_hooks
        or _hooks._global_forward_pre_hooks
        or _hooks._global_backward_hooks
        or _hooks._global_backward_pre_hooks
    )


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


def _joined(first: nn.Module, second: nn.Module, query: Tensor) -> Tensor | None:
    parameters = _parameters(first, second, query)
    if parameters is None:
        return None
    bias = torch.cat(parameters[2:]) if len(parameters) > 2 else None
    return functional.linear(query, torch.cat(parameters[:2]), bias)
