"""Random inputs that models can do something with: images, words and masks, at two sizes where sizes may change.

One size hides what only happens to fit it. So the two differ, neither is square, and batches hold more than one image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fourtap.errors import InputError

__all__ = ["feeds"]

# Enough for the strides of any backbone: at a stride of 64 there still are 2 x 3 pixels.
_HEIGHTS, _WIDTHS = (128, 256), (192, 192)
_IMAGES = (2, 3)
_OTHERS = (5, 7)
_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


def feeds(
    session: Any, inputs: Mapping[str, Any] | None, sizes: Mapping[str, int | Sequence[int]] | None
) -> list[dict[str, Any]]:
    """What to run a session on, once or twice: arrays by the names of its inputs."""
    wanted = session.get_inputs()
    given = {name: np.asarray(array) for name, array in (inputs or {}).items()}
    unknown = sorted(set(given) - {one.name for one in wanted})
    if unknown:
        raise InputError(f"inputs: expected names of {sorted(one.name for one in wanted)}, found {unknown}")
    first, second = (_shapes(wanted, given, sizes or {}, run) for run in (0, 1))
    source = np.random.default_rng(0)
    return [
        given | {one.name: _random(source, one, shapes[one.name]) for one in wanted if one.name not in given}
        for shapes in ([first] if first == second else [first, second])
    ]


def _shapes(
    wanted: Sequence[Any], given: Mapping[str, Any], sizes: Mapping[str, int | Sequence[int]], run: int
) -> dict[str, tuple[int, ...]]:
    """Of all inputs in the first or the second run; axes of one name have one size."""
    chosen = {name: _of_run(name, size, run) for name, size in sizes.items()}
    for one in wanted:
        if one.name in given:
            names = [axis if isinstance(axis, str) else None for axis in one.shape]
            named = zip(names, given[one.name].shape, strict=False)
            chosen |= {name: size for name, size in named if name is not None}
    shapes = {}
    # Images first: the axes of their masks have the same names.
    for one in sorted(wanted, key=lambda one: len(one.shape) != 4):
        shape = []
        for axis, size in enumerate(one.shape):
            if not isinstance(size, int):
                usual = _usual(axis, len(one.shape))[run]
                size = usual if size is None else chosen.setdefault(size, usual)
            shape.append(size)
        shapes[one.name] = tuple(shape)
    return shapes


def _of_run(name: str, size: int | Sequence[int], run: int) -> int:
    both = [size] if isinstance(size, int) else list(size)
    if len(both) not in (1, 2):
        raise InputError(f"sizes: expected one number or two for {name}, found {len(both)}")
    return int(both[min(run, len(both) - 1)])


def _usual(axis: int, axes: int) -> tuple[int, int]:
    if axis == 0:
        return _IMAGES
    return (_HEIGHTS, _WIDTHS)[axis - 2] if axes == 4 and axis >= 2 else _OTHERS


def _random(source: Any, given: Any, shape: tuple[int, ...]) -> Any:
    kind = _TYPES.get(given.type)
    if kind is None:
        raise InputError(f"{given.name}: expected to be given, as it is a {given.type}, found nothing")
    if len(shape) == 4 and (kind.startswith("float") or kind == "uint8"):
        image = _image(source, shape)
        return (image * 255 if kind == "uint8" else image).astype(kind)
    if kind.startswith("float"):
        return source.standard_normal(shape).astype(kind)
    # Words, or masks whatever they mean by one: some of all that there is, from the first on.
    numbers = np.zeros(shape)
    numbers[(slice(None), *(slice(-(-3 * size // 4)) for size in shape[1:]))[: len(shape)]] = 1
    return numbers.astype(kind)


def _image(source: Any, shape: tuple[int, ...]) -> Any:
    """Waves and noise, from 0 to 1 as pixels are."""
    images, channels, height, width = shape
    rows, columns = np.arange(height)[:, None] / max(height, 1), np.arange(width) / max(width, 1)
    turns, phases = source.uniform(1, 4, (2, images, channels, 1, 1)), source.uniform(0, 1, (images, channels, 1, 1))
    waves = np.sin(2 * np.pi * (turns[0] * rows + turns[1] * columns + phases))
    return 0.5 + 0.35 * waves + source.uniform(-0.15, 0.15, shape)
