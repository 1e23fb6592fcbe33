"""The operator from projections, with PyTorch tensors in eager mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import projections
import pytest
import reference
import torch
from torch import Tensor

import fourtap
from fourtap import _native

UNEVEN = [3, 6, 1]
OPTIONS: dict[str, dict[str, Any]] = {
    "points": {},
    "boxes": {"coordinates": 4},
    "points per level": {"points_per_level": 4},
    "uneven": {"points": UNEVEN},
    "uneven boxes": {"points": UNEVEN, "coordinates": 4},
    "a level without points": {"points": [3, 0, 2]},
    "box scale": {"coordinates": 4, "box_scale": 0.3},
    "box scale per level": {"coordinates": 4, "points": UNEVEN, "box_scale": [0.1, 0.5, 0.25]},
    "mask": {"masked": True},
    "mask and boxes": {"masked": True, "coordinates": 4},
    "one reference for all": {"axes": (1, 1, 1)},
    "one box for all levels": {"axes": (2, 7, 1), "coordinates": 4},
    "a reference for each point": {"axes": (2, 7, 3, 4)},
    "points take turns": {"axes": (2, 7, 3, 2)},
    "boxes take turns on one level for all": {"axes": (2, 1, 1, 2), "coordinates": 4},
}
NEAREST: dict[str, dict[str, Any]] = {
    name: {**options, "sampling": "nearest"}
    for name, options in OPTIONS.items()
    if name in ("points", "boxes", "uneven boxes", "mask", "points take turns")
}


@pytest.mark.parametrize("name", OPTIONS)
def test_result_and_gradients_are_those_of_the_formula(device: str, name: str) -> None:
    problem = projections.problem(1, device=device, **OPTIONS[name])
    found, expected = problem.attend(), problem.expected()
    reference.assert_close(found, expected, 1e-12)
    reference.assert_same_gradients(found, expected, problem.real, problem.grad_out, 1e-11)


@pytest.mark.parametrize("name", NEAREST)
def test_nearest_is_that_of_rt_detr_v2(device: str, name: str) -> None:
    problem = projections.problem(2, device=device, **NEAREST[name])
    found, expected = problem.attend(), problem.expected()
    reference.assert_close(found, expected, 1e-12)
    differentiable = {name: problem.real[name] for name in ("value", "attention_logits")}
    reference.assert_same_gradients(found, expected, differentiable, problem.grad_out, 1e-11)
    places = [problem.references, problem.offsets]
    assert torch.autograd.grad(problem.attend(), places, problem.grad_out, allow_unused=True) == (None, None)


@pytest.mark.parametrize("name", ["points", "uneven boxes", "mask", "points take turns"])
def test_gradients_are_those_of_finite_differences(device: str, name: str) -> None:
    small = {"queries": 2, "heads": 2, "channels": 3, "shapes": [(4, 5), (2, 3), (1, 1)]}
    options = dict(OPTIONS[name])
    if "axes" in options:
        options["axes"] = (2, 2, *options["axes"][2:])
    problem = projections.problem(3, device=device, **small, **options)
    arguments = problem.real.values()

    def attend(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        operands = (value, problem.shapes, references, offsets, logits)
        return fourtap.ms_deform_attn_from_projections(*operands, **problem.options)

    assert torch.autograd.gradcheck(attend, tuple(arguments), nondet_tol=0.0, eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("projected", ["same", "f32"])
@pytest.mark.parametrize("name", ["boxes", "uneven", "mask"])
def test_result_and_gradients_are_accurate_in_every_dtype(
    device: str, dtype: torch.dtype, projected: str, name: str
) -> None:
    problem = projections.problem(4, device=device, dtype=dtype, **OPTIONS[name])
    if projected == "f32":
        for operand in ("references", "offsets", "logits"):
            wide = getattr(problem, operand).detach().float().requires_grad_()
            setattr(problem, operand, wide)
    found, expected = problem.attend(), problem.expected()
    assert found.dtype == dtype
    unit = {torch.float32: 2**-20, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    reference.assert_close(found, expected, unit)
    reference.assert_same_gradients(found, expected, problem.real, problem.grad_out, 4 * unit)


@pytest.mark.parametrize("coordinates", [2, 4])
def test_projections_may_be_slices_of_one_layer(device: str, coordinates: int) -> None:
    problem = projections.problem(5, device=device, coordinates=coordinates)
    _, _, heads, samples, _ = problem.offsets.shape
    both = torch.cat([problem.offsets.detach().flatten(2), problem.logits.detach().flatten(2)], dim=-1)
    both.requires_grad_()
    offsets, logits = both.split([heads * samples * 2, heads * samples], dim=-1)
    operands = (problem.value, problem.shapes, problem.references)
    found = fourtap.ms_deform_attn_from_projections(
        *operands, offsets.unflatten(-1, (heads, samples, 2)), logits.unflatten(-1, (heads, samples))
    )
    dense = problem.attend()
    assert torch.equal(found, dense)
    (by_both,) = torch.autograd.grad(found, [both], problem.grad_out)
    by_offsets, by_logits = torch.autograd.grad(dense, [problem.offsets, problem.logits], problem.grad_out)
    assert torch.equal(by_both, torch.cat([by_offsets.flatten(2), by_logits.flatten(2)], dim=-1))


def test_any_strides_are_read(device: str) -> None:
    problem = projections.problem(6, device=device, masked=True)
    expected = problem.attend()
    with torch.no_grad():
        problem.value = problem.value.transpose(1, 2).contiguous().transpose(1, 2)
        problem.references = problem.references.expand(2, 7, 3, 2).flip(1).contiguous().flip(1)
        problem.offsets = problem.offsets.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
        problem.logits = torch.stack([problem.logits, problem.logits], dim=-1)[..., 1]
        mask = problem.options["value_mask"]
        problem.options["value_mask"] = mask.t().contiguous().t()
        assert torch.equal(problem.attend(), expected)


def test_levels_may_be_a_tensor_in_any_order(device: str) -> None:
    problem = projections.problem(7, device=device)
    expected = problem.attend()
    levels = problem.value.split([height * width for height, width in problem.shapes], dim=1)
    operands = (problem.references, problem.offsets, problem.logits)
    found = fourtap.ms_deform_attn_from_projections(
        torch.cat(levels[::-1], dim=1),
        torch.tensor(problem.shapes, device=device),
        *operands,
        level_start_index=torch.tensor([13, 1, 0], device=device),
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_padding_may_hold_anything(device: str, dtype: torch.dtype) -> None:
    problem = projections.problem(8, device=device, masked=True)
    mask = problem.options["value_mask"]
    clean = problem.attend()
    problem.value = problem.value.detach().masked_fill(mask[..., None, None], torch.nan).requires_grad_()
    poisoned = problem.attend(value_mask=mask.to(dtype))
    assert torch.equal(poisoned, clean)
    (gradient,) = torch.autograd.grad(poisoned, [problem.value], problem.grad_out)
    assert not gradient[mask].any() and gradient[~mask].any()


@pytest.mark.parametrize("logit", [torch.nan, torch.inf])
def test_a_logit_without_a_softmax_makes_its_head_nan(device: str, logit: float) -> None:
    problem = projections.problem(9, device=device)
    expected = problem.attend().detach()
    with torch.no_grad():
        problem.logits[1, 2, 1, 3] = logit
    found = problem.attend()
    channels = problem.value.shape[-1]
    assert found[1, 2, channels : 2 * channels].isnan().all()
    expected[1, 2, channels : 2 * channels] = found[1, 2, channels : 2 * channels]
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_minus_infinity_hides_a_point(device: str) -> None:
    problem = projections.problem(10, device=device)
    with torch.no_grad():
        problem.logits[..., 5] = -torch.inf
    reference.assert_close(problem.attend(), problem.expected(), 1e-12)


def test_only_requested_gradients_are_computed(device: str) -> None:
    problem = projections.problem(11, device=device)
    everything = torch.autograd.grad(problem.attend(), list(problem.real.values()), problem.grad_out)
    for at, name in enumerate(problem.real):
        alone = projections.problem(11, device=device)
        for other, tensor in alone.real.items():
            tensor.requires_grad_(other == name)
        (gradient,) = torch.autograd.grad(alone.attend(), [alone.real[name]], alone.grad_out)
        assert torch.equal(gradient, everything[at])


def test_what_autograd_keeps_is_what_the_caller_has(device: str) -> None:
    problem = projections.problem(12, device=device)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        problem.attend()
    assert set(kept) == {tensor.data_ptr() for tensor in problem.real.values()}


def test_result_is_written_to_out(device: str) -> None:
    problem = projections.problem(13, device=device)
    with torch.no_grad():
        expected = problem.attend()
        out = torch.full_like(expected, torch.nan)
        assert problem.attend(out=out) is out
    assert torch.equal(out, expected)


def test_nothing_to_do_is_done(device: str) -> None:
    for options in ({"queries": 0}, {"batch": 0}, {"points": 0}):
        problem = projections.problem(14, device=device, **options)
        out = problem.attend()
        assert out.shape == problem.grad_out.shape
        out.sum().backward()
        assert problem.value.grad is not None and not problem.value.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_value_and_nothing_else(device: str, dtype: torch.dtype) -> None:
    problem = projections.problem(15, device=device, dtype=torch.float32, coordinates=4)
    with torch.autocast(device, dtype):
        found = problem.attend()
        with torch.no_grad():
            assert torch.equal(problem.attend(), found)
    assert found.dtype == dtype
    cast = problem.value.detach().to(dtype)
    operands = (cast, problem.shapes, problem.references, problem.offsets, problem.logits)
    with torch.no_grad():
        assert torch.equal(found, fourtap.ms_deform_attn_from_projections(*operands))
    found.float().sum().backward()
    for name, tensor in problem.real.items():
        assert tensor.grad is not None and tensor.grad.dtype == torch.float32, name
    # Projections of another 16-bit type than autocast's are taken as float32.
    other = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16
    offsets = problem.offsets.detach().to(other)
    with torch.autocast(device, dtype), torch.no_grad():
        found = fourtap.ms_deform_attn_from_projections(*operands[:3], offsets, problem.logits)
        expected = fourtap.ms_deform_attn_from_projections(*operands[:3], offsets.float(), problem.logits)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["points", "uneven boxes", "mask and boxes"])
def test_numpy_arrays_give_the_same_result(name: str) -> None:
    problem = projections.problem(16, device="cpu", dtype=torch.float32, **OPTIONS[name])
    arrays = [tensor.detach().numpy() for tensor in problem.real.values()]
    options = {
        name: option.numpy() if isinstance(option, Tensor) else option for name, option in problem.options.items()
    }
    found = fourtap.ms_deform_attn_from_projections(arrays[0], problem.shapes, *arrays[1:], **options)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, problem.attend().detach().numpy())
    out = np.full_like(found, np.nan)
    fourtap.ms_deform_attn_from_projections(arrays[0], problem.shapes, *arrays[1:], **options, out=out)
    assert np.array_equal(found, out)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_batched_gradients_are_those_of_one_after_another(device: str) -> None:
    problem = projections.problem(17, device=device, queries=2, heads=2, channels=3, points=2, masked=True)
    found, operands = problem.attend(), list(problem.real.values())
    grads = torch.randn(4, *found.shape, dtype=found.dtype, device=device)
    batched = torch.autograd.grad(found, operands, grads, is_grads_batched=True, retain_graph=True)
    for index, grad in enumerate(grads):
        single = torch.autograd.grad(found, operands, grad, retain_graph=True)
        for ours, theirs in zip(batched, single, strict=True):
            reference.assert_close(ours[index], theirs, 1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_without_gradients_is_right(device: str) -> None:
    problem = projections.problem(18, device=device, coordinates=4)
    values = torch.stack([problem.value.detach(), problem.value.detach() * 2])
    projected = (problem.references.detach(), problem.offsets.detach(), problem.logits.detach())

    def layer(value: Tensor) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(value, problem.shapes, *projected)

    assert torch.equal(torch.vmap(layer)(values), torch.stack([layer(value) for value in values]))


def test_parameters_and_subclasses_are_tensors_too(device: str) -> None:
    class Labelled(Tensor):
        pass

    problem = projections.problem(19, device=device, masked=True)
    expected = problem.attend()
    for name in ("value", "references", "offsets", "logits"):
        changed = projections.problem(19, device=device, masked=True)
        setattr(changed, name, torch.nn.Parameter(getattr(problem, name).detach()))
        assert torch.equal(changed.attend(), expected)
        setattr(changed, name, getattr(problem, name).detach().as_subclass(Labelled))
        assert torch.equal(changed.attend().as_subclass(Tensor), expected)
    with torch.inference_mode():
        assert torch.equal(problem.attend(), expected)


def test_changed_operands_are_noticed_before_backward(device: str) -> None:
    for name in ("value", "references", "offsets", "logits", "mask"):
        problem = projections.problem(20, device=device, masked=True)
        found = problem.attend()
        with torch.no_grad():
            (problem.options["value_mask"] if name == "mask" else getattr(problem, name)).zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.sum().backward()


def test_a_mask_that_is_applied_already_is_for_gradients_only(device: str) -> None:
    problem = projections.problem(21, device=device, masked=True)
    mask = problem.options["value_mask"]
    applied = (4, False, None, True)
    operands = (problem.value, problem.shapes, None, problem.references, problem.offsets, problem.logits, mask, applied)
    with torch.no_grad():
        assert torch.equal(_native.torch_projected_forward(operands, None), problem.attend(value_mask=None))
    wanted = (True, False, False, False)
    gradient, *_ = _native.torch_projected_backward(problem.grad_out, operands, True, wanted)
    assert gradient is not None
    assert not gradient[mask].any() and gradient[~mask].any()
