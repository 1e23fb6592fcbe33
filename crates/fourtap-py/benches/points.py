"""Where the sampling points of a problem lie, by the names of `fourtap bench --points`.

Spread over the image, as trained models put them, or crowded, as when training starts and where an image has few
objects. What each name says is described in the help of that command.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIGMA = 4.0  # pixels that local points lie around their reference, as in trained models
# On no pixel's border, where the gradient of locations jumps and rounding decides which side is meant.
SPOT, ROW, OFF_BORDER = (0.3137, 0.6871), 0.3137, 1e-4
OBJECTS = 20
# Where the points of eight heads lie before training: of each head in another direction.
DIRECTIONS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
REFERENCE_SIGMA = 1.41  # of Deformable DETR's reference points before training, before the sigmoid
RTDETR_QUERIES, RTDETR_PIXELS = 300, 80

SPREAD = ("uniform", "local")
CROWDED = (
    "window",
    "spot",
    "cloud-5",
    "cloud-0.5",
    "corner-boxes",
    "image-boxes",
    "zipf",
    "row",
    "outside",
    "rtdetr",
    "deformable-detr",
)


def rtdetr_boxes(queries: int) -> Tensor:
    """`[Q, 4]`: in f16 the scores of all anchors are the same before training, and the first ones win."""
    pixel = torch.arange(queries) % RTDETR_QUERIES
    place = torch.stack([pixel % RTDETR_PIXELS, pixel // RTDETR_PIXELS], -1)
    boxes = torch.cat([(place + 0.5) / RTDETR_PIXELS, torch.full((queries, 2), 0.05)], -1)
    boxes[((place == 0) | (place == RTDETR_PIXELS - 1)).any(-1)] = 1.0  # invalid on the border
    return boxes


def sampling_locations(name: str, size: tuple[int, int, int, int, int], shapes: Tensor) -> Tensor:
    """`[N, Q, M, L, P, 2]` in f32, of images, queries, heads, levels and points; `shapes` are the levels'."""
    images, queries, heads, _, points = size
    device = shapes.device
    extent = shapes.flip(-1)[:, None].to(torch.float32)  # [L, 1, 2], in pixels
    direction = torch.tensor(DIRECTIONS, device=device).repeat(-(-heads // len(DIRECTIONS)), 1)[:heads]
    # How far points lie before training, [M, 1, P, 2].
    step = direction[:, None, None] * torch.arange(1, points + 1, device=device)[:, None]

    def of_query(numbers: Tensor) -> Tensor:
        return numbers.to(device).view(-1, queries, 1, 1, 1, 2)

    def in_boxes(boxes: Tensor, are_boxes: Tensor) -> Tensor:
        placed = of_query(boxes[..., :2]) + of_query(boxes[..., 2:]) * step / points * 0.5 + OFF_BORDER
        anywhere = torch.rand(*size, 2, device=device)
        return torch.where(are_boxes.to(device).view(queries, 1, 1, 1, 1), placed, anywhere)

    query = torch.arange(queries)
    match name:
        case "uniform":
            return torch.rand(*size, 2, device=device)
        case "local":
            reference = torch.rand(images, queries, 1, 1, 1, 2, device=device)
            return reference + SIGMA * torch.randn(*size, 2, device=device) / extent
        case "window":
            window = extent.clamp(max=6)
            start = torch.minimum(0.4 * extent, extent - window)
            return (start + window * torch.rand(*size, 2, device=device)) / extent
        case "spot":
            return torch.tensor(SPOT, device=device).expand(*size, 2).contiguous()
        case "cloud-5" | "cloud-0.5":
            sigma = 0.05 if name == "cloud-5" else 0.005
            return 0.5 + sigma * torch.randn(*size, 2, device=device)
        case "corner-boxes":
            return in_boxes(torch.full((queries, 4), 0.001), query % 4 == 0)
        case "image-boxes":
            return in_boxes(torch.ones(queries, 4), query % 3 == 0)
        case "zipf":
            objects = torch.arange(OBJECTS)[:, None]
            centres = (0.5 + objects * torch.tensor([0.7548777, 0.5698403])).frac()
            extents = 0.05 + 0.15 * (0.5 + objects * 0.618034).frac()
            chosen = torch.multinomial(1 / (1 + torch.arange(OBJECTS)), images * queries, replacement=True)
            inside = torch.rand(*size, 2, device=device) - 0.5
            return of_query(centres[chosen]) + of_query(extents[chosen].expand(-1, 2)) * inside
        case "row":
            locations = torch.rand(*size, 2, device=device)
            locations[..., 1] = ROW
            return locations
        case "outside":
            return torch.rand(*size, 2, device=device) + torch.tensor([2.0, 0.0], device=device)
        case "rtdetr":
            return in_boxes(rtdetr_boxes(queries), query >= 0).expand(*size, 2).contiguous()
        case "deformable-detr":
            reference = (REFERENCE_SIGMA * torch.randn(images, queries, 1, 1, 1, 2, device=device)).sigmoid()
            return reference + step / extent
    raise ValueError(name)
