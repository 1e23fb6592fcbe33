"""Random problems of the operator from projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import reference
import torch
from torch import Tensor

import fourtap


@dataclass
class Problem:
    """Random operands; points reach outside the image."""

    value: Tensor
    shapes: list[tuple[int, int]]
    references: Tensor
    offsets: Tensor
    logits: Tensor
    grad_out: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def real(self) -> dict[str, Tensor]:
        """The differentiable operands."""
        return {
            "value": self.value,
            "reference_points": self.references,
            "sampling_offsets": self.offsets,
            "attention_logits": self.logits,
        }

    def attend(self, **options: Any) -> Tensor:
        operands = (self.value, self.shapes, self.references, self.offsets, self.logits)
        return fourtap.ms_deform_attn_from_projections(*operands, **{**self.options, **options})

    def expected(self) -> Tensor:
        """In float64, from the same numbers."""
        points, scale = self.options.get("points_per_level"), self.options.get("box_scale")
        levels = len(self.shapes)
        return reference.from_projections(
            self.value.double(),
            self.shapes,
            self.references.double(),
            self.offsets.double(),
            self.logits.double(),
            points=[points] * levels if isinstance(points, int) else points,
            mask=self.options.get("value_mask"),
            nearest=self.options.get("sampling") == "nearest",
            box_scale=[scale] * levels if isinstance(scale, float) else scale,
        )


def problem(
    seed: int,
    *,
    device: str,
    dtype: torch.dtype = torch.float64,
    shapes: reference.Shapes = reference.SHAPES,
    points: int | Sequence[int] = 4,
    coordinates: int = 2,
    axes: Sequence[int] | None = None,
    batch: int = 2,
    queries: int = 7,
    heads: int = 3,
    channels: int = 5,
    masked: bool = False,
    **options: Any,
) -> Problem:
    """The same for the same seed whatever the device; all real operands ask for gradients.

    ``axes`` are the sizes of the reference points, but for the coordinates.
    """
    source = torch.Generator().manual_seed(seed)
    levels = len(shapes)
    pixels = sum(height * width for height, width in shapes)
    counts = [points] * levels if isinstance(points, int) else list(points)

    def ready(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype).requires_grad_()

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=source, dtype=torch.float64)

    if not isinstance(points, int):
        options["points_per_level"] = counts
    if masked:
        options["value_mask"] = (uniform(batch, pixels) < 0.3).to(device)
    return Problem(
        value=ready(normal(batch, pixels, heads, channels)),
        shapes=list(shapes),
        references=ready(uniform(*(axes or (batch, queries, levels)), coordinates) * 1.2 - 0.1),
        offsets=ready(normal(batch, queries, heads, sum(counts), 2) * 1.5),
        logits=ready(normal(batch, queries, heads, sum(counts))),
        grad_out=normal(batch, queries, heads * channels).to(device, dtype),
        options=options,
    )
