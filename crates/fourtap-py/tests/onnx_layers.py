"""Deformable attention as models write it, small, over maps whose sizes are read off them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

# As many heads as levels and points, so that one axis may be taken for another.
HEADS, LEVELS, POINTS, CHANNELS = 2, 2, 2, 8
#: Which sizes of inputs may change, by names.
AXES = {
    "fine": {0: "n", 2: "h", 3: "w"},
    "coarse": {0: "n", 2: "h2", 3: "w2"},
    "references": {0: "n", 1: "q"},
    "offsets": {0: "n", 1: "q"},
    "logits": {0: "n", 1: "q"},
}
#: Two sizes that are not square, to compare at.
SIZES = {"n": (2, 3), "h": (4, 10), "w": (6, 6), "h2": (2, 5), "w2": (3, 3), "q": (5, 4)}

Divisor = Callable[[Tensor], Tensor]


def widths_and_heights(sizes: Tensor) -> Tensor:
    return sizes.flip(1)[None, None, None, :, None, :]


def softmax(logits: Tensor) -> Tensor:
    return functional.softmax(logits, -1).unflatten(-1, (LEVELS, POINTS))


class Layer(nn.Module):
    """By levels, as Deformable DETR has it; from points, or from boxes where references have four numbers."""

    def __init__(self, divisor: Divisor = widths_and_heights, weights: Callable[[Tensor], Tensor] = softmax) -> None:
        super().__init__()
        self.divisor, self.weights = divisor, weights

    def forward(self, fine: Tensor, coarse: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        maps = (fine, coarse)
        around = references[:, :, None, :, None, :]
        if references.shape[-1] == 4:
            locations = around[..., :2] + offsets / POINTS * around[..., 2:] * 0.5
        else:
            # What `torch.tensor` makes of sizes would be a constant of the export.
            sizes = torch.stack([torch._shape_as_tensor(map)[2:] for map in maps])
            locations = around + offsets / self.divisor(sizes)
        return sampled(maps, locations, self.weights(logits))


class LayerByPoints(nn.Module):
    """With the points of all levels on one axis, of unlike counts, as D-FINE has it."""

    points = (1, 3)

    def forward(self, fine: Tensor, coarse: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        maps = (fine, coarse)
        images, queries = references.shape[:2]
        scale = torch.tensor([1 / count for count in self.points for _ in range(count)])
        boxes = references[:, :, None, :1]
        places = offsets.reshape(images, queries, HEADS, sum(self.points), 2)
        locations = boxes[..., :2] + places * scale[:, None] * boxes[..., 2:] * 0.5
        weights = logits.softmax(-1).permute(0, 2, 1, 3).reshape(images * HEADS, 1, queries, sum(self.points))
        pixels = torch.cat([map.flatten(2) for map in maps], 2).transpose(1, 2)
        value = pixels.reshape(images, pixels.shape[1], HEADS, CHANNELS // HEADS)
        rows = value.permute(0, 2, 3, 1).flatten(0, 1)
        parts = rows.split([map.shape[2] * map.shape[3] for map in maps], -1)
        grids = (2 * locations - 1).permute(0, 2, 1, 3, 4).flatten(0, 1).split(self.points, -2)
        samples = [
            functional.grid_sample(
                part.reshape(images * HEADS, CHANNELS // HEADS, *map.shape[2:]), grid, align_corners=False
            )
            for part, map, grid in zip(parts, maps, grids, strict=True)
        ]
        found = (torch.cat(samples, -1) * weights).sum(-1).view(images, CHANNELS, queries)
        return found.transpose(1, 2).contiguous()


def sampled(maps: tuple[Tensor, ...], locations: Tensor, weights: Tensor) -> Tensor:
    images, queries = locations.shape[:2]
    pixels = torch.cat([map.flatten(2) for map in maps], 2).transpose(1, 2)
    value = pixels.reshape(images, pixels.shape[1], HEADS, CHANNELS // HEADS)
    sizes = [map.shape[-2:] for map in maps]
    grids = 2 * locations - 1
    samples = []
    for level, part in enumerate(value.split([height * width for height, width in sizes], 1)):
        image = part.flatten(2).transpose(1, 2).reshape(images * HEADS, CHANNELS // HEADS, *sizes[level])
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        samples.append(functional.grid_sample(image, grid, align_corners=False))
    shares = weights.transpose(1, 2).reshape(images * HEADS, 1, queries, -1)
    found = (torch.stack(samples, -2).flatten(-2) * shares).sum(-1).view(images, CHANNELS, queries)
    return found.transpose(1, 2).contiguous()


def operands(
    images: int = 2, height: int = 4, width: int = 6, queries: int = 5, *, coordinates: int = 2
) -> tuple[Tensor, ...]:
    fine = torch.randn(images, CHANNELS, height, width)
    coarse = torch.randn(images, CHANNELS, height // 2, width // 2)
    references = torch.rand(images, queries, LEVELS, coordinates)
    offsets = torch.randn(images, queries, HEADS, LEVELS, POINTS, 2)
    return fine, coarse, references, offsets, torch.randn(images, queries, HEADS, LEVELS * POINTS)


@torch.no_grad()
def export(layer: nn.Module, file: Path, given: tuple[Tensor, ...], *, sizes_change: bool = True) -> None:
    torch.onnx.export(
        layer.eval(),
        given,
        file,
        dynamo=False,
        opset_version=17,
        input_names=list(AXES),
        output_names=["out"],
        dynamic_axes=AXES if sizes_change else {},
    )
