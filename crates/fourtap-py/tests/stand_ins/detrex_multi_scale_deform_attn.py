"""detrex's module of the operator, which puts a class that raises in place of its own without the extension."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function


class MultiScaleDeformableAttnFunction(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        return _C.ms_deform_attn_forward(*arguments)


def multi_scale_deformable_attn_pytorch(*arguments: Any) -> Tensor:
    raise AssertionError("the original was called")


class MultiScaleDeformableAttention(nn.Module):
    pass


class _Raising(type):
    def __getattr__(cls, name: str) -> Any:
        raise ImportError("Cannot import 'detrex._C'")


try:
    from detrex import _C  # type: ignore[import-not-found]
except ImportError:

    class _Dummy(metaclass=_Raising):
        def __init__(self, *arguments: Any) -> None:
            raise ImportError("Cannot import 'detrex._C'")

    MultiScaleDeformableAttention = _Dummy  # type: ignore[assignment,misc]
