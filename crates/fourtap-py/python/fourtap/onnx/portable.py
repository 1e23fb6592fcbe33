"""Deformable attention made of operators that every runtime has: no GridSample, no node of a library.

The levels stay in one tensor. Each sample takes four rows of it by one Gather, and one MatMul weighs and adds them, so
the number of nodes does not grow with the number of levels. The neighbours of a sample are moved into the level instead
of padding it, and weighed by their distance: a sample between the border and half a pixel outside has one neighbour
with a distance below one, as with zero padding, and a sample further away has none. So no number outside a level is
ever multiplied, and NaN in one does not spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fourtap.onnx.building import Builder

__all__ = ["Levels", "Value", "attend", "places_of_locations", "places_of_projections"]

# Runtimes on GPUs have no fast 64-bit integers, and some have none.
_INDEX = np.int32
_INDEX_TYPE = 6
_HALF = np.float32(0.5)
_X, _Y = np.int64(0), np.int64(1)


@dataclass(frozen=True)
class Value:
    """The tensor ``[N, S, M, D]`` in float, and its sizes as far as they are known."""

    name: str
    images: int | None
    heads: int | None
    channels: int | None


@dataclass(frozen=True)
class Levels:
    """Of each sample of a head, numbers of its level; constants where a model has one image size."""

    resolution: Any
    "Width and height in float, ``[K, 2]``."
    start: Any
    "The first row, ``[K]``."
    samples: int
    "How many, K."

    @classmethod
    def of_samples(cls, build: Builder, shapes: Any, starts: Any, level_of_sample: Sequence[int]) -> Levels:
        """Of heights and widths ``[L, 2]``, first rows ``[L]`` or None, and the level of each sample."""
        shapes = build.node("Cast", shapes, to=_INDEX_TYPE)
        if starts is None:
            heights, widths = (build.node("Gather", shapes, np.int64(side), axis=1) for side in (0, 1))
            starts = build.node("CumSum", build.node("Mul", heights, widths), np.int64(0), exclusive=1)
        starts = build.node("Cast", starts, to=_INDEX_TYPE)
        at = np.array(level_of_sample, np.int64)
        of_samples = build.node("Gather", build.node("Gather", shapes, np.array([1, 0]), axis=1), at, axis=0)
        return cls(build.node("Cast", of_samples, to=1), build.node("Gather", starts, at, axis=0), len(at))


def places_of_locations(build: Builder, levels: Levels, locations: Any) -> Any:
    """Of samples ``[N, Q, M, K, 2]``, in pixels of their levels, 0 at the centre of the first one."""
    return build.node("Sub", build.node("Mul", locations, levels.resolution), _HALF)


def places_of_projections(
    build: Builder, levels: Levels, references: Any, offsets: Any, box_scale: Sequence[float] | None
) -> Any:
    """The same of offsets ``[N, Q, M, K, 2]`` around references ``[N, Q, 1, K or 1, 2]``, or 4 with a scale."""
    if box_scale is None:
        return build.node("Add", places_of_locations(build, levels, references), offsets)
    centres, extents = (build.node("Gather", references, np.array(part), axis=-1) for part in ([0, 1], [2, 3]))
    scale = build.node("Mul", levels.resolution, np.array(box_scale, np.float32)[:, None])
    steps = build.node("Mul", extents, scale)
    return build.node("Add", places_of_locations(build, levels, centres), build.node("Mul", offsets, steps))


def attend(build: Builder, value: Value, levels: Levels, places: Any, weights: Any, *, nearest: bool) -> Any:
    """``[N, Q, M, 1, D]`` of places ``[N, Q, M, K, 2]`` and weights ``[N, Q, M, K]``, all in float."""
    if nearest:
        rows, shares, count = _nearest(build, value, levels, places), weights, levels.samples
    else:
        (rows, shares), count = _neighbours(build, value, levels, places, weights), 4 * levels.samples
    channels: Any = np.array([value.channels])
    if value.channels is None:
        channels = build.node("Slice", build.node("Shape", value.name), np.array([3]), np.array([4]))
    shape = build.node("Concat", np.array([-1]), channels, axis=0)
    samples = build.node("Gather", build.node("Reshape", value.name, shape), rows, axis=0)
    return build.node("MatMul", build.node("Reshape", shares, np.array([0, 0, 0, 1, count])), samples)


def _nearest(build: Builder, value: Value, levels: Levels, places: Any) -> Any:
    """The row of the pixel of each sample, moved into the level."""
    one, none = np.float32(1), np.float32(0)
    last = build.node("Sub", levels.resolution, one)
    # RT-DETRv2 rounds x * W + 0.5 down, half a pixel from where x is.
    pixels = _at_least(build, build.node("Floor", build.node("Add", places, one)), none)
    return _rows(build, value, levels, build.node("Min", pixels, last))


def _neighbours(build: Builder, value: Value, levels: Levels, places: Any, weights: Any) -> tuple[Any, Any]:
    """Rows and weights of the four pixels around each sample, ``[N, Q, M, 4K]``."""
    one, two, none = np.float32(1), np.float32(2), np.float32(0)
    resolution = levels.resolution
    places = build.node("Min", _at_least(build, places, np.float32(-1)), resolution)
    last = build.node("Max", build.node("Sub", resolution, two), none)
    first = build.node("Min", build.node("Max", build.node("Floor", places), none), last)
    apart = build.node("Sub", places, first)
    # In a level of one pixel across, the second neighbour is further away than any sample reaches.
    to_second = build.node("Sub", np.float32(3), build.node("Min", resolution, two))
    near, far = _closeness(build, apart), _closeness(build, build.node("Sub", apart, to_second))

    row = _rows(build, value, levels, first)
    has_second = build.node("Cast", build.node("Min", build.node("Sub", resolution, one), one), to=_INDEX_TYPE)
    has_right, has_below = (build.node("Gather", has_second, at, axis=1) for at in (_X, _Y))
    below = build.node("Mul", has_below, _width(build, value, levels))
    beside = build.node("Add", row, build.node("Mul", has_right, _heads(build, value)))
    rows = [row, beside, build.node("Add", row, below), build.node("Add", beside, below)]

    left, upper, rightmost, lower = (build.node("Gather", of, at, axis=-1) for of in (near, far) for at in (_X, _Y))
    upper, lower = build.node("Mul", upper, weights), build.node("Mul", lower, weights)
    shares = [build.node("Mul", by_row, by_column) for by_row in (upper, lower) for by_column in (left, rightmost)]
    return build.node("Concat", *rows, axis=3), build.node("Concat", *shares, axis=3)


def _closeness(build: Builder, distance: Any) -> Any:
    return build.node("Relu", build.node("Sub", np.float32(1), build.node("Abs", distance)))


def _at_least(build: Builder, numbers: Any, least: Any) -> Any:
    """Not Max, which keeps NaN: a sample at NaN is outside."""
    return build.node("Where", build.node("Greater", numbers, least), numbers, least)


def _rows(build: Builder, value: Value, levels: Levels, pixels: Any) -> Any:
    """Where pixels (x, y) of levels are in ``[N * S * M, D]``."""
    pixels = build.node("Cast", pixels, to=_INDEX_TYPE)
    x, y = (build.node("Gather", pixels, at, axis=-1) for at in (_X, _Y))
    heads = _heads(build, value)
    rows = build.node("Add", build.node("Mul", y, _width(build, value, levels)), build.node("Mul", x, heads))
    every_head = build.node("Reshape", build.node("Range", _INDEX(0), heads, _INDEX(1)), np.array([-1, 1]))
    rows = build.node("Add", rows, build.node("Add", build.node("Mul", levels.start, heads), every_head))
    if value.images == 1:
        return rows
    of_image = build.node("Mul", _size(build, value, 1), heads)
    images = _size(build, value, 0) if value.images is None else _INDEX(value.images)
    every_image = build.node("Mul", build.node("Range", _INDEX(0), images, _INDEX(1)), of_image)
    return build.node("Add", rows, build.node("Reshape", every_image, np.array([-1, 1, 1, 1])))


def _width(build: Builder, value: Value, levels: Levels) -> Any:
    """How many rows of ``[N * S * M, D]`` a row of pixels is, ``[K]``."""
    widths = build.node("Gather", build.node("Cast", levels.resolution, to=_INDEX_TYPE), _X, axis=1)
    return build.node("Mul", widths, _heads(build, value))


def _heads(build: Builder, value: Value) -> Any:
    return _size(build, value, 2) if value.heads is None else _INDEX(value.heads)


def _size(build: Builder, value: Value, axis: int) -> Any:
    """A size that is known when the model runs."""
    shape = build.node("Cast", build.node("Shape", value.name), to=_INDEX_TYPE)
    return build.node("Gather", shape, np.int64(axis), axis=0)
