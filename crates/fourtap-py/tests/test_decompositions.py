"""Exported programs whose operators are decomposed, against the formula in float64."""

from __future__ import annotations

import io
from typing import Any

import projections
import pytest
import reference
import torch
from test_export import LARGE, SMALL, Pyramid, pyramid
from torch import Tensor, nn

import fourtap

SHAPES: reference.Shapes = ((6, 9), (1, 4), (5, 1), (1, 1))
FREE = torch.export.Dim.DYNAMIC


def decomposed(layer: nn.Module, given: tuple[Tensor, ...], dynamic_shapes: Any = None) -> Any:
    """The program as another process loads it."""
    program = torch.export.export(layer.eval(), given, dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions(fourtap.decompositions())
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("fourtap" in target or "grid_sample" in target for target in targets), targets
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


class FromLocations(nn.Module):
    def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, SHAPES, locations, weights)


class FromProjections(nn.Module):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        operands = (value, SHAPES, references, offsets, logits)
        return fourtap.ms_deform_attn_from_projections(*operands, **self.options)


def assert_within_tolerance(found: Tensor, expected: Tensor, naive: Tensor) -> None:
    off, of_naive = ((one.double() - expected).abs().max().item() for one in (found, naive))
    assert off <= 2 * of_naive + torch.finfo(found.dtype).eps * expected.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_from_locations(dtype: torch.dtype) -> None:
    given = reference.problem(0, device="cpu", shapes=SHAPES, queries=400)
    value = given.value.detach().to(dtype)
    kind = torch.promote_types(dtype, torch.float32)
    locations, weights = given.locations.detach().to(kind), given.weights.detach().to(kind)
    found = decomposed(FromLocations(), (value, locations, weights))(value, locations, weights)
    assert found.dtype is dtype
    expected, naive = (
        reference.ms_deform_attn(value.to(one), SHAPES, locations.to(one), weights.to(one))
        for one in (torch.float64, kind)
    )
    # Of float64, the expected numbers are the naive ones.
    assert_within_tolerance(found, expected, expected + 1e-14 if dtype is torch.float64 else naive.to(dtype))


PROJECTIONS: dict[str, dict[str, Any]] = {
    "points": {},
    "boxes": {"coordinates": 4},
    "unlike levels": {"coordinates": 4, "points": [2, 1, 3, 4], "box_scale": [0.1, 0.2, 0.3, 0.4]},
    "one reference": {"coordinates": 4, "axes": (2, 7, 1)},
    "references that take turns": {"axes": (2, 7, 4, 2)},
    "references of one image": {"axes": (1, 7, 4)},
    "a mask": {"masked": True},
    "nearest": {"sampling": "nearest"},
}


@pytest.mark.parametrize("way", PROJECTIONS)
def test_from_projections(way: str) -> None:
    problem = projections.problem(0, device="cpu", shapes=SHAPES, **PROJECTIONS[way])
    given = tuple(tensor.detach() for tensor in problem.real.values())
    found = decomposed(FromProjections(problem.options), given)(*given)
    reference.assert_close(found, problem.expected().detach(), 1e-13)


def test_offsets_and_logits_in_one_tensor() -> None:
    problem = projections.problem(0, device="cpu", shapes=SHAPES)
    value, references, offsets, logits = (tensor.detach() for tensor in problem.real.values())
    both = torch.cat([offsets.flatten(2), logits.flatten(2)], -1)

    class Layer(nn.Module):
        def forward(self, value: Tensor, references: Tensor, both: Tensor) -> Tensor:
            return fourtap.ms_deform_attn_from_projections(value, SHAPES, references, both, None)

    given = (value, references, both)
    reference.assert_close(decomposed(Layer(), given)(*given), problem.expected().detach(), 1e-13)


@pytest.mark.parametrize("levels", ["list", "constants"])
def test_image_sizes_may_change(levels: str) -> None:
    layer = Pyramid(levels)
    free = {2: FREE, 3: FREE}
    shapes = None if levels == "constants" else (free, free, None, None)
    program = decomposed(layer, pyramid(SMALL, "cpu"), shapes)
    for size in (SMALL,) if levels == "constants" else (SMALL, LARGE):
        given = pyramid(size, "cpu")
        reference.assert_close(program(*given), layer(*given), 1e-6)


@pytest.mark.parametrize("with_starts", [False, True])
def test_levels_in_tensors(with_starts: bool) -> None:
    class Layer(nn.Module):
        def forward(self, value: Tensor, sizes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
            given = starts if with_starts else None
            return fourtap.ms_deform_attn(value, sizes, locations, weights, level_start_index=given)

    problem = reference.problem(0, device="cpu", shapes=SHAPES)
    value, locations, weights = (tensor.detach() for tensor in problem.differentiable)
    given = (value, problem.shapes_tensor, problem.level_start_index, locations, weights)
    expected = reference.ms_deform_attn(value, SHAPES, locations, weights)
    reference.assert_close(decomposed(Layer(), given)(*given), expected, 1e-13)


def test_samples_outside_the_image_add_nothing() -> None:
    given = reference.problem(0, device="cpu", shapes=SHAPES)
    value, locations, weights = (tensor.detach().float() for tensor in given.differentiable)
    program = decomposed(FromLocations(), (value, locations, weights))
    for number in (float("nan"), float("inf"), -float("inf"), 3e38, -3e38):
        for axis in (0, 1):
            places = locations.clone()
            places[..., axis] = number
            assert (program(value, places, weights) == 0).all()
