"""mmcv and detrex whose compiled parts are missing, and BEVFormer, which calls mmcv's by itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
import stand_ins
import torch
from torch import nn

import fourtap
from fourtap.compat import mmcv

OPERATOR = "mmcv.ops.multi_scale_deform_attn"
DETREX = "detrex.layers.multi_scale_deform_attn"


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Path]:
    with stand_ins.installed(stand_ins.MMCV_LITE, tmp_path):
        yield tmp_path
        mmcv.unpatch()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[None]:
    with stand_ins.installed(stand_ins.MMCV, tmp_path):
        yield
        mmcv.unpatch()


@pytest.fixture
def detrex(tmp_path: Path) -> Iterator[None]:
    with stand_ins.installed(stand_ins.DETREX, tmp_path):
        yield
        mmcv.unpatch()


def test_mmcv_lite_can_be_imported_once_it_is_patched(lite: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"mmcv\._ext"):
        importlib.import_module(OPERATOR)
    names = mmcv.patch()
    assert {"mmcv._ext", f"{OPERATOR}.MultiScaleDeformableAttnFunction"} <= set(names)
    assert mmcv.patch() == names
    home = importlib.import_module(OPERATOR)
    assert home.multi_scale_deformable_attn_pytorch is mmcv.multi_scale_deformable_attn_pytorch
    mmcv.unpatch()
    assert "mmcv._ext" not in sys.modules
    assert home.multi_scale_deformable_attn_pytorch is not mmcv.multi_scale_deformable_attn_pytorch
    assert mmcv.patch() == names


def test_what_else_is_missing_says_so_when_it_is_called(lite: Path) -> None:
    mmcv.patch()
    others = importlib.import_module("mmcv.ops.nms")
    with pytest.raises(
        fourtap.UnsupportedError, match=r"^mmcv\._ext\.nms: expected mmcv with its compiled extension, "
    ):
        others.nms(1)
    assert others.get_compiler_version() == "n/a"
    # As mmengine asks whether there is one.
    spec = importlib.util.find_spec("mmcv._ext")
    assert spec is not None and spec.loader is None
    assert not hasattr(sys.modules["mmcv._ext"], "__path__")


def test_nothing_stays_behind_after_a_patch_that_failed(lite: Path) -> None:
    lite.joinpath("mmcv", "ops", "multi_scale_deform_attn.py").write_text("import no_such_package\n")
    with pytest.raises(fourtap.UnsupportedError, match=r"No module named 'no_such_package'"):
        mmcv.patch()
    assert "mmcv._ext" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match=r"mmcv\._ext"):
        importlib.import_module("mmcv.ops.nms")


def test_an_extension_that_is_there_keeps_the_rest(full: None) -> None:
    names = mmcv.patch()
    assert {"mmcv._ext.ms_deform_attn_forward", "mmcv._ext.ms_deform_attn_backward"} <= set(names)
    extension = importlib.import_module("mmcv._ext")
    others = importlib.import_module("mmcv.ops.nms")
    assert others.nms(1) == "theirs" and extension.ms_deform_attn_forward is not extension.nms
    mmcv.unpatch()
    with pytest.raises(AssertionError, match="the original was called"):
        extension.ms_deform_attn_forward()


@pytest.mark.parametrize("kind", ["lite", "full"])
@pytest.mark.parametrize("imported_before", [False, True])
def test_bevformer_computes_with_fourtap(
    kind: str, imported_before: bool, device: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(kind)
    if imported_before:
        if kind == "lite":
            pytest.skip("it cannot be imported without the extension")
        importlib.import_module("bevformer.multi_scale_deformable_attn_function")
    mmcv.patch()
    function = importlib.import_module("bevformer.multi_scale_deformable_attn_function")
    problem = reference.problem(1, device=device)
    found = function.MultiScaleDeformableAttnFunction_fp32.apply(
        problem.value, problem.shapes_tensor, problem.level_start_index, problem.locations, problem.weights, 64
    )
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


@pytest.mark.parametrize("imported_before", [False, True])
def test_detrex_need_not_be_compiled(detrex: None, imported_before: bool) -> None:
    if imported_before:
        user: Any = importlib.import_module("detrex.layers.transformer")
        with pytest.raises(ImportError, match=r"Cannot import 'detrex\._C'"):
            user.MultiScaleDeformableAttention(12, 3, 2, 2)
    names = mmcv.patch()
    assert {"detrex._C", "detrex.layers.multi_scale_deform_attn.MultiScaleDeformableAttnFunction"} <= set(names)
    user = importlib.import_module("detrex.layers.transformer")
    home: Any = importlib.import_module(DETREX)
    module = user.MultiScaleDeformableAttention(12, 3, 2, 2)
    assert isinstance(module, nn.Module)
    for name in ("MultiScaleDeformableAttnFunction", "multi_scale_deformable_attn_pytorch"):
        assert getattr(user, name) is getattr(home, name) is getattr(mmcv, name)
    assert mmcv.patch() == names
    # Models that were built meanwhile stay what they are.
    mmcv.unpatch()
    assert home.multi_scale_deformable_attn_pytorch is not mmcv.multi_scale_deformable_attn_pytorch
    mmcv.patch()
    assert isinstance(module, home.MultiScaleDeformableAttention)


def test_other_functions_of_detrex_say_that_they_are_missing(detrex: None) -> None:
    mmcv.patch()
    extension = sys.modules["detrex._C"]
    with pytest.raises(
        fourtap.UnsupportedError, match=r"^detrex\._C\.dcnv3_forward: expected detrex with its compiled"
    ):
        extension.dcnv3_forward(torch.zeros(1))
