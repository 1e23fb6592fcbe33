"""torch.compile, export, fake tensors and everything else that must see an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import fourtap


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def problem(device: str, **options: Any) -> reference.Problem:
    return reference.problem(1, device=device, dtype=torch.float32, channels=32, **options)


LEVELS = ["list", "tensor", "tensor and starts"]


def levels_of(case: reference.Problem, kind: str) -> tuple[Any, Any]:
    shapes = case.shapes if kind == "list" else case.shapes_tensor
    return shapes, case.level_start_index if kind == "tensor and starts" else None


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_calls_and_their_gradients_are_the_same(device: str, kind: str, backend: str) -> None:
    case = problem(device)
    shapes, starts = levels_of(case, kind)

    def layer(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value * 2, shapes, locations, weights, level_start_index=starts).sin()

    expected = layer(*case.differentiable)
    found = torch.compile(layer, fullgraph=True, backend=backend)(*case.differentiable)
    reference.assert_close(found, expected, 1e-6)
    named = dict(zip(("value", "locations", "weights"), case.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, named, case.grad_out, 1e-5)


def test_one_compilation_serves_all_image_sizes(device: str) -> None:
    compilations = 0

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return module.forward

    def layer(value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, shapes, locations, weights)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for height, queries in ((5, 7), (8, 11), (13, 4)):
            case = problem(device, shapes=((height, 9), (3, 4)), queries=queries)
            operands = (case.value, case.shapes_tensor, case.locations, case.weights)
            assert torch.equal(compiled(*operands), layer(*operands))
    assert compilations == 1


def test_autocast_and_determinism_are_compiled_in(device: str) -> None:
    case = problem(device)

    def layer(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, case.shapes, locations, weights)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        found = compiled(*case.differentiable)
        assert found.dtype is torch.bfloat16 and torch.equal(found, layer(*case.differentiable))
    torch.use_deterministic_algorithms(True)
    seen: list[bool] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.fourtap.msda.default:
                seen.append(args[6])
            return function(*args, **(kwargs or {}))

    with Look(), torch.no_grad():
        layer(*case.differentiable)
    assert seen == [True]


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_compute_the_same(device: str, strict: bool) -> None:
    case = problem(device)

    class Layer(torch.nn.Module):
        def forward(self, value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
            return fourtap.ms_deform_attn(value, shapes, locations, weights) + 1

    operands = (case.value.detach(), case.shapes_tensor, case.locations.detach(), case.weights.detach())
    program = torch.export.export(Layer(), operands, strict=strict)
    assert "fourtap.msda" in program.graph_module.code
    assert torch.equal(program.module()(*operands), Layer()(*operands))


def test_the_registered_operators_pass_opcheck(device: str) -> None:
    case = problem(device, queries=3)
    flat = [size for pair in case.shapes for size in pair]
    for shapes, starts, levels in (
        (case.shapes_tensor, case.level_start_index, []),
        (case.shapes_tensor, None, []),
        (None, None, flat),
    ):
        opcheck(
            torch.ops.fourtap.msda.default, (case.value, shapes, starts, levels, case.locations, case.weights, True)
        )
        value, locations, weights = (tensor.detach() for tensor in case.differentiable)
        for wanted in ((True, True, True), (False, True, False)):
            opcheck(
                torch.ops.fourtap.msda_backward.default,
                (case.grad_out, value, shapes, starts, levels, locations, weights, True, wanted),
            )


def test_fake_and_meta_tensors_have_the_shape_and_type_of_the_result(device: str) -> None:
    case = problem(device)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(case.value.shape, dtype=torch.bfloat16, device=device)
        found = fourtap.ms_deform_attn(fake, case.shapes, case.locations, case.weights)
    assert found.shape == case.grad_out.shape and found.dtype is torch.bfloat16 and found.device.type == device
    meta = [tensor.detach().to("meta") for tensor in case.differentiable]
    assert fourtap.ms_deform_attn(meta[0], case.shapes, meta[1], meta[2]).shape == case.grad_out.shape
    with pytest.raises(fourtap.InputError, match="sampling_locations: expected meta"):
        fourtap.ms_deform_attn(meta[0], case.shapes, case.locations.detach(), case.weights.detach())


def test_modes_see_the_operator_and_its_gradient(device: str) -> None:
    case = problem(device)
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    expected = fourtap.ms_deform_attn(case.value, case.shapes, case.locations, case.weights)
    with Record():
        found = fourtap.ms_deform_attn(case.value, case.shapes, case.locations, case.weights)
        found.backward(case.grad_out)
    assert torch.equal(found, expected)
    assert "fourtap.msda.default" in seen and "fourtap.msda_backward.default" in seen


def test_a_tensor_that_outlived_its_transform_is_used_as_what_it_wraps(device: str) -> None:
    case = problem(device)
    kept = []

    def total(value: Tensor) -> Tensor:
        kept.append(value)
        return value.sum()

    torch.func.grad(total)(case.value.detach())
    arguments = (kept[0], case.shapes, case.locations, case.weights)
    found = fourtap.ms_deform_attn(*arguments)
    assert found.requires_grad
    assert torch.equal(found, fourtap.ms_deform_attn(case.value, *arguments[1:]))
    with torch.no_grad():
        assert torch.equal(found, fourtap.ms_deform_attn(*arguments))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_without_gradients_is_right(device: str) -> None:
    case = problem(device)
    values = torch.stack([case.value.detach(), case.value.detach() + 1])

    def layer(value: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value, case.shapes, case.locations.detach(), case.weights.detach())

    assert torch.equal(torch.vmap(layer)(values), torch.stack([layer(value) for value in values]))
