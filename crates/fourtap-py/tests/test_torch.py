from __future__ import annotations

import itertools
from typing import Any

import pytest
import reference
import torch
from torch import Tensor

import fourtap

TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def attend(problem: reference.Problem, **options: Any) -> Tensor:
    return fourtap.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights, **options)


def expected_of(problem: reference.Problem) -> Tensor:
    value, locations, weights = (tensor.double() for tensor in problem.differentiable)
    return reference.ms_deform_attn(value, problem.shapes, locations, weights)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_and_gradients_in_every_type(device: str, dtype: torch.dtype) -> None:
    problem = reference.problem(1, device=device, dtype=dtype, channels=32, heads=2)
    found, expected = attend(problem), expected_of(problem)
    assert found.dtype is dtype and found.device.type == device
    reference.assert_close(found, expected, TOLERANCE[dtype])
    ours = torch.autograd.grad(found, problem.differentiable, problem.grad_out)
    theirs = torch.autograd.grad(expected, problem.differentiable, problem.grad_out.double())
    for gradient, right in zip(ours, theirs, strict=True):
        assert gradient.dtype is dtype
        reference.assert_close(gradient, right, 3 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coordinates_may_stay_in_f32_beside_16_bit_values(device: str, dtype: torch.dtype) -> None:
    problem = reference.problem(2, device=device, dtype=torch.float32, channels=32)
    problem.value = problem.value.detach().to(dtype).requires_grad_()
    found, expected = attend(problem), expected_of(problem)
    reference.assert_close(found, expected, TOLERANCE[dtype])
    ours = torch.autograd.grad(found, problem.differentiable, problem.grad_out.to(dtype))
    theirs = torch.autograd.grad(expected, problem.differentiable, problem.grad_out.to(dtype).double())
    assert [gradient.dtype for gradient in ours] == [dtype, torch.float32, torch.float32]
    for gradient, right in zip(ours, theirs, strict=True):
        reference.assert_close(gradient, right, 3 * TOLERANCE[dtype])


@pytest.mark.parametrize("channels", [1, 3, pytest.param(32, marks=pytest.mark.slow)])
def test_gradcheck_with_its_defaults(device: str, channels: int) -> None:
    problem = reference.problem(3, device=device, queries=2, heads=2, channels=channels, points=2)

    def function(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, problem.shapes, locations, weights)

    assert torch.autograd.gradcheck(function, problem.differentiable)
    with pytest.raises(fourtap.UnsupportedError, match="expected to be differentiated once"):
        torch.autograd.gradgradcheck(function, problem.differentiable)


@pytest.mark.parametrize("wanted", list(itertools.product([True, False], repeat=3)))
def test_only_gradients_that_are_wanted_are_computed(device: str, wanted: tuple[bool, bool, bool]) -> None:
    problem = reference.problem(4, device=device, dtype=torch.float32)
    everything = torch.autograd.grad(attend(problem), problem.differentiable, problem.grad_out)
    for tensor, want in zip(problem.differentiable, wanted, strict=True):
        tensor.requires_grad_(want)
    found = attend(problem)
    assert found.requires_grad == any(wanted)
    if any(wanted):
        found.backward(problem.grad_out)
    for tensor, want, right in zip(problem.differentiable, wanted, everything, strict=True):
        assert (tensor.grad is not None) == want
        if tensor.grad is not None:
            reference.assert_close(tensor.grad, right, 1e-6)


def test_gradients_without_autograd_are_the_same(device: str) -> None:
    problem = reference.problem(5, device=device)
    right = torch.autograd.grad(attend(problem), problem.differentiable, problem.grad_out)
    operands = (problem.value, problem.shapes_tensor, problem.locations, problem.weights)
    found = fourtap.ms_deform_attn_backward(problem.grad_out, *operands, level_start_index=problem.level_start_index)
    for ours, theirs in zip(found, right, strict=True):
        assert not ours.requires_grad
        reference.assert_close(ours, theirs, 1e-13)


@pytest.mark.parametrize("kind", ["strided", "expanded", "transposed", "flipped copy", "offset"])
def test_inputs_may_lie_as_they_like(device: str, kind: str) -> None:
    problem = reference.problem(6, device=device, channels=8)
    change = {
        "strided": lambda tensor: tensor.repeat_interleave(2, 1)[:, ::2],
        "expanded": lambda tensor: tensor[:1].expand(tensor.shape),
        "transposed": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
        "flipped copy": lambda tensor: tensor.flip(0),
        "offset": lambda tensor: torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape),
    }[kind]
    with torch.no_grad():
        problem.value, problem.locations, problem.weights = (change(tensor) for tensor in problem.differentiable)
    for tensor in problem.differentiable:
        tensor.requires_grad_()
    found, expected = attend(problem), expected_of(problem)
    reference.assert_close(found, expected, 1e-13)
    named = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, named, problem.grad_out, 1e-12)
    # The gradient of a sum is one number spread out.
    reference.assert_same_gradients(
        attend(problem).sum()[None], expected_of(problem).sum()[None], named, problem.grad_out.new_ones(1), 1e-12
    )


def test_levels_on_the_device_or_the_host_in_any_form(device: str) -> None:
    problem = reference.problem(7, device=device, dtype=torch.float32, channels=32)
    expected = attend(problem)
    shapes, starts = problem.shapes_tensor, problem.level_start_index
    forms: list[tuple[Any, Any]] = [
        (shapes, None),
        (shapes, starts),
        (shapes.int(), starts.int()),
        (shapes.repeat_interleave(2, 0)[::2], starts.repeat_interleave(2)[::2]),
        (shapes.cpu(), None),
        (shapes.cpu(), starts.cpu()),
        (problem.shapes, starts.tolist()),
        (problem.shapes, starts.cpu()),
        (shapes.tolist(), None),
        (shapes.cpu().numpy(), None),
    ]
    for form, first in forms:
        found = fourtap.ms_deform_attn(problem.value, form, problem.locations, problem.weights, level_start_index=first)
        assert torch.equal(found, expected), (form, first)
        gradients = torch.autograd.grad(found, problem.differentiable, problem.grad_out)
        right = torch.autograd.grad(attend(problem), problem.differentiable, problem.grad_out)
        for ours, theirs in zip(gradients, right, strict=True):
            reference.assert_close(ours, theirs, 1e-6)


def test_empty_problems_have_empty_or_zero_results(device: str) -> None:
    problem = reference.problem(8, device=device)
    value, locations, weights = problem.differentiable
    nobody = fourtap.ms_deform_attn(value, problem.shapes, locations[:, :0], weights[:, :0])
    assert nobody.shape == (2, 0, 15)
    nothing = fourtap.ms_deform_attn(value, problem.shapes, locations[..., :0, :], weights[..., :0])
    assert nothing.shape == (2, 7, 15) and not nothing.any()
    gradient = torch.autograd.grad(nothing, value, problem.grad_out)[0]
    assert gradient.shape == value.shape and not gradient.any()
    no_images = fourtap.ms_deform_attn(value[:0], problem.shapes, locations[:0], weights[:0])
    assert no_images.shape == (0, 7, 15)


def test_out_is_written_and_returned(device: str) -> None:
    problem = reference.problem(9, device=device)
    out = torch.full_like(problem.grad_out, torch.nan)
    with pytest.raises(fourtap.InputError, match="out: expected none where gradients are wanted"):
        attend(problem, out=out)
    with torch.no_grad():
        assert attend(problem, out=out) is out
        assert torch.equal(out, attend(problem))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_value_in_16_bits_and_leaves_coordinates(device: str, dtype: torch.dtype) -> None:
    problem = reference.problem(10, device=device, dtype=torch.float32, channels=32)
    with torch.autocast(device, dtype):
        found = attend(problem)
        half = attend(
            reference.Problem(
                problem.value, problem.shapes, problem.locations.to(dtype), problem.weights, problem.grad_out
            )
        )
    assert found.dtype is dtype and half.dtype is dtype
    value = problem.value.to(dtype)
    right = fourtap.ms_deform_attn(value, problem.shapes, problem.locations, problem.weights)
    assert torch.equal(found, right)
    found.backward(problem.grad_out.to(dtype))
    assert all(tensor.grad is not None and tensor.grad.dtype is torch.float32 for tensor in problem.differentiable)


def test_deterministic_gradients_are_equal_to_the_bit(device: str) -> None:
    problem = reference.problem(11, device=device, dtype=torch.float32, queries=300, heads=8, channels=32)
    # All on a few pixels, where sums meet.
    problem.locations = (problem.locations.detach() * 0.1 + 0.4).requires_grad_()

    def gradients(**options: Any) -> list[Tensor]:
        return list(torch.autograd.grad(attend(problem, **options), problem.differentiable, problem.grad_out))

    first = gradients(deterministic=True)
    for _ in range(20):
        assert all(map(torch.equal, gradients(deterministic=True), first))
    torch.use_deterministic_algorithms(True)
    for _ in range(20):
        assert all(map(torch.equal, gradients(), first))
    torch.use_deterministic_algorithms(False)
    for ours, theirs in zip(gradients(deterministic=False), first, strict=True):
        reference.assert_close(ours, theirs, 1e-5)


def test_a_changed_input_is_noticed_before_its_gradient_is_wrong(device: str) -> None:
    problem = reference.problem(12, device=device)
    copy = problem.value.detach().clone()
    found = fourtap.ms_deform_attn(copy, problem.shapes, problem.locations, problem.weights)
    copy.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    problem = reference.problem(13, device="cpu", dtype=torch.float32, queries=200, heads=8, channels=32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found = attend(problem)
            results.append([found, *torch.autograd.grad(found, problem.differentiable, problem.grad_out)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, other, results[0]))


def test_a_view_that_negates_is_read_as_what_it_stands_for(device: str) -> None:
    problem = reference.problem(14, device=device)
    with torch.no_grad():
        expected = fourtap.ms_deform_attn(-problem.value, problem.shapes, problem.locations, problem.weights)
        pairs = torch.complex(torch.zeros_like(problem.value), problem.value)
        negated = pairs.conj().imag
        assert negated.is_neg()
        found = fourtap.ms_deform_attn(negated, problem.shapes, problem.locations, problem.weights)
    assert torch.equal(found, expected)


@torch.no_grad()
def test_any_view_that_negates_is_read_as_what_it_stands_for(device: str) -> None:
    problem = reference.problem(16, device=device)
    value, locations, weights = (tensor.detach() for tensor in problem.differentiable)
    expected = fourtap.ms_deform_attn(value, problem.shapes, locations, weights)
    for index in range(3):
        operands = [value, locations, weights]
        operands[index] = torch._neg_view(-operands[index])
        found = fourtap.ms_deform_attn(operands[0], problem.shapes, *operands[1:])
        assert torch.equal(found, expected), index
        gradients = fourtap.ms_deform_attn_backward(problem.grad_out, operands[0], problem.shapes, *operands[1:])
        right = fourtap.ms_deform_attn_backward(problem.grad_out, value, problem.shapes, locations, weights)
        assert all(map(torch.equal, gradients, right)), index
    negated = torch._neg_view(-problem.grad_out)
    gradients = fourtap.ms_deform_attn_backward(negated, value, problem.shapes, locations, weights)
    assert all(map(torch.equal, gradients, right))
    out = torch._neg_view(torch.zeros_like(problem.grad_out))
    fourtap.ms_deform_attn(value, problem.shapes, locations, weights, out=out)
    assert torch.equal(out, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_batched_gradients_are_those_of_one_after_another(device: str) -> None:
    problem = reference.problem(17, device=device, queries=2, heads=2, channels=3, points=2)
    found = attend(problem)
    grads = torch.randn(4, *found.shape, dtype=found.dtype, device=device)
    batched = torch.autograd.grad(found, problem.differentiable, grads, is_grads_batched=True, retain_graph=True)
    for index, grad in enumerate(grads):
        single = torch.autograd.grad(found, problem.differentiable, grad, retain_graph=True)
        for ours, theirs in zip(batched, single, strict=True):
            reference.assert_close(ours[index], theirs, 1e-12)

    def function(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, problem.shapes, locations, weights)

    operands = tuple(problem.differentiable)
    quick = torch.autograd.functional.jacobian(function, operands, vectorize=True)
    slow = torch.autograd.functional.jacobian(function, operands)
    for ours, theirs in zip(quick, slow, strict=True):
        reference.assert_close(ours, theirs, 1e-12)
    assert torch.autograd.gradcheck(function, operands, check_batched_grad=True)


def test_parameters_and_subclasses_are_tensors_too(device: str) -> None:
    class Labelled(Tensor):
        pass

    problem = reference.problem(15, device=device)
    expected = attend(problem)
    value = torch.nn.Parameter(problem.value.detach())
    found = fourtap.ms_deform_attn(value, problem.shapes, problem.locations, problem.weights)
    assert torch.equal(found, expected)
    labelled = problem.value.detach().as_subclass(Labelled)
    found = fourtap.ms_deform_attn(labelled, problem.shapes, problem.locations, problem.weights)
    assert torch.equal(found.as_subclass(Tensor), expected)
    with torch.inference_mode():
        assert torch.equal(attend(problem), expected)
