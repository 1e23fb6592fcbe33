"""Problems for the benchmark of dense attention's gradients, and the gradients that are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from dense_attention import DTYPES, REFERENCE_BYTES, Operands, Shape, both_masks
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """What is timed: backward alone, or a step of both passes."""

    shape: Shape
    both: bool = False

    @property
    def what(self) -> str:
        """As records say it."""
        return "forward+backward" if self.both else "backward"

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.shape.name} {self.what}"

    @property
    def flop(self) -> float:
        """Of the five products of backward, and with forward of its two."""
        return self.shape.flop * (3.5 if self.both else 2.5)


ROWS = {
    "cuda": [
        *map(Row, both_masks(4, 16, 2048, 64, dtype="f16")),
        *map(Row, both_masks(4, 16, 8192, 64, dtype="f16")),
        *map(Row, both_masks(4, 16, 2048, 128, dtype="bf16")),
        *map(Row, both_masks(2, 16, 8192, 128, dtype="bf16")),
        *map(Row, both_masks(1, 16, 16384, 128, dtype="bf16")),
        *map(Row, both_masks(2, 8, 8192, 256, dtype="f16")),
        Row(Shape(4, 8, 1100, 32, "f16", mask="groups"), both=True),
        Row(Shape(2048, 4, 49, 32, "f16", mask="bias"), both=True),
    ],
    "cpu": [
        # The shapes of the comparison of forward, `cargo xtask compare-pytorch dense`.
        *(
            Row(shape)
            for dtype in ("f32", "bf16", "f16")
            for shape in (
                Shape(1, 8, 512, 64, dtype),
                Shape(1, 8, 1024, 64, dtype),
                *both_masks(1, 8, 2048, 64, dtype=dtype),
                Shape(1, 8, 2048, 128, dtype),
                Shape(1, 8, 1, 128, dtype, other_keys=8192),
            )
        ),
        Row(Shape(1, 8, 1100, 32, "f32", mask="groups"), both=True),
        Row(Shape(512, 4, 49, 32, "f32", mask="bias"), both=True),
    ],
}


@dataclass
class Problem:
    """The tensors of a row. A bias is trained, like queries, keys and values; a mask of booleans is not."""

    operands: Operands
    grad_out: Tensor
    causal: bool

    @property
    def bias(self) -> Tensor | None:
        """The mask, if it is of numbers."""
        mask = self.operands[3]
        return None if mask is None or mask.dtype is torch.bool else mask

    def leaves(self) -> list[Tensor]:
        """What gradients are wanted of, as tensors of their own that ask for them."""
        tensors = [*self.operands[:3], *([] if self.bias is None else [self.bias])]
        return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def problem_of(shape: Shape, device: torch.device) -> Problem:
    """Random tensors."""
    operands = shape.operands(device)
    generator = torch.Generator(device).manual_seed(1)
    grad_out = torch.randn(operands[0].shape, generator=generator, device=device).to(DTYPES[shape.dtype])
    return Problem(operands, grad_out, shape.causal)


@dataclass
class Gradient:
    """A gradient as it should be, and for each of its rows the square of what its terms amount to.

    That is the sum of their squares, without what cancels out: a query that sees one key has a gradient of 0, but not
    one without rounding errors.
    """

    right: Tensor
    terms: Tensor

    @staticmethod
    def zeros_for(tensor: Tensor) -> Gradient:
        """Of this tensor, with nothing added yet."""
        zeros = torch.zeros_like(tensor, dtype=torch.float64)
        return Gradient(zeros, zeros[..., 0].clone())


def gradients_in_f64(problem: Problem) -> list[Gradient]:
    """The reference, as plainly as it can be written, some sequences or rows at a time."""
    query, key, value, grad_out = (tensor.double() for tensor in (*problem.operands[:3], problem.grad_out))
    mask = problem.operands[3]
    (batch, heads, positions, channels), keys = query.shape, key.shape[2]
    query *= channels**-0.5
    of_query, of_key, of_value = (Gradient.zeros_for(tensor) for tensor in (query, key, value))
    of_bias = None if problem.bias is None else Gradient.zeros_for(problem.bias)
    sequences = max(1, REFERENCE_BYTES // (8 * heads * positions * keys))
    rows = max(1, min(positions, REFERENCE_BYTES // (8 * heads * keys)))
    columns = torch.arange(keys, device=query.device)
    for one in range(0, batch, sequences):
        some = slice(one, one + sequences)
        for first in range(0, positions, rows):
            part = slice(first, first + rows)
            few = (some, slice(None), part)
            logits = query[few] @ key[some].transpose(-2, -1)
            if problem.causal:
                logits.masked_fill_(columns > columns[part, None], -torch.inf)
            if of_bias is not None:
                logits += mask[:, :, part]
            elif mask is not None:
                logits.masked_fill_(~mask[part], -torch.inf)
            weights = logits.softmax(-1)
            of_weights = grad_out[few] @ value[some].transpose(-2, -1)
            mean = (weights * of_weights).sum(-1, keepdim=True)
            of_logits = weights * (of_weights - mean)
            terms = weights.square() * (of_weights.square() + mean.square())
            of_query.right[few] = of_logits @ key[some]
            of_query.terms[few] = product(terms, squares(key[some]))
            of_key.right[some] += of_logits.transpose(-2, -1) @ query[few]
            of_key.terms[some] += product(terms.transpose(-2, -1), squares(query[few]))
            of_value.right[some] += weights.transpose(-2, -1) @ grad_out[few]
            of_value.terms[some] += product(weights.square().transpose(-2, -1), squares(grad_out[few]))
            if of_bias is not None:
                of_bias.right[:, :, part] += of_logits.sum(0, keepdim=True)
                of_bias.terms[:, :, part] += terms.sum((0, -1))
    # Queries were scaled.
    of_query.right *= channels**-0.5
    of_query.terms /= channels
    return [of_query, of_key, of_value, *([] if of_bias is None else [of_bias])]


def squares(rows: Tensor) -> Tensor:
    """The square of each row's 2-norm."""
    return rows.square().sum(-1)


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Of a matrix and a vector."""
    return (matrix @ vector[..., None])[..., 0]


def worst_row(found: Sequence[Tensor], expected: Sequence[Gradient]) -> float:
    """By how much the row that is furthest off is off, in the 2-norm; NaN if anything is not a number.

    Relative to the row, to its terms, where they cancel out, or to the usual row, where it is smaller: all
    implementations
    start from results rounded to 16 bits, which is much for the first rows of a causal problem.
    """

    def error(gradient: Tensor, of: Gradient) -> Tensor:
        sizes = of.right.norm(dim=-1)
        usual = sizes.square().mean().sqrt()
        relative_to = torch.maximum(torch.maximum(sizes, of.terms.sqrt()), usual)
        return ((gradient.double() - of.right).norm(dim=-1) / relative_to).max()

    errors = [error(gradient, of) for gradient, of in zip(found, expected, strict=True)]
    return torch.stack(errors).max().item()  # NaN, if one is
