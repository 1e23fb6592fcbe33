from __future__ import annotations

import pytest
import reference
import torch
from torch import Tensor

import fourtap
from fourtap.compat.dcnv4 import FlashDeformAttnFunction


def packed(problem: reference.Problem) -> Tensor:
    """Locations and logits in one tensor, as DCNv4 takes them."""
    both = torch.cat([problem.locations.flatten(3), problem.weights.flatten(3)], dim=-1)
    return both.detach().requires_grad_()


def expected_of(value: Tensor, problem: reference.Problem, both: Tensor, points: int) -> Tensor:
    levels = len(problem.shapes)
    locations = both[..., : levels * points * 2].unflatten(-1, (levels, points, 2))
    weights = both[..., levels * points * 2 :].softmax(-1).unflatten(-1, (levels, points))
    return reference.ms_deform_attn(value, problem.shapes, locations, weights)


# DCNv4's own kernels know 4 and 8 points, and channels that 8 divides.
@pytest.mark.parametrize("points", [1, 3, 4, 8])
@pytest.mark.parametrize("listed", [False, True])
def test_result_and_gradients_with_any_number_of_points(device: str, points: int, listed: bool) -> None:
    problem = reference.problem(points, device=device, points=points)
    both = packed(problem)
    shapes = problem.shapes if listed else problem.shapes_tensor
    found = FlashDeformAttnFunction.apply(problem.value, shapes, problem.level_start_index, both, 64, points)
    expected = expected_of(problem.value, problem, both, points)
    reference.assert_close(found, expected, 1e-12)
    operands = {"value": problem.value, "sampling_loc_attn": both}
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


def test_eight_points_is_the_default(device: str) -> None:
    problem = reference.problem(1, device=device, points=8)
    both = packed(problem)
    found = FlashDeformAttnFunction.apply(problem.value, problem.shapes_tensor, problem.level_start_index, both, 64)
    reference.assert_close(found, expected_of(problem.value, problem, both, 8), 1e-12)


def test_softmax_of_16_bit_logits_is_computed_in_float32(device: str) -> None:
    problem = reference.problem(2, device=device, dtype=torch.float16, points=8)
    # Logits that overflow in 16 bits unless the largest is taken off first, and whose exponentials need 32.
    with torch.no_grad():
        problem.weights.mul_(3).add_(1000)
    both = packed(problem)
    found = FlashDeformAttnFunction.apply(problem.value, problem.shapes_tensor, problem.level_start_index, both, 64, 8)
    assert found.dtype == torch.float16
    reference.assert_close(found, expected_of(problem.value.double(), problem, both.double(), 8), 1e-3)


def test_float32_locations_beside_a_16_bit_value(device: str) -> None:
    problem = reference.problem(3, device=device, dtype=torch.float32, shapes=((20, 134),))
    both = packed(problem)
    value = problem.value.detach().bfloat16()
    found = FlashDeformAttnFunction.apply(value, problem.shapes, None, both, 64, 4)
    # With locations in bf16 it is off by more than a tenth.
    reference.assert_close(found, expected_of(value.double(), problem, both.double(), 4), 8e-3)


def test_a_tensor_for_another_number_of_points_is_refused(device: str) -> None:
    problem = reference.problem(4, device=device, points=4)
    with pytest.raises(fourtap.InputError) as caught:
        FlashDeformAttnFunction.apply(problem.value, problem.shapes, None, packed(problem), 64, 8)
    assert str(caught.value) == "sampling_loc_attn: expected shape [2, Q, 3, 72], found [2, 7, 3, 36]"
    with pytest.raises(fourtap.InputError, match=r"^value: expected shape \[N, S, M, D\]"):
        FlashDeformAttnFunction.apply(problem.value[0], problem.shapes, None, packed(problem), 64, 4)
