"""What is Grounding DINO's alone: the extension, and arguments. The module is tested with those of other projects."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reference
import stand_ins
import torch

import fourtap
from fourtap.compat import groundingdino

EXTENSION = "groundingdino._C"
MODULE = "groundingdino.models.GroundingDINO.ms_deform_attn"


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    with stand_ins.installed(stand_ins.GROUNDING_DINO, tmp_path):
        yield
        groundingdino.unpatch()


def module_on(device: str) -> Any:
    home = importlib.import_module(MODULE)
    return home.MultiScaleDeformableAttention(12, 3, 2, 2, batch_first=True).to(device, torch.float64)


def test_it_cannot_be_imported_without_an_extension() -> None:
    with pytest.raises(ImportError, match="_C"):
        importlib.import_module(MODULE)


def test_what_calls_the_extension_runs_unchanged(device: str) -> None:
    groundingdino.install()
    assert importlib.util.find_spec(EXTENSION) is not None
    problem = reference.problem(1, device=device)
    levels = (problem.shapes_tensor, problem.level_start_index)
    function = importlib.import_module(MODULE).MultiScaleDeformableAttnFunction
    assert issubclass(function, torch.autograd.Function)
    found = function.apply(problem.value, *levels, problem.locations, problem.weights, 64)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


def test_uninstall_takes_it_away() -> None:
    groundingdino.install()
    groundingdino.uninstall()
    assert EXTENSION not in sys.modules


@pytest.fixture
def real_extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    extension = ModuleType(EXTENSION)
    extension.__file__ = "/somewhere/_C.so"
    extension.ms_deform_attn_forward = lambda *_: "real forward"  # type: ignore[attr-defined]
    extension.ms_deform_attn_backward = lambda *_: "real backward"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, EXTENSION, extension)
    return extension


def test_install_leaves_an_imported_extension_alone(real_extension: ModuleType) -> None:
    with pytest.raises(fourtap.UnsupportedError, match=r"^groundingdino._C: expected .* found it .* /somewhere/_C.so"):
        groundingdino.install()
    groundingdino.install(force=True)
    assert real_extension.ms_deform_attn_forward is groundingdino.ms_deform_attn_forward
    assert real_extension.ms_deform_attn_backward is groundingdino.ms_deform_attn_backward
    groundingdino.uninstall()
    assert real_extension.ms_deform_attn_forward() == "real forward"
    assert real_extension.ms_deform_attn_backward() == "real backward"


def test_patch_does_without_the_real_extension(real_extension: ModuleType) -> None:
    names = groundingdino.patch()
    assert names == []
    home = importlib.import_module(MODULE)
    assert home.MultiScaleDeformableAttnFunction is groundingdino.MultiScaleDeformableAttnFunction
    assert home.multi_scale_deformable_attn_pytorch is groundingdino.multi_scale_deformable_attn_pytorch
    assert groundingdino.patch() == [
        f"{MODULE}.MultiScaleDeformableAttention.forward",
        f"{MODULE}.MultiScaleDeformableAttnFunction",
        f"{MODULE}.multi_scale_deformable_attn_pytorch",
    ]
    assert real_extension.ms_deform_attn_forward() == "real forward"


def test_unpatch_puts_everything_back() -> None:
    groundingdino.install()
    home = importlib.import_module(MODULE)
    before = dict(vars(home)), home.MultiScaleDeformableAttention.forward
    groundingdino.patch()
    groundingdino.unpatch()
    assert (dict(vars(home)), home.MultiScaleDeformableAttention.forward) == before
    assert EXTENSION not in sys.modules


def test_unpatch_gives_modules_the_real_extension(tmp_path: Path) -> None:
    # It is built, but nobody has imported it.
    file = tmp_path / "groundingdino" / "_C.py"
    file.touch()
    groundingdino.patch()
    home = importlib.import_module(MODULE)
    assert home._C.ms_deform_attn_forward is groundingdino.ms_deform_attn_forward
    groundingdino.unpatch()
    assert home._C is sys.modules[EXTENSION] and home._C.__file__ == str(file)


def test_value_is_the_query_unless_given(device: str) -> None:
    groundingdino.patch()
    module = module_on(device)
    random = {"device": device, "dtype": torch.float64}
    query, position = torch.randn(2, 66, 12, **random), torch.randn(2, 66, 12, **random)
    levels = {"spatial_shapes": torch.tensor([(6, 9), (3, 4)]), "level_start_index": torch.tensor([0, 54])}
    levels = {name: tensor.to(device) for name, tensor in levels.items()}
    points = torch.rand(2, 66, 2, 2, **random)
    found = module(query, query_pos=position, reference_points=points, **levels, whatever_else=True)
    # The position is added to the query alone.
    explicit = module(query + position, value=query, reference_points=points, **levels)
    assert torch.equal(found, explicit)
    by_position = module(query + position, None, query, None, None, points, *levels.values())
    assert torch.equal(by_position, explicit)


@pytest.mark.parametrize("missing", ["reference_points", "spatial_shapes"])
def test_what_is_missing_is_named(missing: str, device: str) -> None:
    groundingdino.patch()
    module = module_on(device)
    query = torch.randn(2, 66, 12, device=device, dtype=torch.float64)
    named: dict[str, Any] = {"reference_points": torch.rand(2, 66, 2, 2), "spatial_shapes": [(6, 9), (3, 4)]}
    named[missing] = None
    with pytest.raises(fourtap.InputError, match=rf"^{missing}: expected a tensor, found None$"):
        module(query, **named)
