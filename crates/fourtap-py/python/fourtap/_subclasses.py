"""Which subclasses of ``Tensor`` are served: one rule for all operators.

A subclass that overrides neither ``__torch_function__`` nor ``__torch_dispatch__`` is memory like every tensor. One
that does may show something else than its memory holds: a causal bias has no memory, a quantised or masked tensor keeps
its numbers in others. Such a tensor is refused by name, unless it is known to see our operators called and to answer
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fourtap.errors import InputError

__all__ = ["refuse_strangers", "refuse_without_memory"]

# By name, so that nothing is imported for them. All see the registered operators and know what to do.
_KNOWN = frozenset(
    {
        "torch._subclasses.fake_tensor.FakeTensor",
        "torch._subclasses.functional_tensor.FunctionalTensor",
        "torch.distributed._functional_collectives.AsyncCollectiveTensor",
        "torch.distributed.tensor.DTensor",
    }
)
_NO_FUNCTIONS = torch._C._disabled_torch_function_impl
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_ANY_FUNCTION = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def refuse_strangers(**tensors: Any) -> None:
    """Refuse tensors by name that the registered operators must not be called with."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            _refuse_layout(name, tensor)
            kind = type(tensor)
            if kind is not Tensor and _is_special(kind) and _name(kind) not in _KNOWN:
                raise _stranger(name, kind)


def refuse_without_memory(name: str, tensor: Tensor) -> None:
    """Refuse a tensor whose memory is about to be read, if it may hold something else than the tensor shows."""
    _refuse_layout(name, tensor)
    if _is_special(type(tensor)):
        raise _stranger(name, type(tensor))


def _refuse_layout(name: str, tensor: Tensor) -> None:
    if tensor.is_nested:
        raise InputError(f"{name}: expected a dense tensor, found a nested tensor")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name}: expected a dense tensor, found {tensor.layout}")


def _is_special(kind: Any) -> bool:
    function, dispatch = kind.__torch_function__, kind.__torch_dispatch__
    is_usual = function is _NO_FUNCTIONS or getattr(function, "__func__", None) is _ANY_FUNCTION
    return not is_usual or dispatch is not _NO_DISPATCH


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _stranger(name: str, kind: Any) -> InputError:
    return InputError(
        f"{name}: expected a tensor whose memory holds what it shows, found {_name(kind)}, which overrides what "
        f"operators do (if its memory is plain, pass {name}.as_subclass(torch.Tensor))"
    )
