"""Modules with all four projections: what holds for every project whose module is patched."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import reference
import stand_ins
import torch
import watching
from torch import Tensor, nn

import fourtap
from fourtap import attention
from fourtap.compat import groundingdino, rfdetr, rtdetr, ultralytics

SHAPES = [(6, 9), (3, 4)]
PIXELS = 66
CHANNELS, HEADS, POINTS, BATCH, QUERIES = 12, 3, 2, 2, 7

# The largest errors of the result and of gradients, as parts of the largest magnitude.
TOLERANCES = {torch.float64: (1e-12, 1e-11), torch.float32: (2e-6, 1e-5)}


@dataclass(frozen=True)
class Project:
    """How a project's module is made and called; tensors are batch first, and masks are true for padding."""

    files: dict[str, str]
    module: str
    build: Callable[[ModuleType], nn.Module]
    call: Callable[..., Tensor]
    compat: Any
    names: dict[str, str]
    "What it calls the value, the shapes, the reference points and the mask, where they are called something else."
    function: str
    levels: int = len(SHAPES)
    "Levels of reference points, where all share one."

    def patch(self) -> list[str]:
        if self.compat is not rtdetr:
            names: list[str] = self.compat.patch()
            return names
        return rtdetr.patch(importlib.import_module(self.module))


def call_grounding_dino(module: Any, query: Tensor, points: Any, value: Any, mask: Any, shapes: Any = SHAPES) -> Tensor:
    levels = torch.tensor(shapes, device=query.device)
    starts = torch.tensor([0, 54], device=query.device)
    named = {"reference_points": points, "spatial_shapes": levels, "level_start_index": starts}
    if not module.batch_first:
        query, value = query.transpose(0, 1), value.transpose(0, 1)
    found: Tensor = module(query=query, value=value, key_padding_mask=mask, **named)
    return found if module.batch_first else found.transpose(0, 1)


def call_ultralytics(module: Any, query: Tensor, points: Any, value: Any, mask: Any, shapes: Any = SHAPES) -> Tensor:
    found: Tensor = module(query, points, value, [list(shape) for shape in shapes], mask)
    return found


def call_rf_detr(module: Any, query: Tensor, points: Any, value: Any, mask: Any, shapes: Any = SHAPES) -> Tensor:
    levels = (torch.tensor(shapes, device=query.device), torch.tensor([0, 54], device=query.device))
    found: Tensor = module(query, points, value, *levels, mask)
    return found


def call_rf_detr_listed(module: Any, query: Tensor, points: Any, value: Any, mask: Any, shapes: Any = SHAPES) -> Tensor:
    levels = (torch.tensor(shapes, device=query.device), torch.tensor([0, 54], device=query.device))
    found: Tensor = module(query, points, value, *levels, mask, input_spatial_shapes_hw=shapes)
    return found


def call_rt_detr(module: Any, query: Tensor, points: Any, value: Any, mask: Any, shapes: Any = SHAPES) -> Tensor:
    # Here masks are true for pixels that count.
    found: Tensor = module(query, points, value, shapes, None if mask is None else ~mask)
    return found


def grounding_dino(batch_first: bool) -> Project:
    name = "groundingdino.models.GroundingDINO.ms_deform_attn"
    return Project(
        stand_ins.GROUNDING_DINO,
        name,
        lambda home: home.MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, batch_first),
        call_grounding_dino,
        groundingdino,
        {"mask": "key_padding_mask"},
        "multi_scale_deformable_attn_pytorch",
    )


def rf_detr(call: Callable[..., Tensor]) -> Project:
    return Project(
        stand_ins.RF_DETR,
        "rfdetr.models.ops.modules.ms_deform_attn",
        lambda home: home.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS),
        call,
        rfdetr,
        {"value": "input_flatten", "spatial_shapes": "input_spatial_shapes", "mask": "input_padding_mask"},
        "ms_deform_attn_core_pytorch",
    )


PROJECTS = {
    "Grounding DINO": grounding_dino(True),
    "Grounding DINO, queries first": grounding_dino(False),
    "ultralytics": Project(
        stand_ins.ULTRALYTICS,
        "ultralytics.nn.modules.transformer",
        lambda home: home.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS),
        call_ultralytics,
        ultralytics,
        {"spatial_shapes": "value_shapes", "reference_points": "refer_bbox", "mask": "value_mask"},
        "multi_scale_deformable_attn_pytorch",
        levels=1,
    ),
    "RF-DETR": rf_detr(call_rf_detr),
    "RF-DETR, sizes as a list": rf_detr(call_rf_detr_listed),
    "RT-DETR": Project(
        stand_ins.REPOSITORY,
        "repository.zoo.rtdetr_decoder",
        lambda home: home.MSDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS),
        call_rt_detr,
        rtdetr,
        {"spatial_shapes": "value_spatial_shapes", "mask": "value_mask"},
        "deformable_attention_core_func",
    ),
}


@pytest.fixture(params=list(PROJECTS))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    found = PROJECTS[request.param]
    with stand_ins.installed(found.files, tmp_path):
        # Without an extension it cannot be imported.
        groundingdino.install()
        yield found
        found.compat.unpatch()
        groundingdino.uninstall()


@dataclass
class Call:
    """A module and what it is called with."""

    module: nn.Module
    query: Tensor
    points: Tensor
    value: Tensor
    mask: Tensor | None

    @property
    def operands(self) -> tuple[Any, ...]:
        return self.module, self.query, self.points, self.value, self.mask

    @property
    def differentiable(self) -> dict[str, Tensor]:
        tensors = {"query": self.query, "points": self.points, "value": self.value}
        return {**tensors, **dict(self.module.named_parameters())}

    @property
    def expected(self) -> Tensor:
        state = dict(self.module.named_parameters())
        points = self.points.expand(-1, -1, len(SHAPES), -1)
        return reference.module(state, HEADS, POINTS, self.query, points, self.value, SHAPES, self.mask)


def call_of(
    project: Project, device: str, dtype: torch.dtype = torch.float64, corners: int = 4, masked: bool = True
) -> Call:
    module = project.build(importlib.import_module(project.module)).to(device, dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    random = {"device": device, "dtype": dtype}
    return Call(
        module,
        torch.randn(BATCH, QUERIES, CHANNELS, **random).requires_grad_(),
        torch.rand(BATCH, QUERIES, project.levels, corners, **random).requires_grad_(),
        torch.randn(BATCH, PIXELS, CHANNELS, **random).requires_grad_(),
        torch.rand(BATCH, PIXELS, device=device) < 0.3 if masked else None,
    )


def fails(*_: object, **__: object) -> Tensor:
    raise AssertionError("the original was called")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("corners", [2, 4])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_results_and_gradients_are_those_of_the_original(
    project: Project,
    device: str,
    dtype: torch.dtype,
    corners: int,
    masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = call_of(project, device, dtype, corners, masked)
    project.patch()
    # Neither what samples at given locations is called, ours, nor the original.
    monkeypatch.setattr(attention, "ms_deform_attn", fails)
    monkeypatch.setattr(reference, "ms_deform_attn", fails)
    found = project.call(*call.operands)
    monkeypatch.undo()
    of_result, of_gradients = TOLERANCES[dtype]
    assert found.dtype == dtype
    reference.assert_close(found, call.expected, of_result)
    grad_out = torch.randn_like(found)
    reference.assert_same_gradients(found, call.expected, call.differentiable, grad_out, of_gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_accurate(project: Project, device: str, dtype: torch.dtype) -> None:
    call = call_of(project, device, torch.float32)
    project.patch()
    expected = call.expected.detach()
    call.module.to(dtype)
    found = project.call(call.module, call.query.to(dtype), call.points, call.value.to(dtype), call.mask)
    assert found.dtype == dtype
    # What is rounded are the products of the layers, offsets of pixels among them; not locations, nor weights.
    reference.assert_close(found, expected, 0.005 if dtype == torch.float16 else 0.03)


def test_models_that_exist_change_and_change_back(
    project: Project, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(project, device)
    seen = watching.shapes_of_calls(monkeypatch)
    before = project.call(*call.operands)
    assert not seen
    reference.assert_close(before, call.expected, 1e-12)
    names = project.patch()
    assert any(name.startswith(project.module) and name.endswith(".forward") for name in names)
    assert project.patch() == names
    reference.assert_close(project.call(*call.operands), before, 1e-12)
    assert len(seen) == 1
    project.compat.unpatch()
    assert torch.equal(project.call(*call.operands), before)
    assert len(seen) == 1


def test_a_function_of_the_users_own_is_called(project: Project, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(project, device)
    expected = call.expected
    project.patch()
    calls: list[Any] = []

    def noting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def own(*operands: Any) -> Tensor:
            calls.append(operands)
            return function(*operands)

        return own

    home: Any = sys.modules[project.module]
    if project.compat is rtdetr:
        monkeypatch.setattr(call.module, "ms_deformable_attn_core", noting(getattr(home, project.function)))
    else:
        monkeypatch.setattr(home, project.function, noting(getattr(home, project.function)))
    if project.compat is groundingdino:
        # On CUDA devices this is called instead.
        function = SimpleNamespace(apply=noting(home.MultiScaleDeformableAttnFunction.apply))
        monkeypatch.setattr(home, "MultiScaleDeformableAttnFunction", function)
    reference.assert_close(project.call(*call.operands), expected, 1e-12)
    assert len(calls) == 1


def test_sizes_that_do_not_fit_are_refused_by_name(project: Project, device: str) -> None:
    call = call_of(project, device)
    project.patch()
    names = {name: project.names.get(name, name) for name in ("value", "spatial_shapes", "reference_points", "mask")}

    def refuses(message: str, **changed: Any) -> None:
        operands = {"query": call.query, "points": call.points, "value": call.value, "mask": call.mask, **changed}
        with pytest.raises(fourtap.InputError, match=message):
            project.call(call.module, **operands)

    total = rf"^{names['value']}: expected 69 pixels .* the sum over {names['spatial_shapes']}, found 66$"
    refuses(total, shapes=[(6, 9), (3, 5)])
    mask = torch.zeros(BATCH, PIXELS + 1, device=device, dtype=torch.bool)
    refuses(rf"^{names['mask']}: expected shape \[2, 66\], found \[2, 67\]$", mask=mask)
    references = rf"^{names['reference_points']}: expected shape \[2, 7, 2, 2 or 4\], found \[2, 7, "
    refuses(references + rf"{project.levels}, 3\]$", points=call.points[..., :3])
    refuses(references + r"3, 4\]$", points=torch.rand(BATCH, QUERIES, 3, 4, device=device, dtype=torch.float64))
    refuses(r"^query: expected shape \[N, Q, 12\], found \[2, 7, 11\]$", query=call.query[..., :11])
    refuses(rf"^{names['value']}: expected shape \[2, S, 12\], found \[2, 66, 11\]$", value=call.value[..., :11])
    refuses(r": expected 2 levels, found 1$", shapes=[(6, 11)])


def test_a_module_that_is_written_otherwise_keeps_its_forward(
    project: Project, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(project, device)
    owner: Any = type(call.module)
    original = owner.forward

    def forward(self: Any, *operands: Any, **named: Any) -> Any:
        return original(self, *operands, **named)

    owner.forward = forward
    project.patch()
    assert owner.forward is forward
    # What it calls is the operator all the same, at its locations.
    seen = watching.shapes_of_calls(monkeypatch)
    reference.assert_close(project.call(*call.operands), call.expected, 1e-12)
    assert len(seen) == 1


@pytest.mark.parametrize("compat", [groundingdino, rfdetr, ultralytics])
def test_patch_says_that_there_is_nothing_to_patch(compat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = compat.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        fourtap.UnsupportedError, match=rf"^{name}: expected it to be installed, found no such package$"
    ):
        compat.patch()


@pytest.mark.parametrize("name", [name for name in PROJECTS if "RT-DETR" not in name])
def test_what_is_imported_later_is_patched_then(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = PROJECTS[name]
    with stand_ins.installed(project.files, tmp_path):
        project.patch()
        assert project.module not in sys.modules
        call = call_of(project, device)
        seen = watching.shapes_of_calls(monkeypatch)
        reference.assert_close(project.call(*call.operands), call.expected, 1e-12)
        assert len(seen) == 1
        project.compat.unpatch()


def test_compiles_in_one_graph(project: Project, device: str) -> None:
    call = call_of(project, device, torch.float32)
    project.patch()
    compiled = torch.compile(call.module, fullgraph=True, backend="aot_eager")
    found = project.call(compiled, *call.operands[1:])
    reference.assert_close(found, call.expected, 2e-6)
