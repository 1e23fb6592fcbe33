"""Attention with a number of points for each level: RT-DETRv2, D-FINE and DEIM, in transformers or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fourtap._tracing import length
from fourtap.compat._drop_in import attend
from fourtap.errors import InputError
from fourtap.nn import SpatialShapes, arithmetic_type, level_sizes

__all__ = ["attend_point_lists", "is_unlike_ours", "result_type", "type_from_projections"]

# In units of a level: far enough outside that no bilinear sample of any level reaches a pixel.
_OUTSIDE = -10.0


def attend_point_lists(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: Sequence[int],
    method: str,
    *,
    columns_by_height: bool = False,
) -> Tensor:
    """``[N, Q, M * D]`` of ``[N, Q, M, K, 2]`` locations and ``[N, Q, M, K]`` weights, K all levels' points.

    Args:
        value: ``[N, S, M, D]``.
        spatial_shapes: ``[L, 2]``.
        sampling_locations: In units of the image.
        attention_weights: After the softmax.
        num_points_list: The number of points of each level.
        method: ``"default"`` or ``"discrete"``.
        columns_by_height: With ``"discrete"``, whether columns end where rows do, as in the repositories of these
            models, which are made for square images.

    """
    points = list(num_points_list)
    if len(points) != length(spatial_shapes):
        raise InputError(f"num_points_list: expected {length(spatial_shapes)} numbers, found {len(points)}")
    if method not in ("default", "discrete"):
        raise InputError(f"method: expected 'default' or 'discrete', found {method!r}")
    for name, tensor, axes in (
        ("sampling_locations", sampling_locations, 5),
        ("attention_weights", attention_weights, 4),
    ):
        if tensor.dim() != axes or tensor.shape[3] != sum(points):
            expected = f"[N, Q, M, {sum(points)}{', 2' if axes == 5 else ''}]"
            raise InputError(f"{name}: expected shape {expected}, found {list(tensor.shape)}")
    dtype = result_type(value, sampling_locations.dtype, attention_weights.dtype, method)
    if method == "discrete":
        # Before padding: clamping would bring the padding's points back into the image.
        sampling_locations = _nearest_pixel_centres(sampling_locations, spatial_shapes, points, columns_by_height)
    attended = attend(
        value,
        spatial_shapes,
        None,
        _by_level(sampling_locations, points, dim=3, filler=_OUTSIDE),
        _by_level(attention_weights, points, dim=3, filler=0.0),
    )
    return attended.to(dtype)


def _by_level(flat: Tensor, points: list[int], *, dim: int, filler: float) -> Tensor:
    """Axis ``dim``, all levels' points one after the other, as two axes ``[L, P]`` with P the largest number."""
    if len(set(points)) == 1:
        return torch.unflatten(flat, dim, (len(points), points[0]))
    most = max(points)
    behind = (0, 0) * (flat.dim() - dim - 1)
    levels = torch.split(flat, points, dim=dim)
    padded = [
        nn.functional.pad(level, (*behind, 0, most - count), value=filler)
        for level, count in zip(levels, points, strict=True)
    ]
    return torch.stack(padded, dim=dim)


def _nearest_pixel_centres(
    locations: Tensor, spatial_shapes: SpatialShapes, points: list[int], columns_by_height: bool
) -> Tensor:
    """The centre of the pixel that the originals read for each location; ``locations`` are ``[N, Q, M, sum(P), 2]``."""
    locations = locations.detach()
    sizes = level_sizes(spatial_shapes, locations.new_empty((), dtype=arithmetic_type(locations.dtype)))
    sizes = torch.cat([size.expand(count, 2) for size, count in zip(sizes, points, strict=True)])
    # Which pixel it is gets decided in the type of the locations, as in transformers: near the border of two pixels
    # 16 bits may choose another one than 32 would. Where that pixel is, is then computed in f32.
    pixels = (locations * sizes.to(locations.dtype) + 0.5).to(sizes.dtype).trunc()
    ends = torch.minimum(sizes, sizes[:, 1:]) if columns_by_height else sizes
    pixels = torch.minimum(pixels.clamp(min=0), ends - 1)
    return (pixels + 0.5) / sizes


def result_type(value: Tensor, places: torch.dtype, weights: torch.dtype, method: str) -> torch.dtype:
    """The type of the original's products. D-FINE has no projection after them that would hide another."""
    dtype = torch.promote_types(value.dtype, weights)
    kind = value.device.type
    if method == "default" and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        # What autocast makes of grid_sample: float32 on the CPU, the wider of its two types on CUDA devices.
        dtype = torch.promote_types(dtype, torch.float32 if kind == "cpu" else places)
    return dtype


def type_from_projections(
    value: Tensor, query: Tensor, reference_points: Tensor, logits: torch.dtype, method: str
) -> torch.dtype:
    """The same for a module that computes locations and weights from the query."""
    # Autocast's softmax is in float32 on CUDA devices only.
    cast = value.is_cuda and torch.is_autocast_enabled("cuda")
    weights = torch.promote_types(logits, torch.float32) if cast else logits
    places = torch.promote_types(torch.promote_types(query.dtype, logits), reference_points.dtype)
    return result_type(value, places, weights, method)


def is_unlike_ours(method: str, query: Tensor, reference_points: Tensor) -> bool:
    """Whether the original samples in a way that the operator cannot: it chooses the nearest pixel in 16 bits."""
    if method == "discrete":
        return torch.promote_types(query.dtype, reference_points.dtype).itemsize < 4
    return method != "default"
