"""The cases of all drop-ins: small numbers of everything, all of them different, so that no two axes can be mistaken.

Two levels that are not square; places outside the image; reference points and boxes, one for all levels or one for
each; with and without padding; in training and not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fourtap.compat._trial import Case

__all__ = [
    "CHANNELS",
    "HEADS",
    "POINTS",
    "SHAPES",
    "Numbers",
    "Operands",
    "by_level",
    "core_tensors",
    "function_cases",
    "layers",
    "operands",
    "operands_of_itself",
    "point_list_cases",
    "starts_of",
    "tensor_of",
]

# None of them is usual, as somebody may have written a usual number where the original has an option.
BATCH, QUERIES, HEADS, POINTS = 3, 11, 5, 7
CHANNELS = HEADS * 6
SHAPES: tuple[tuple[int, int], ...] = ((4, 13), (3, 2))


def tensor_of(shapes: Sequence[tuple[int, int]] = SHAPES) -> Tensor:
    """The sizes as a tensor."""
    return torch.tensor(shapes, dtype=torch.int64, device="cpu")


def starts_of(shapes: Sequence[tuple[int, int]] = SHAPES) -> Tensor:
    """The first pixel of each level."""
    counts = [_pixels(shapes[:level]) for level in range(len(shapes))]
    return torch.tensor(counts, dtype=torch.int64, device="cpu")


def _pixels(shapes: Sequence[tuple[int, int]]) -> int:
    return sum(height * width for height, width in shapes)


class Numbers:
    """Numbers that are the same every time, from a source of their own."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator("cpu").manual_seed(seed)

    def __call__(self, *sizes: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        """Between the two."""
        drawn = torch.rand(sizes, generator=self._source, dtype=torch.float64, device="cpu")
        return drawn * (high - low) + low


def core_tensors(samples: Sequence[int], shapes: Sequence[tuple[int, int]] = SHAPES) -> dict[str, Tensor]:
    """Value, ``[N, S, M, D]``, locations and weights, whose ``[N, Q, M]`` are followed by ``samples``."""
    numbers = Numbers(1)
    return {
        # Nothing that limits numbers is the same.
        "value": numbers(BATCH, _pixels(shapes), HEADS, CHANNELS // HEADS, low=-99.0, high=99.0),
        "locations": numbers(BATCH, QUERIES, HEADS, *samples, 2, low=-0.3, high=1.3),
        "weights": numbers(BATCH, QUERIES, HEADS, *samples, low=-20.0, high=20.0),
    }


def by_level(value: Tensor, shapes: Sequence[tuple[int, int]] = SHAPES) -> tuple[Tensor, ...]:
    """``[N, M, D, H * W]`` for each level, of ``[N, S, C]`` or ``[N, S, M, D]``."""
    whole = value if value.dim() == 4 else torch.unflatten(value, -1, (HEADS, -1))
    return torch.split(whole.permute(0, 2, 3, 1), [height * width for height, width in shapes], dim=-1)


def function_cases(*, joined: Iterable[bool] = (False,), listed: bool = True) -> Iterator[Case]:
    """For a function of value, sizes, locations and weights.

    Args:
        joined: Whether levels and points are one axis; versions need not compute both.
        listed: Whether sizes are a list, not a tensor.

    """
    joined, sizes = tuple(joined), list(SHAPES) if listed else tensor_of()
    for is_joined in joined:
        yield Case(
            f"points inside and outside{', in one axis with levels' if is_joined else ''}",
            core_tensors((len(SHAPES) * POINTS,) if is_joined else (len(SHAPES), POINTS)),
            lambda function, given: function(given["value"], sizes, given["locations"], given["weights"]),
            optional=len(joined) > 1,
        )


def point_list_cases(
    value: Callable[[Tensor], Any], shapes: Sequence[tuple[int, int]] = SHAPES, *, optional: bool = False
) -> Iterator[Case]:
    """For a function of lists of points, too; ``value`` makes what it takes of ``[N, S, M, D]``."""
    for points in ([3, 1], [2, 2]):
        for method in ("default", "discrete"):
            tensors = core_tensors((sum(points),), shapes)
            if method == "discrete":
                tensors["locations"] = _between_pixels(tensors["locations"], points, shapes)
            # Both methods by name, and one as the default.
            options = () if method == "default" and points == [2, 2] else (method,)

            def call(
                function: Callable[..., Any],
                given: Mapping[str, Tensor],
                others: tuple[Any, ...] = (points, *options),
            ) -> Any:
                return function(value(given["value"]), list(shapes), given["locations"], given["weights"], *others)

            yield Case(f"{points} points, {method}", tensors, call, optional=optional)


def _between_pixels(locations: Tensor, points: Sequence[int], shapes: Sequence[tuple[int, int]]) -> Tensor:
    """Some of the locations so near to the middle between two pixels that any change of them takes the other one."""
    sizes = torch.cat(
        [tensor_of([shape]).flip(1).expand(count, 2) for shape, count in zip(shapes, points, strict=True)]
    )
    near = ((locations * sizes).round() - 0.5 + (locations * 99).sin().sign() * 1e-6) / sizes
    return torch.cat([near[:, : QUERIES // 2], locations[:, QUERIES // 2 :]], dim=1)


def layers(samples: int, *, projected: bool = True) -> dict[str, nn.Module]:
    """The layers of a module, for so many samples of each head; ``projected`` are the value and the result, too."""
    numbers = Numbers(2)
    found: dict[str, nn.Module] = {
        # Of a few pixels.
        "sampling_offsets": _linear(numbers, HEADS * samples * 2, 1.0),
        "attention_weights": _linear(numbers, HEADS * samples, 0.4),
    }
    if projected:
        found["value_proj"] = _linear(numbers, CHANNELS, 0.4)
        found["output_proj"] = _linear(numbers, CHANNELS, 0.4)
    return found


def _linear(numbers: Numbers, results: int, scale: float) -> nn.Linear:
    # Not by its __init__, which draws random numbers.
    layer: nn.Linear = object.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = CHANNELS, results
    layer.weight = nn.Parameter(numbers(results, CHANNELS) * scale)
    layer.bias = nn.Parameter(numbers(results) * scale)
    return layer


@dataclass(frozen=True)
class Operands:
    """What one call of a module gets."""

    words: str
    query: Tensor
    position: Tensor | None
    features: Tensor | None
    "None where the query is its own."
    references: Tensor
    padding: Tensor | None
    "True for pixels that are."
    training: bool
    "Whether the module is in that mode."

    def case(
        self,
        module: nn.Module,
        call: Callable[[Callable[..., Any], nn.Module, Mapping[str, Tensor | None]], Any],
        *,
        words: str = "",
        optional: bool = False,
    ) -> Case:
        """A call of a module with the tensors of these names, None for those that are not there."""
        named = {name: getattr(self, name) for name in ("query", "position", "features", "references", "padding")}
        tensors = {name: tensor for name, tensor in named.items() if tensor is not None}
        missing = {name: None for name in named if name not in tensors}
        return Case(
            self.words + words,
            tensors,
            lambda function, given: call(function, module, {**given, **missing}),
            module,
            optional,
        )


def operands(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    *,
    points: bool = True,
    boxes: bool = True,
    levels: bool = True,
    padding: bool = True,
) -> Iterator[Operands]:
    """Those of all cases that a module has.

    Args:
        shapes: Of the levels.
        points: Whether it takes reference points.
        boxes: Whether it takes reference boxes.
        levels: Whether it takes those of every level, beside those that all levels share.
        padding: Whether it takes padding, and positions.

    """
    numbers = Numbers(3)
    kinds = [(2, "reference points")] * points + [(4, "reference boxes")] * boxes
    for coordinates, words in kinds:
        for is_padded in (False, True) if padding else (False,):
            # Either in half of the cases, so that no two of these go together.
            for_each = levels and is_padded == (coordinates == 4)
            yield Operands(
                f"{words}{' of every level' if for_each else ''}{' and padding' if is_padded else ''}",
                numbers(BATCH, QUERIES, CHANNELS),
                numbers(BATCH, QUERIES, CHANNELS) if is_padded else None,
                _features(numbers, shapes),
                _references(numbers, len(shapes) if for_each else 1, coordinates),
                numbers(BATCH, _pixels(shapes)) > 0.4 if is_padded else None,
                training=is_padded == (coordinates == 2),
            )
    if boxes:
        # Somebody may have limited numbers; and positions are no sign of padding.
        yield Operands(
            "large offsets in small boxes",
            numbers(BATCH, QUERIES, CHANNELS) * 20,
            numbers(BATCH, QUERIES, CHANNELS),
            _features(numbers, shapes),
            _references(numbers, 1, 4) * torch.tensor([1.0, 1.0, 0.05, 0.05], dtype=torch.float64, device="cpu"),
            None,
            training=False,
        )


def operands_of_itself() -> Operands:
    """Where every pixel is a query, and there are no others."""
    numbers = Numbers(6)
    queries = _pixels(SHAPES)
    return Operands(
        "pixels that attend to themselves",
        numbers(BATCH, queries, CHANNELS),
        numbers(BATCH, queries, CHANNELS),
        None,
        _references(numbers, len(SHAPES), 2, queries),
        numbers(BATCH, queries) > 0.4,
        training=False,
    )


def _features(numbers: Numbers, shapes: Sequence[tuple[int, int]]) -> Tensor:
    return numbers(BATCH, _pixels(shapes), CHANNELS, low=-99.0, high=99.0)


def _references(numbers: Numbers, levels: int, coordinates: int, queries: int = QUERIES) -> Tensor:
    centres = numbers(BATCH, queries, levels, 2, low=-0.1, high=1.1)
    sizes = numbers(BATCH, queries, levels, coordinates - 2, low=0.1, high=1.5)
    return torch.cat([centres, sizes], dim=-1)
