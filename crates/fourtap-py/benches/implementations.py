"""The implementations of deformable attention that peers.py compares: fourtap, and every other one that is installed.

Nothing of theirs is kept here: each is imported from where its users install it, and called as they call it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from measuring import Levels, grid_sample_attention
from torch import Tensor

import fourtap

IM2COL_STEP = 64  # images that the older extensions compute at a time


class UnsupportedError(Exception):
    """An implementation does not take this problem."""


@dataclass(frozen=True)
class Problem:
    """The operands of one call, all on one device."""

    value: Tensor  # [N, S, M, D]
    levels: Levels
    shapes: Tensor  # [L, 2], int64
    starts: Tensor  # [L], int64
    locations: Tensor  # [N, Q, M, L, P, 2]
    weights: Tensor  # [N, Q, M, L, P]

    @property
    def differentiated(self) -> tuple[Tensor, Tensor, Tensor]:
        """What has gradients."""
        return self.value, self.locations, self.weights


Forward = Callable[[], Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Prepared:
    """A problem in the form that an implementation takes; packing it is not timed."""

    forward: Forward
    inputs: tuple[Tensor, ...]
    gradients: Callable[[tuple[Tensor, ...]], Gradients] = lambda gradients: gradients  # type: ignore[assignment,return-value]


@dataclass(frozen=True)
class Implementation:
    """One of them."""

    name: str
    prepare: Callable[[Problem], Prepared]
    coordinates_in_f32: bool = False  # beside a 16-bit value; else everything has the type of value


def _plain(call: Callable[[Problem], Tensor]) -> Callable[[Problem], Prepared]:
    return lambda problem: Prepared(lambda: call(problem), problem.differentiated)


def _fourtap(problem: Problem) -> Tensor:
    return fourtap.ms_deform_attn(problem.value, problem.levels, problem.locations, problem.weights)


def _pytorch(problem: Problem) -> Tensor:
    return grid_sample_attention(problem.value, problem.levels, problem.locations, problem.weights)


def _compiled() -> Callable[[Problem], Prepared]:
    # A graph of backward alone keeps what forward has saved, which the compiler would otherwise overwrite.
    importlib.import_module("torch._functorch.config").donated_buffer = False

    def prepare(problem: Problem) -> Prepared:
        torch.compiler.reset()  # or after a few problems it would give up and run eagerly
        call = torch.compile(grid_sample_attention, dynamic=False)
        forward = functools.partial(call, problem.value, problem.levels, problem.locations, problem.weights)
        return Prepared(forward, problem.differentiated)

    return prepare


class _Extension(torch.autograd.Function):
    """The two functions that the extension of Deformable DETR and the Hugging Face kernel export."""

    @staticmethod
    def forward(ctx: Any, extension: ModuleType, *tensors: Tensor) -> Tensor:
        ctx.extension = extension
        ctx.save_for_backward(*tensors)
        return extension.ms_deform_attn_forward(*tensors, IM2COL_STEP)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        value, locations, weights = ctx.extension.ms_deform_attn_backward(
            *tensors, gradients[0].contiguous(), IM2COL_STEP
        )
        return None, value, None, None, locations, weights


def _extension(module: ModuleType) -> Callable[[Problem], Prepared]:
    return _plain(
        lambda problem: _Extension.apply(
            module, problem.value, problem.shapes, problem.starts, problem.locations, problem.weights
        )
    )


def _deformable_detr() -> Callable[[Problem], Prepared]:
    return _extension(importlib.import_module("MultiScaleDeformableAttention"))


def _hugging_face() -> Callable[[Problem], Prepared]:
    return _extension(importlib.import_module("kernels").get_kernel("kernels-community/deformable-detr"))


def _mmcv() -> Callable[[Problem], Prepared]:
    function = importlib.import_module("mmcv.ops.multi_scale_deform_attn").MultiScaleDeformableAttnFunction
    return _plain(
        lambda problem: function.apply(
            problem.value, problem.shapes, problem.starts, problem.locations, problem.weights, IM2COL_STEP
        )
    )


def _msda_triton() -> Callable[[Problem], Prepared]:
    function = importlib.import_module("msda_triton").multiscale_deformable_attention

    def call(problem: Problem) -> Tensor:
        return function(
            problem.value, problem.shapes, problem.locations, problem.weights, padding_mode="zeros", align_corners=False
        ).flatten(2)

    return _plain(call)


def _dcnv4() -> Callable[[Problem], Prepared]:
    function = importlib.import_module("DCNv4.functions.flash_deform_attn_func").FlashDeformAttnFunction

    def prepare(problem: Problem) -> Prepared:
        points = problem.weights.shape[-1]
        if points not in (4, 8):
            raise UnsupportedError(f"takes 4 or 8 points, not {points}")
        # It takes logits, whose softmax these weights are, behind the locations.
        weights = problem.weights.detach()
        packed = torch.cat(
            [problem.locations.detach().flatten(3), weights.float().log().to(weights.dtype).flatten(3)], -1
        )
        packed = packed.contiguous().requires_grad_()
        samples = weights[0, 0, 0].numel()

        def forward() -> Tensor:
            return function.apply(problem.value, problem.shapes, problem.starts, packed, IM2COL_STEP, points)

        def gradients(found: tuple[Tensor, ...]) -> Gradients:
            locations, logits = found[1].split([2 * samples, samples], -1)
            return found[0], locations.view_as(problem.locations), logits.view_as(problem.weights)

        return Prepared(forward, (problem.value, packed), gradients)

    return prepare


def logit_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    """The gradient by the logits whose softmax over levels and points the weights are."""
    product = weights * gradient
    return product - weights * product.flatten(3).sum(-1)[..., None, None]


TAKES_LOGITS = "dcnv4"
FOURTAP = Implementation("fourtap", _plain(_fourtap), coordinates_in_f32=True)
ALWAYS = [FOURTAP, Implementation("fourtap-16", _plain(_fourtap)), Implementation("pytorch", _plain(_pytorch))]
FOUND: dict[str, Callable[[], Callable[[Problem], Prepared]]] = {
    "pytorch-compiled": _compiled,
    "deformable-detr": _deformable_detr,
    "huggingface-kernels": _hugging_face,
    "mmcv": _mmcv,
    TAKES_LOGITS: _dcnv4,
    "msda-triton": _msda_triton,
}
NAMES = [implementation.name for implementation in ALWAYS] + list(FOUND)


def installed(names: list[str]) -> Iterator[Implementation | tuple[str, str]]:
    """Those of these names that can be imported, and of each other one its name and what importing it says."""
    for implementation in ALWAYS:
        if implementation.name in names:
            yield implementation
    for name, load in FOUND.items():
        if name not in names:
            continue
        try:
            yield Implementation(name, load())
        except Exception as error:  # whatever a foreign package does on import must not end the others' run
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
