"""The operators made of plain ATen operators, for converters of exported programs that know no others.

The formula of :mod:`fourtap.onnx.portable`: one lookup of rows for all levels, one matrix product, no ``grid_sample``,
no padding, and no number outside a level that is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fourtap import _projected_registered  # registers both operators

__all__ = ["decompositions"]


def decompositions() -> dict[Any, Callable[..., Tensor]]:
    """What to decompose fourtap's operators into, for ``torch.export``'s ``run_decompositions``.

    The program then holds only operators of ATen: ``index_select``, ``bmm`` and arithmetic. So it runs without fourtap,
    and converters to other runtimes take it. It computes forward, of levels that have at least one pixel.

    Example:
        >>> import fourtap.nn, torch
        >>> layer = fourtap.nn.MSDeformAttn(d_model=16, n_levels=1, n_heads=2, n_points=4).eval()
        >>> given = (torch.rand(1, 5, 16), torch.rand(1, 5, 1, 2), torch.rand(1, 12, 16), [(3, 4)])
        >>> program = torch.export.export(layer, given).run_decompositions(fourtap.decompositions())
        >>> any("fourtap" in str(node.target) for node in program.graph.nodes)
        False

    """
    return {torch.ops.fourtap.msda.default: _msda, torch.ops.fourtap.msda_projected.default: _msda_projected}


def _msda(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    locations: Tensor,
    weights: Tensor,
    deterministic: bool,
) -> Tensor:
    dtype = _computed_in(value)
    count, points = locations.shape[3:5]
    resolution, first = _of_samples(value, shapes, starts, levels, [points] * count, dtype)
    places = locations.to(dtype).flatten(3, 4) * resolution - 0.5
    return _attend(value, resolution, first, places, weights.to(dtype).flatten(3), nearest=False)


def _msda_projected(*arguments: Any) -> Tensor:
    *given, _deterministic = arguments
    _, shapes, starts, levels, *_ = given
    operands = _projected_registered.apart(_projected_registered.operands_of(*given))
    value, sizes, _, references, offsets, logits, mask, (points, nearest, box_scale, mask_is_applied) = operands
    dtype, count = _computed_in(value), len(sizes)
    counts = list(points or [logits.shape[3] // max(count, 1)] * count)
    resolution, first = _of_samples(value, shapes, starts, levels, counts, dtype)
    if mask is not None and not mask_is_applied:
        value = torch.where(mask.bool()[:, :, None, None], 0.0, value)
    references = references.to(dtype)
    references = references.unsqueeze(3) if references.dim() == 4 else references
    # [N, Q, 1, K, 2 or 4]: references of a level are for its points in turns.
    turns = [
        references[:, :, level if references.shape[2] > 1 else 0, point % references.shape[3]]
        for level, points in enumerate(counts)
        for point in range(points)
    ]
    around = torch.stack(turns, 2).unsqueeze(2)
    places = around[..., :2] * resolution - 0.5
    if references.shape[-1] == 4:
        factors = list(box_scale) if box_scale else [0.5 / max(points, 1) for points in counts]
        scale = _for_each_sample([torch.full((1,), factor, dtype=dtype) for factor in factors], counts).to(value.device)
        places = places + offsets.to(dtype) * (around[..., 2:] * resolution * scale.unsqueeze(1))
    else:
        places = places + offsets.to(dtype)
    return _attend(value, resolution, first, places, logits.to(dtype).softmax(-1), nearest=nearest)


def _computed_in(value: Tensor) -> torch.dtype:
    return torch.float64 if value.dtype is torch.float64 else torch.float32


def _of_samples(
    value: Tensor,
    shapes: Tensor | None,
    starts: Tensor | None,
    levels: Sequence[int],
    counts: Sequence[int],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Width and height ``[K, 2]`` and the first row ``[K]`` of the level of each sample."""
    if shapes is None:
        # Not one tensor of all sizes, which those of dynamic shapes cannot be put into.
        sizes = [torch.full((1,), size, dtype=torch.int64, device=value.device) for size in levels]
        shapes = torch.cat(sizes).reshape(-1, 2)
    shapes = shapes.to(torch.int64)
    heights, widths = shapes.unbind(1)
    if starts is None:
        areas = heights * widths
        starts = areas.cumsum(0) - areas
    resolution = torch.stack([widths, heights], 1)
    of_level = [resolution[level : level + 1] for level in range(len(counts))]
    first = [starts[level : level + 1] for level in range(len(counts))]
    return _for_each_sample(of_level, counts).to(dtype), _for_each_sample(first, counts)


def _for_each_sample(of_levels: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    repeated = [one.expand(count, *one.shape[1:]) for one, count in zip(of_levels, counts, strict=True)]
    return torch.cat(repeated)


def _attend(
    value: Tensor, resolution: Tensor, first: Tensor, places: Tensor, weights: Tensor, *, nearest: bool
) -> Tensor:
    """Of places ``[N, Q, M, K, 2]`` in pixels, 0 at the centre of the first one, and weights ``[N, Q, M, K]``."""
    images, pixels, heads, channels = value.shape
    queries = places.shape[1]
    widths = resolution[:, 0].to(torch.int64)
    of_image = torch.arange(images, device=value.device).reshape(-1, 1, 1, 1) * pixels * heads
    base = of_image + torch.arange(heads, device=value.device).unsqueeze(1) + first * heads

    def rows_of(found: Tensor) -> Tensor:
        column, row = found.to(torch.int64).unbind(-1)
        return base + (row * widths + column) * heads

    if nearest:
        # RT-DETRv2 rounds x * W + 0.5 down, half a pixel from where x is. NaN is outside, as below.
        found = torch.where(places > -1.0, places, -1.0) + 1.0
        rows, shares = rows_of(torch.minimum(found.floor(), resolution - 1.0)), weights
    else:
        places = torch.minimum(torch.where(places > -1.0, places, -1.0), resolution)
        corner = torch.minimum(places.floor().clamp(min=0.0), (resolution - 2.0).clamp(min=0.0))
        apart = places - corner
        # In a level of one pixel across, the second neighbour is further away than any sample reaches.
        to_second = 3.0 - resolution.clamp(max=2.0)
        left, upper = (1.0 - apart.abs()).relu().unbind(-1)
        right, lower = (1.0 - (apart - to_second).abs()).relu().unbind(-1)
        row = rows_of(corner)
        has_right, has_below = (resolution - 1.0).clamp(max=1.0).to(torch.int64).unbind(1)
        beside, below = has_right * heads, has_below * widths * heads
        rows = torch.cat([row, row + beside, row + below, row + beside + below], 3)
        upper, lower = upper * weights, lower * weights
        shares = torch.cat([upper * left, upper * right, lower * left, lower * right], 3)
    count = shares.shape[3]
    samples = value.to(weights.dtype).reshape(-1, channels).index_select(0, rows.flatten())
    found = torch.bmm(shares.reshape(-1, 1, count), samples.reshape(-1, count, channels))
    return found.reshape(images, queries, heads * channels).to(value.dtype)
