"""What drop-ins replace: where its source is, and calls of it on operands of the tests' own.

Sizes are none of those that drop-ins try, nor usual ones of models.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Call", "Given", "Numbers", "Original", "core_call", "initialised", "module_calls"]

BATCH, QUERIES, HEADS, CHANNELS, POINTS = 2, 5, 6, 24, 2
LISTED = [2, 5, 1]
SHAPES = [(6, 9), (5, 4), (2, 3)]


@dataclass(frozen=True)
class Call:
    """A call, and what it has gradients by."""

    run: Callable[[], Any]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Original:
    """A Python module of another project that is changed."""

    name: str
    sources: Callable[[], Mapping[str, str]]
    "That of it and of those that it imports or that import it, by name, in their order."
    calls: Callable[[Any], Iterator[Call]]
    "Of everything in it."
    patch: Callable[[Mapping[str, ModuleType], bool], list[str]]
    "Of all these modules, strictly or not; returns what is replaced."
    unpatch: Callable[[], None]
    around: Callable[[], Mapping[str, Any]] = dict
    "What is in the modules before their sources run."
    files: Mapping[str, str] = field(default_factory=dict)
    "Of a stand-in for the project."

    @property
    def source(self) -> str:
        """Its own."""
        return self.sources()[self.name]

    def load(self, source: str) -> dict[str, ModuleType]:
        """New modules, this one with another source; in ``sys.modules``, too."""
        modules = {}
        for name, written in self.sources().items():
            module = ModuleType(name)
            vars(module).update(self.around(), __name__=name, __package__=name.rpartition(".")[0])
            sys.modules[name] = modules[name] = module
            exec(compile(source if name == self.name else written, f"{name}.py", "exec"), vars(module))
        return modules


class Numbers:
    """Random tensors that are the same every time."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator().manual_seed(seed)

    def __call__(self, *sizes: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(sizes, generator=self._source, dtype=torch.float64) * scale).requires_grad_()

    def between(self, low: float, high: float, *sizes: int) -> Tensor:
        drawn = torch.rand(sizes, generator=self._source, dtype=torch.float64)
        return (drawn * (high - low) + low).requires_grad_()


def starts() -> Tensor:
    """The first pixel of each level."""
    return torch.tensor([pixels(SHAPES[:level]) for level in range(len(SHAPES))])


def pixels(shapes: Sequence[tuple[int, int]]) -> int:
    return sum(height * width for height, width in shapes)


def core_call(
    function: Callable[..., Any],
    samples: Sequence[int] = (len(SHAPES), POINTS),
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> Call:
    """Of a function of value, locations and weights."""
    numbers = Numbers(7)
    operands = {
        "value": numbers(BATCH, pixels(shapes), HEADS, CHANNELS // HEADS),
        "locations": numbers.between(-0.4, 1.4, BATCH, QUERIES, HEADS, *samples, 2),
        "weights": numbers(BATCH, QUERIES, HEADS, *samples),
    }
    return Call(lambda: function(*operands.values()), operands)


def initialised(module: nn.Module) -> Any:
    """In float64, with unusual numbers in all parameters; offsets reach many pixels."""
    numbers = Numbers(8)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            parameter.copy_(numbers(*parameter.shape, scale=1.5 if "offsets" in name else 0.4))
    return module


@dataclass(frozen=True)
class Given:
    """What a module is called with."""

    query: Tensor
    position: Tensor | None
    features: Tensor
    references: Tensor
    padding: Tensor | None
    "True for pixels that are."


def module_calls(
    module: nn.Module, call: Callable[[Given], Any], shapes: Sequence[tuple[int, int]] = SHAPES
) -> Iterator[Call]:
    """Points and boxes, with and without padding, in training or not, and all else by turns."""
    choices = random.Random(9)
    for seed, (is_box, is_padded, is_training) in enumerate(itertools.product((False, True), repeat=3)):
        numbers = Numbers(10 + seed)
        levels = choices.choice((1, len(shapes)))
        centres = numbers.between(0.0, 1.0, BATCH, QUERIES, levels, 2)
        sizes = numbers.between(0.02, 0.8, BATCH, QUERIES, levels, 2 if is_box else 0)
        given = Given(
            numbers(BATCH, QUERIES, CHANNELS),
            numbers(BATCH, QUERIES, CHANNELS) if choices.random() < 0.5 else None,
            numbers(BATCH, pixels(shapes), CHANNELS),
            torch.cat([centres, sizes], dim=-1).detach().requires_grad_(),
            numbers.between(0.0, 1.0, BATCH, pixels(shapes)) < 0.3 if is_padded else None,
        )
        inputs = {name: tensor for name, tensor in vars(given).items() if tensor is not None and tensor.requires_grad}

        def run(given: Given = given, is_training: bool = is_training) -> Any:
            module.train(is_training)
            return call(given)

        yield Call(run, {**inputs, **dict(module.named_parameters())})
