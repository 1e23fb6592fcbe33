"""The operator from projections under torch.compile, export, fake tensors and everything else that must see one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import projections
import pytest
import reference
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import fourtap
from fourtap.nn import MSDeformAttn

OPTIONS: dict[str, dict[str, Any]] = {
    "points": {},
    "boxes": {"coordinates": 4, "box_scale": 0.3},
    "uneven": {"points": [3, 6, 1], "masked": True},
    "points take turns": {"axes": (2, 7, 3, 2), "points_per_level": 4},
    "nearest": {"sampling": "nearest", "coordinates": 4, "points": [3, 0, 2], "box_scale": [0.1, 0.2, 0.3]},
}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def problem(device: str, name: str = "points", **options: Any) -> projections.Problem:
    return projections.problem(1, device=device, dtype=torch.float32, channels=32, **OPTIONS[name], **options)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_calls_and_their_gradients_are_the_same(device: str, name: str, backend: str) -> None:
    case = problem(device, name)

    def layer(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        operands = (value * 2, case.shapes, references, offsets * 0.7, logits)
        return fourtap.ms_deform_attn_from_projections(*operands, **case.options).sin()

    operands = case.real.values()
    expected = layer(*operands)
    found = torch.compile(layer, fullgraph=True, backend=backend)(*operands)
    reference.assert_close(found, expected, 1e-6)
    chosen = ("value", "attention_logits") if name == "nearest" else tuple(case.real)
    reference.assert_same_gradients(found, expected, {at: case.real[at] for at in chosen}, case.grad_out, 1e-5)


def test_one_compilation_serves_all_image_sizes(device: str) -> None:
    compilations = 0

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return module.forward

    def layer(value: Tensor, shapes: Tensor, *projected: Tensor) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(value, shapes, *projected)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for height, queries in ((5, 7), (8, 11), (13, 4)):
            case = problem(device, shapes=((height, 9), (3, 4)), queries=queries)
            shapes = torch.tensor(case.shapes, device=device)
            operands = (case.value, shapes, case.references, case.offsets, case.logits)
            assert torch.equal(compiled(*operands), layer(*operands))
    assert compilations == 1


def test_autocast_is_compiled_in(device: str) -> None:
    case = problem(device)

    def layer(value: Tensor, *projected: Tensor) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(value, case.shapes, *projected)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        found = compiled(*case.real.values())
        assert found.dtype is torch.bfloat16 and torch.equal(found, layer(*case.real.values()))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_module_compiles_in_one_graph(device: str, masked: bool, mode: str) -> None:
    module = MSDeformAttn(32, n_levels=2, n_heads=2, n_points=3, device=device)
    nn.init.normal_(module.sampling_offsets.weight, std=0.2)
    nn.init.normal_(module.attention_weights.weight)
    shapes = [(6, 9), (3, 4)]
    query, features = torch.randn(2, 7, 32, device=device), torch.randn(2, 66, 32, device=device)
    mask = torch.rand(2, 66, device=device) < 0.3 if masked else None
    arguments = (query, torch.rand(2, 7, 2, 2, device=device), features, shapes, None, mask)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(mode == "training"):
        found, expected = compiled(*arguments), module(*arguments)
    reference.assert_close(found, expected, 1e-6)
    if mode == "training":
        named = dict(module.named_parameters())
        reference.assert_same_gradients(found, expected, named, torch.randn_like(found), 1e-5)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_exported_programs_compute_the_same(device: str, name: str, strict: bool) -> None:
    case = problem(device, name)

    class Layer(nn.Module):
        def forward(self, value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
            operands = (value, case.shapes, references, offsets, logits)
            return fourtap.ms_deform_attn_from_projections(*operands, **case.options) + 1

    operands = tuple(tensor.detach() for tensor in case.real.values())
    program = torch.export.export(Layer(), operands, strict=strict)
    assert "fourtap.msda_projected" in program.graph_module.code
    assert torch.equal(program.module()(*operands), Layer()(*operands))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_traced_calls_compute_the_same(device: str) -> None:
    case = problem(device, "uneven")

    def layer(*operands: Tensor) -> Tensor:
        value, *projected = operands
        return fourtap.ms_deform_attn_from_projections(value, case.shapes, *projected, **case.options)

    operands = tuple(tensor.detach() for tensor in case.real.values())
    kept = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, operands), kept)
    kept.seek(0)
    other = tuple(tensor.flip(0) for tensor in operands)
    assert torch.equal(torch.jit.load(kept)(*other), layer(*other))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_composition_for_other_runtimes_computes_the_same(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = problem(device, name)
    expected = case.attend()
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)

    class Everything(TorchDispatchMode):
        """Makes the call take the way of a tracer."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert "fourtap" not in str(function)
            return function(*args, **(kwargs or {}))

    with Everything(), torch.no_grad():
        found = case.attend()
    reference.assert_close(found, expected, 1e-5)


def flat(case: projections.Problem) -> tuple[Any, ...]:
    """The arguments of the registered operator."""
    points = case.options.get("points_per_level", [])
    scale = case.options.get("box_scale", [])
    levels = len(case.shapes)
    return (
        case.value,
        None,
        None,
        [size for pair in case.shapes for size in pair],
        case.references,
        case.offsets,
        case.logits,
        case.options.get("value_mask"),
        [points] * levels if isinstance(points, int) else points,
        case.options.get("sampling") == "nearest",
        [scale] * levels if isinstance(scale, float) else scale,
        False,
        True,
    )


@pytest.mark.parametrize("name", ["points", "boxes", "uneven", "points take turns"])
def test_the_registered_operators_pass_opcheck(device: str, name: str) -> None:
    options = {"axes": (2, 3, 3, 2)} if name == "points take turns" else {}
    case = projections.problem(
        2, device=device, dtype=torch.float32, channels=4, queries=3, **{**OPTIONS[name], **options}
    )
    opcheck(torch.ops.fourtap.msda_projected.default, flat(case))
    operands = [tensor.detach() if isinstance(tensor, Tensor) else tensor for tensor in flat(case)]
    for wanted in ((True,) * 4, (False, True, False, True)):
        opcheck(torch.ops.fourtap.msda_projected_backward.default, (case.grad_out, *operands, wanted))


def test_offsets_and_logits_in_one_pass_opcheck(device: str) -> None:
    case = projections.problem(2, device=device, dtype=torch.float32, channels=4, queries=3)
    arguments = list(flat(case))
    both = torch.cat([case.offsets.flatten(2), case.logits.flatten(2)], -1).detach().requires_grad_()
    arguments[5:7] = both, None
    found = torch.ops.fourtap.msda_projected.default(*arguments)
    expected = torch.ops.fourtap.msda_projected.default(*flat(case))
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, both, case.grad_out)
    apart = torch.autograd.grad(expected, (case.offsets, case.logits), case.grad_out)
    assert torch.equal(gradient, torch.cat([part.flatten(2) for part in apart], -1))
    opcheck(torch.ops.fourtap.msda_projected.default, arguments)
    operands = [tensor.detach() if isinstance(tensor, Tensor) else tensor for tensor in arguments]
    opcheck(torch.ops.fourtap.msda_projected_backward.default, (case.grad_out, *operands, (True, True, True, False)))


def test_zeros_are_written_in_place(device: str) -> None:
    value = torch.full((2, 5, 3, 4), torch.nan, device=device)
    mask = torch.rand(2, 5, device=device) < 0.5
    expected = value.masked_fill(mask[..., None, None], 0.0)
    torch.ops.fourtap.zero_pixels_(value, mask)
    assert torch.equal(value.nan_to_num(7.0), expected.nan_to_num(7.0))
    opcheck(torch.ops.fourtap.zero_pixels_.default, (torch.rand(2, 5, 3, 4, device=device), mask))


def test_fake_tensors_give_fake_results(device: str) -> None:
    with FakeTensorMode() as mode:
        value = torch.empty(2, 66, 3, 5, device=device)
        found = fourtap.ms_deform_attn_from_projections(
            value,
            torch.empty(2, 2, dtype=torch.int64, device=device),
            torch.empty(2, 7, 1, 4, device=device),
            torch.empty(2, 7, 3, 8, 2, device=device),
            torch.empty(2, 7, 3, 8, device=device),
        )
        assert found.shape == (2, 7, 15) and found.device == value.device
        assert found.fake_mode is mode  # type: ignore[attr-defined]


def test_modes_see_the_registered_operators(device: str) -> None:
    case = problem(device)
    seen: list[str] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Look():
        case.attend().backward(case.grad_out)
    assert "fourtap.msda_projected.default" in seen and "fourtap.msda_projected_backward.default" in seen
