"""Transforms of ``torch.func``: first derivatives of the registered operators, and calls mapped by ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fourtap.errors import UnsupportedError

__all__ = [
    "differentiable_by_transforms",
    "is_transformed",
    "join_images",
    "mapped_first",
    "register_vmap",
    "split_gradients",
    "split_images",
]


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is active."""
    return bool(torch._C._are_functorch_transforms_active())


def differentiable_by_transforms(
    operator: Any, gradients: Any, remember: Callable[..., None], differentiate: Callable[..., Any], refusal: Exception
) -> Callable[..., Any]:
    """The operator as a function that transforms can differentiate once.

    PyTorch's own, made of ``register_autograd``, refuses them all. ``differentiate`` is given the function to compute
    gradients with.
    """

    class Gradients(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return gradients(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise refusal

    class Attention(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            remember(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return differentiate(ctx, *grads, compute=Gradients.apply)

    return Attention.apply  # type: ignore[no-any-return]


def register_vmap(name: str, rule: Callable[..., Any], library: Any) -> None:
    """Register how an operator is mapped. PyTorch before 2.5 maps it call by call."""
    if hasattr(torch.library, "register_vmap"):
        torch.library.register_vmap(name, rule, lib=library)


def join_images(names: Sequence[str], info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The arguments of one call for all mapped ones: of tensors, the mapped axis becomes part of that of images.

    ``names`` are "" for arguments that have none, which must be the same for all.
    """
    joined = []
    for name, dim, argument in zip(names, in_dims, arguments, strict=True):
        if name and isinstance(argument, Tensor):
            argument = mapped_first(argument, dim, info.batch_size).flatten(0, 1)
        elif isinstance(argument, Tensor) and dim is not None:
            raise UnsupportedError(
                "spatial_shapes: expected the same levels for all calls that vmap maps, found others"
            )
        joined.append(argument)
    return joined


def split_images(result: Tensor, info: Any) -> Tensor:
    """The result with the mapped axis apart again, as the first."""
    return torch.unflatten(result, 0, (info.batch_size, result.shape[0] // info.batch_size))


def split_gradients(gradients: Sequence[Tensor], wanted: Sequence[bool], info: Any) -> tuple[list[Tensor], Any]:
    """The same of gradients, and where their mapped axes are; those that nobody wants are empty and have none."""
    found = [
        split_images(gradient, info) if want else gradient for gradient, want in zip(gradients, wanted, strict=True)
    ]
    return found, tuple(0 if want else None for want in wanted)


def mapped_first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the mapped axis first, added if it is not mapped."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
