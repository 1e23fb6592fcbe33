"""What the operator and the module have to compute, written with PyTorch's grid_sample, and problems to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Shapes = Sequence[tuple[int, int]]

SHAPES: Shapes = ((6, 9), (3, 4), (1, 1))


def ms_deform_attn(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Deformable DETR's formula: sample every level with grid_sample, then sum with the weights."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    result = value.new_zeros(batch * heads, channels, queries)
    start = 0
    for level, (height, width) in enumerate(shapes):
        pixels = value[:, start : start + height * width]
        start += height * width
        image = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        samples = functional.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        weight = weights[:, :, :, level].transpose(1, 2).flatten(0, 1)
        result = result + (samples * weight[:, None]).sum(-1)
    assert start == value.shape[1]
    return result.reshape(batch, heads * channels, queries).transpose(1, 2)


def from_projections(
    value: Tensor,
    shapes: Shapes,
    references: Tensor,
    offsets: Tensor,
    logits: Tensor,
    *,
    points: Sequence[int] | None = None,
    mask: Tensor | None = None,
    nearest: bool = False,
    box_scale: Sequence[float] | None = None,
) -> Tensor:
    """Locations and weights as the models compute them, level by level, then one level's attention each."""
    points = points or [logits.shape[-1] // len(shapes)] * len(shapes)
    if mask is not None:
        value = torch.where(mask[..., None, None], torch.zeros_like(value), value)
    if references.dim() == 4:
        references = references.unsqueeze(3)
    references = references.expand(-1, -1, len(shapes), -1, -1).to(value.dtype)
    weights = logits.to(value.dtype).softmax(-1).split(list(points), dim=-1)
    parts = offsets.to(value.dtype).split(list(points), dim=3)
    pixels = value.split([height * width for height, width in shapes], dim=1)
    total = value.new_zeros(value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3])
    for level, (height, width) in enumerate(shapes):
        count = points[level]
        turns = references.shape[3]
        around = references[:, :, None, level, [point % turns for point in range(count)]]
        if references.shape[-1] == 2:
            step = torch.tensor([1 / width, 1 / height], dtype=value.dtype, device=value.device)
        else:
            step = around[..., 2:] * (box_scale[level] if box_scale else 0.5 / count)
        places = around[..., :2] + parts[level] * step
        if nearest:
            total = total + _nearest(pixels[level], (height, width), places, weights[level])
        else:
            places, share = places.unsqueeze(3), weights[level].unsqueeze(3)
            total = total + ms_deform_attn(pixels[level], [(height, width)], places, share)
    return total


def _nearest(pixels: Tensor, size: tuple[int, int], places: Tensor, weights: Tensor) -> Tensor:
    """RT-DETRv2's "discrete" sampling of one level."""
    height, width = size
    x = (places[..., 0] * width + 0.5).to(torch.int64).clamp(0, width - 1)
    y = (places[..., 1] * height + 0.5).to(torch.int64).clamp(0, height - 1)
    images, heads = torch.arange(pixels.shape[0]), torch.arange(pixels.shape[2])
    samples = pixels[images[:, None, None, None], y * width + x, heads[:, None]]
    return (samples * weights[..., None]).sum(-2).flatten(2)


def module(
    state: Mapping[str, Tensor],
    heads: int,
    points: int,
    query: Tensor,
    reference_points: Tensor,
    features: Tensor,
    shapes: Shapes,
    padding_mask: Tensor | None = None,
) -> Tensor:
    """Deformable DETR's module as one formula of its parameters."""

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    batch, queries, _ = query.shape
    levels = len(shapes)
    value = linear("value_proj", features)
    if padding_mask is not None:
        value = torch.where(padding_mask[..., None], torch.zeros_like(value), value)
    value = value.reshape(batch, features.shape[1], heads, -1)
    offsets = linear("sampling_offsets", query).reshape(batch, queries, heads, levels, points, 2)
    weights = linear("attention_weights", query).reshape(batch, queries, heads, levels * points)
    weights = weights.softmax(-1).reshape(batch, queries, heads, levels, points)
    centres = reference_points[:, :, None, :, None, :2]
    if reference_points.shape[-1] == 2:
        sizes = torch.tensor([(width, height) for height, width in shapes], dtype=offsets.dtype, device=offsets.device)
        locations = centres + offsets / sizes[None, None, None, :, None, :]
    else:
        boxes = reference_points[:, :, None, :, None, 2:]
        locations = centres + offsets / points * boxes * 0.5
    return linear("output_proj", ms_deform_attn(value, shapes, locations, weights))


@dataclass
class Problem:
    """Random operands; locations reach outside the image."""

    value: Tensor
    shapes: list[tuple[int, int]]
    locations: Tensor
    weights: Tensor
    grad_out: Tensor

    @property
    def shapes_tensor(self) -> Tensor:
        return torch.tensor(self.shapes, dtype=torch.int64, device=self.value.device)

    @property
    def level_start_index(self) -> Tensor:
        sizes = torch.tensor([0] + [height * width for height, width in self.shapes[:-1]])
        return sizes.cumsum(0).to(self.value.device)

    @property
    def differentiable(self) -> list[Tensor]:
        return [self.value, self.locations, self.weights]


def problem(
    seed: int,
    *,
    device: str,
    dtype: torch.dtype = torch.float64,
    batch: int = 2,
    queries: int = 7,
    heads: int = 3,
    channels: int = 5,
    shapes: Shapes = SHAPES,
    points: int = 4,
) -> Problem:
    """Operands of the operator, the same for the same seed whatever the device; all of them ask for gradients."""
    source = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(device, dtype)

    levels = len(shapes)
    pixels = sum(height * width for height, width in shapes)
    inside = torch.rand(batch, queries, heads, levels, points, 2, generator=source, dtype=torch.float64)
    return Problem(
        value=random(batch, pixels, heads, channels).requires_grad_(),
        shapes=list(shapes),
        locations=(inside * 1.4 - 0.2).to(device, dtype).requires_grad_(),
        weights=random(batch, queries, heads, levels, points).requires_grad_(),
        grad_out=random(batch, queries, heads * channels),
    )


def assert_close(found: Tensor, expected: Tensor, tolerance: float, what: str = "result") -> None:
    """Every element within ``tolerance`` times the largest magnitude that is expected; NaN is never close."""
    assert found.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, found {list(found.shape)}"
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if expected.numel() == 0:
        return
    scale = expected.abs().max().item()
    assert scale < float("inf"), f"{what}: the reference itself is not finite"
    worst = (found - expected).abs().max().item()
    assert worst <= tolerance * scale, f"{what}: off by {worst:.3g}, largest magnitude {scale:.3g}"


def assert_same_gradients(
    found: Tensor, expected: Tensor, inputs: Mapping[str, Tensor], grad_out: Tensor, tolerance: float
) -> None:
    """The gradients of both results by all inputs; one that is zero everywhere proves nothing and is a fault."""
    names = list(inputs)
    tensors = list(inputs.values())
    of_found = torch.autograd.grad(found, tensors, grad_out)
    of_expected = torch.autograd.grad(expected, tensors, grad_out)
    for name, gradient, reference in zip(names, of_found, of_expected, strict=True):
        assert reference.abs().max() > 0, f"the gradient by {name} is zero: this compares nothing"
        assert_close(gradient, reference, tolerance, f"gradient by {name}")
