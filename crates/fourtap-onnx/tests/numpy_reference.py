"""Deformable attention in float64 NumPy, by its formula and slowly."""

from __future__ import annotations

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    if logits.shape[-1] == 0:
        return logits
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def given_places(locations: np.ndarray, weights: np.ndarray, shapes: np.ndarray) -> list[tuple]:
    """x, y in pixels and weights of the samples of each level, from `[N, Q, M, L, P, 2]` and `[N, Q, M, L, P]`."""
    return [
        (
            locations[:, :, :, level, :, 0] * width - 0.5,
            locations[:, :, :, level, :, 1] * height - 0.5,
            weights[:, :, :, level],
        )
        for level, (height, width) in enumerate(shapes)
    ]


def projected_places(
    references: np.ndarray,
    offsets: np.ndarray,
    logits: np.ndarray,
    shapes: np.ndarray,
    points: list[int],
    box_scale: list[float] | None,
) -> list[tuple]:
    """The same from reference points, offsets in pixels, or in parts of boxes, and logits."""
    weights = softmax(logits)
    if references.ndim == 4:
        references = references[:, :, :, None]
    places, first = [], 0
    for level, (height, width) in enumerate(shapes):
        count = points[level]
        samples = slice(first, first + count)
        first += count
        of_level = references[:, :, level if references.shape[2] > 1 else 0]
        # Each stands for every so many points.
        of_points = of_level[:, :, np.arange(count) % of_level.shape[2], None]
        of_points = np.moveaxis(of_points, 3, 2)
        moved = []
        for axis, size in enumerate((width, height)):
            step = 1.0
            if references.shape[-1] == 4:
                factor = 0.5 / max(count, 1) if box_scale is None else box_scale[level]
                step = of_points[..., 2 + axis] * size * factor
            moved.append(of_points[..., axis] * size + offsets[:, :, :, samples, axis] * step - 0.5)
        places.append((*moved, weights[..., samples]))
    return places


def attend(
    value: np.ndarray,
    shapes: np.ndarray,
    starts: np.ndarray,
    places: list[tuple],
    queries: int,
    *,
    nearest: bool = False,
) -> np.ndarray:
    """`[N, Q, M, D]`; masked pixels of value are 0 already."""
    n, _, m, d = value.shape
    out = np.zeros((n, queries, m, d))
    images, heads = np.arange(n)[:, None, None, None], np.arange(m)[None, None, :, None]
    for (height, width), start, (x, y, weights) in zip(shapes, starts, places, strict=True):
        if height == 0 or width == 0:
            continue

        def pixels(
            row: np.ndarray, column: np.ndarray, height: int = height, width: int = width, start: int = start
        ) -> np.ndarray:
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = start + row.clip(0, height - 1) * width + column.clip(0, width - 1)
            return np.where(inside[..., None], value[images, index, heads], 0)

        if nearest:
            # Of the pixels that there are.
            column, row = (np.floor(x + 1).clip(0, width - 1), np.floor(y + 1).clip(0, height - 1))
            read = pixels(row.astype(int), column.astype(int))
        else:
            column, row = np.floor(x).astype(int), np.floor(y).astype(int)
            right, below = (x - column)[..., None], (y - row)[..., None]
            read = (1 - below) * ((1 - right) * pixels(row, column) + right * pixels(row, column + 1))
            read += below * ((1 - right) * pixels(row + 1, column) + right * pixels(row + 1, column + 1))
        out += (weights[..., None] * read).sum(3)
    return out
