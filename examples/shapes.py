"""Pictures of coloured shapes on noise, and a small deformable encoder that finds them: what the examples share.

Colours say nothing about what a shape is, and the convolutions see a few pixels only. To tell a circle from a square,
and where it ends, a pixel must look at the shape's outline: that is left to the deformable attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from fourtap.nn import MSDeformAttn

IMAGE_SIZE = 128
CLASSES = ("background", "circle", "square", "triangle")
STRIDES = (4, 8, 16)
LEVELS = [(IMAGE_SIZE // stride, IMAGE_SIZE // stride) for stride in STRIDES]

_CELLS = 2  # a shape at most in each of 2 x 2 cells, so that none covers another
_CELL_SIZE = IMAGE_SIZE / _CELLS
_SMALLEST, _LARGEST = 20.0, 56.0


@dataclass
class Batch:
    """Images and what is to be found in them, at every pixel of the finest level."""

    images: Tensor  # [N, 3, IMAGE_SIZE, IMAGE_SIZE], from 0 to 1
    classes: Tensor  # [N, pixels], index into CLASSES
    distances: Tensor  # [N, pixels, 4], to the left, top, right and bottom end of the shape, in units of the image

    def found(self) -> Tensor:
        """How many pixels have a shape."""
        return (self.classes > 0).sum().float()


class Pictures(Dataset[Batch]):
    """So many batches of one image, each the same whoever asks for it."""

    def __init__(self, count: int, seed: int, device: torch.device) -> None:
        """Images that depend on the seed and their numbers."""
        self.count, self.seed, self.device = count, seed, device

    def __len__(self) -> int:
        """All of them."""
        return self.count

    def __getitem__(self, index: int) -> Batch:
        """The image of this number."""
        return make_batch(1, torch.Generator(self.device).manual_seed((self.seed << 32) + index))


def joined_batches(batches: Sequence[Batch]) -> Batch:
    """One batch of all their images."""
    parts = ((batch.images, batch.classes, batch.distances) for batch in batches)
    return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def make_batch(size: int, generator: torch.Generator) -> Batch:
    """Random images, made on the generator's device."""
    device = generator.device

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    cells = _CELLS * _CELLS
    half = (_SMALLEST + (_LARGEST - _SMALLEST) * random(size, cells)) / 2
    corner = torch.arange(_CELLS, device=device) * _CELL_SIZE
    corners = torch.cartesian_prod(corner, corner)
    centres = corners + half[..., None] + (_CELL_SIZE - 2 * half)[..., None] * random(size, cells, 2)
    kinds = 1 + (random(size, cells) * (len(CLASSES) - 1)).long()
    kinds = torch.where(random(size, cells) < 0.75, kinds, 0)

    # Where pixel centres are, seen from each shape's centre, in units of half its size: [N, cells, size, size].
    axis = torch.arange(IMAGE_SIZE, device=device) + 0.5
    x = (axis - centres[..., :1])[:, :, None, :] / half[..., None, None]
    y = (axis - centres[..., 1:])[:, :, :, None] / half[..., None, None]
    circle = x.square() + y.square() < 1
    square = torch.maximum(x.abs(), y.abs()) < 1
    triangle = (y < 1) & (2 * x.abs() - y < 1)
    nothing = torch.zeros_like(circle)
    outlines = torch.stack([nothing, circle, square, triangle], dim=2)
    inside = outlines.gather(2, kinds[..., None, None, None].expand(-1, -1, 1, *circle.shape[-2:])).squeeze(2)

    images = 0.35 + 0.3 * random(size, 3, 1, 1) + 0.12 * (random(size, 3, IMAGE_SIZE, IMAGE_SIZE) - 0.5)
    colours = random(size, cells, 3)
    for cell in range(cells):
        grain = 0.12 * (random(size, 1, IMAGE_SIZE, IMAGE_SIZE) - 0.5)
        images = torch.where(inside[:, None, cell], colours[:, cell, :, None, None] + grain, images)

    # The answer for a pixel of the finest level is that of the image's pixel in its middle.
    middle = slice(STRIDES[0] // 2, None, STRIDES[0])
    seen = inside[:, :, middle, middle].flatten(2)
    classes = (seen * kinds[..., None]).sum(1)
    points = reference_points(LEVELS[:1], device)[:, 0] * IMAGE_SIZE
    towards_start = points - (centres - half[..., None])[:, :, None]
    towards_end = (centres + half[..., None])[:, :, None] - points
    distances = (torch.cat([towards_start, towards_end], dim=-1) * seen[..., None]).sum(1) / IMAGE_SIZE
    return Batch(images.clamp(0, 1), classes, distances)


def reference_points(levels: list[tuple[int, int]], device: torch.device) -> Tensor:
    """``[S, L, 2]``: the centre of each level's pixels, (x, y) from 0 to 1, the same on all levels they sample."""
    centres = []
    for height, width in levels:
        y = (torch.arange(height, device=device) + 0.5) / height
        x = (torch.arange(width, device=device) + 0.5) / width
        centres.append(torch.cartesian_prod(y, x).flip(-1))
    return torch.cat(centres)[:, None].expand(-1, len(levels), -1)


def position_embedding(points: Tensor, channels: int) -> Tensor:
    """Sines and cosines of x and y: ``[S, channels]`` for ``[S, 2]``."""
    frequencies = math.pi * 2.0 ** torch.arange(channels // 4, device=points.device)
    angles = (points[..., None] * frequencies).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class EncoderLayer(nn.Module):
    def __init__(self, channels: int, heads: int, points: int) -> None:
        super().__init__()
        self.attention = MSDeformAttn(channels, n_levels=len(STRIDES), n_heads=heads, n_points=points)
        self.attention_norm = nn.LayerNorm(channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels)
        )
        self.feed_forward_norm = nn.LayerNorm(channels)

    def forward(self, features: Tensor, positions: Tensor, points: Tensor) -> Tensor:
        features = self.attention_norm(features + self.attention(features + positions, points, features, LEVELS))
        return self.feed_forward_norm(features + self.feed_forward(features))


class ShapeFinder(nn.Module):
    """A few convolutions, a deformable encoder over their levels, and a prediction at every pixel of the finest one."""

    def __init__(self, channels: int = 64, layers: int = 3, heads: int = 4, points: int = 4) -> None:
        super().__init__()

        def downsample(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
            )

        self.stem = downsample(3, 32)
        self.stages = nn.ModuleList([downsample(32 if level == 0 else channels, channels) for level in range(3)])
        self.level_embedding = nn.Parameter(torch.randn(len(STRIDES), channels) * 0.1)
        self.layers = nn.ModuleList([EncoderLayer(channels, heads, points) for _ in range(layers)])
        self.classify = nn.Linear(channels, len(CLASSES))
        self.measure = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 4))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[N, pixels, classes]`` and distances ``[N, pixels, 4]`` at every pixel of the finest level."""
        features = self.stem(images * 2 - 1)
        levels = []
        for stage, embedding in zip(self.stages, self.level_embedding, strict=True):
            features = stage(features)
            levels.append(features.flatten(2).transpose(1, 2) + embedding)
        encoded = torch.cat(levels, dim=1)
        points = reference_points(LEVELS, images.device)
        positions = position_embedding(points[:, 0], encoded.shape[-1])
        for layer in self.layers:
            encoded = layer(encoded, positions, points[None])
        finest = encoded[:, : LEVELS[0][0] * LEVELS[0][1]]
        return self.classify(finest), self.measure(finest)


def loss_of(model: nn.Module, batch: Batch, found: Tensor | None = None) -> Tensor:
    """Cross entropy of the classes everywhere, and how far the ends of shapes are missed, where there is one.

    ``found``: how many pixels have a shape. Where a batch is one of several that are trained on together, their mean:
    then the mean of their losses is that of them all.
    """
    logits, distances = model(batch.images)
    of_classes = functional.cross_entropy(logits.flatten(0, 1).float(), batch.classes.flatten())
    misses = (distances.float() - batch.distances).abs() * (batch.classes > 0)[..., None]
    found = batch.found() if found is None else found
    # In units of a quarter of the image, which makes both parts about equally large at the beginning.
    return of_classes + 4 * misses.sum() / (4 * found).clamp(min=1)
