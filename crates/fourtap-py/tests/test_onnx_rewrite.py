"""Files that PyTorch exported without us, rewritten: stock models of transformers, and some that are something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_models
import torch
from onnx_sessions import Outputs, Session, assert_close, assert_same_queries, onnx, ours
from torch import Tensor, nn
from torch.nn import functional

import fourtap
import fourtap.onnx
from fourtap.onnx.__main__ import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@torch.no_grad()
def export_stock(name: str, file: Path, *, dynamo: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    model, inputs = test_models.build(name, "cpu")
    wrapped = Outputs(model, list(inputs)).eval()
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17}
    if dynamo:
        onnxscript = pytest.importorskip("onnxscript")
        from fourtap.onnx.missing import missing

        # Grounding DINO does not export without these, which have nothing to do with attention.
        options = {"dynamo": True, "verbose": False, "custom_translation_table": missing(onnxscript.opset18)}
    torch.onnx.export(wrapped, tuple(inputs.values()), file, input_names=list(inputs), **options)
    return wrapped, inputs


def stock(name: str, exporter: str, *, quick: bool = False) -> Any:
    return pytest.param(name, exporter == "dynamo", marks=[] if quick else pytest.mark.slow, id=f"{name}-{exporter}")


MODELS = [
    stock("rt_detr", "tracing", quick=True),
    stock("deformable_detr", "tracing", quick=True),
    stock("d_fine", "tracing", quick=True),
    stock("rt_detr_v2", "tracing"),
    stock("deimv2", "tracing"),
    stock("mask2former", "tracing"),
    stock("lw_detr", "tracing"),
    stock("omdet_turbo", "tracing"),
    stock("rt_detr", "dynamo"),
    stock("deformable_detr", "dynamo"),
    stock("grounding_dino", "dynamo"),
    stock("rf_detr", "dynamo"),
]


@pytest.mark.parametrize(("name", "dynamo"), MODELS)
def test_stock_exports(name: str, dynamo: bool, tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model, inputs = export_stock(name, before, dynamo=dynamo)
    calls = test_models.CASES[name].calls
    result = fourtap.onnx.rewrite(before, after)
    assert result.replaced == calls
    assert result.error is not None and result.error < 1e-5
    assert all(node.op_type != "GridSample" for node in onnx.load(after).graph.node)
    with torch.no_grad():
        expected = model(*inputs.values())
    for with_library in (True, False):
        session = Session(after, with_library=with_library)
        found = session.named(**inputs)
        assert ours(session) == (calls if with_library else 0)
        compare = assert_same_queries if name == "rt_detr_v2" else assert_close
        compare(found, expected)


@pytest.mark.parametrize(("name", "dynamo"), [stock("rt_detr", "tracing", quick=True), stock("rf_detr", "dynamo")])
def test_nodes_for_tensorrt(name: str, dynamo: bool, tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model, inputs = export_stock(name, before, dynamo=dynamo)
    result = fourtap.onnx.rewrite(before, after, to="tensorrt")
    assert result.replaced == test_models.CASES[name].calls
    kinds = {(node.domain, node.op_type) for node in onnx.load(after).graph.node}
    assert ("TRT", "MultiscaleDeformableAttnPlugin_TRT") in kinds and ("", "GridSample") not in kinds
    session = Session(after, with_library=True)
    with torch.no_grad():
        assert_close(session.named(**inputs), model(*inputs.values()))


def test_tensorrt_has_no_node_for_unlike_points(tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_stock("d_fine", before, dynamo=False)
    with pytest.raises(fourtap.onnx.PatternError, match=r"as TensorRT's node wants, found \[3, 6, 3\]"):
        fourtap.onnx.rewrite(before, after, to="tensorrt")
    assert not after.exists()


class Pyramid(nn.Module):
    """As transformers composes it, over maps whose sizes are read off them."""

    def __init__(self, order: tuple[int, int] = (0, 1), **options: Any) -> None:
        super().__init__()
        self.order = order
        self.options = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False, **options}

    def forward(self, fine: Tensor, coarse: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        value = torch.cat([map.flatten(2) for map in (fine, coarse)], 2).transpose(1, 2).unflatten(-1, (2, -1))
        images, _, heads, channels = value.shape
        queries = locations.shape[1]
        sizes = [map.shape[-2:] for map in (fine, coarse)]
        parts = value.split([height * width for height, width in sizes], 1)
        grids = 2 * locations - 1
        samples = []
        for level in self.order:
            image = parts[level].flatten(2).transpose(1, 2).reshape(images * heads, channels, *sizes[level])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            samples.append(functional.grid_sample(image, grid, **self.options))
        shares = weights.transpose(1, 2).reshape(images * heads, 1, queries, -1)
        found = (torch.stack(samples, -2).flatten(-2) * shares).sum(-1).view(images, heads * channels, queries)
        return found.transpose(1, 2).contiguous()


def pyramid_operands(height: int = 6, width: int = 8, queries: int = 5) -> tuple[Tensor, ...]:
    fine, coarse = torch.randn(2, 8, height, width), torch.randn(2, 8, height // 2, width // 2)
    return fine, coarse, torch.rand(2, queries, 2, 2, 3, 2), torch.rand(2, queries, 2, 2, 3)


def export_pyramid(model: nn.Module, file: Path, operands: tuple[Tensor, ...], *, sizes_change: bool = False) -> None:
    names = ["fine", "coarse", "locations", "weights"]
    axes = {"fine": {2: "h", 3: "w"}, "coarse": {2: "h2", 3: "w2"}, "locations": {1: "q"}, "weights": {1: "q"}}
    torch.onnx.export(
        model.eval(),
        operands,
        file,
        dynamo=False,
        opset_version=17,
        input_names=names,
        dynamic_axes=axes if sizes_change else {},
    )


def test_sizes_may_change(tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model = Pyramid()
    export_pyramid(model, before, pyramid_operands(), sizes_change=True)
    result = fourtap.onnx.rewrite(before, after, sizes={"h": 6, "w": 8, "h2": 3, "w2": 4, "q": 5})
    assert result.replaced == 1
    for with_library in (True, False):
        session = Session(after, with_library=with_library)
        for sizes in ((6, 8, 5), (10, 14, 7)):
            operands = pyramid_operands(*sizes)
            assert_close(session.run(*operands), [model(*operands)], 1e-5)
        assert bool(ours(session)) == with_library


@pytest.mark.slow
@torch.no_grad()
def test_image_sizes_of_a_model_may_change(tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model, inputs = test_models.build("rt_detr", "cpu")
    wrapped = Outputs(model, list(inputs)).eval()
    axes = {"pixel_values": {2: "height", 3: "width"}}
    torch.onnx.export(
        wrapped,
        tuple(inputs.values()),
        before,
        dynamo=False,
        opset_version=17,
        input_names=list(inputs),
        dynamic_axes=axes,
    )
    fourtap.onnx.rewrite(before, after, sizes={"height": 96, "width": 128})
    session, original = Session(after, with_library=True), Session(before, with_library=False)
    for size in ((96, 128), (128, 160)):
        image = torch.randn(2, 3, *size)
        assert_close(session.run(image), original.run(image))
    assert ours(session) == 2 * test_models.CASES["rt_detr"].calls


def test_a_model_without_the_pattern_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    class Sampler(nn.Module):
        def forward(self, image: Tensor, grid: Tensor) -> Tensor:
            return functional.grid_sample(image, grid, align_corners=False)

    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    for model, operands, words in (
        (Plain(), (torch.rand(2, 3),), "expected deformable attention made of GridSample nodes, found no GridSample"),
        (Sampler(), (torch.rand(1, 2, 4, 4), torch.rand(1, 3, 3, 2)), "found 1 GridSample nodes of another kind"),
        (Pyramid(align_corners=True), pyramid_operands(), "expected align_corners = 0, found 1"),
        (Pyramid(padding_mode="border"), pyramid_operands(), "expected padding with zeros"),
        (Pyramid(mode="nearest"), pyramid_operands(), "expected bilinear interpolation"),
    ):
        torch.onnx.export(model, operands, file, dynamo=False, opset_version=17)
        with pytest.raises(fourtap.onnx.PatternError, match=words):
            fourtap.onnx.rewrite(file, out)
        assert main(["rewrite", str(file), str(out)]) == 3
        assert words in capsys.readouterr().err
    assert not out.exists()


def test_what_only_looks_like_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Levels in another order than their pixels and points are in."""
    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    export_pyramid(Pyramid(order=(1, 0)), file, pyramid_operands())
    with pytest.raises(fourtap.onnx.VerificationError, match=r"call 0 of 1.*expected an error of at most 0\.0001"):
        fourtap.onnx.rewrite(file, out)
    assert main(["rewrite", str(file), str(out)]) == 4
    assert "expected an error of at most" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_line(tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_pyramid(Pyramid(), before, pyramid_operands())

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fourtap.onnx", "rewrite", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    done = run(str(before), str(after))
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    assert first == f"{after}: 1 x MSDeformAttn" and second.startswith("largest error of a node: ")
    assert third.startswith("output ")
    assert main(["rewrite", str(before), str(after), "--no-verify", "--no-functions"]) == 0
    assert not onnx.load(after).functions
    for arguments, code, words in (
        ((str(tmp_path / "none.onnx"), str(after)), 1, "expected a file that can be read"),
        ((str(before), str(after), "--size", "h"), 1, "--size: expected NAME=NUMBER or NAME=NUMBER,NUMBER, found 'h'"),
        ((str(before), str(after), "--inputs", str(before)), 1, "expected arrays as numpy.savez writes them"),
        ((str(before), str(after), "--to", "nowhere"), 2, "invalid choice: 'nowhere'"),
    ):
        failed = run(*arguments)
        assert failed.returncode == code and words in failed.stderr, failed.stderr


def test_targets_that_cannot_be_written_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, folder = tmp_path / "before.onnx", tmp_path / "folder"
    export_pyramid(Pyramid(), before, pyramid_operands())
    folder.mkdir()
    for target, found in (
        (tmp_path / "none" / "after.onnx", "No such file or directory"),
        (before / "after.onnx", "Not a directory"),
        (folder, "Is a directory"),
        ("/dev/full", "No space left on device"),
    ):
        with pytest.raises(fourtap.InputError) as caught:
            fourtap.onnx.rewrite(before, target, verify=False)
        assert str(caught.value) == f"{target}: expected a path that can be written, found: {found}"
        assert main(["rewrite", str(before), str(target), "--no-verify"]) == 1
        assert f"error: {target}: expected a path that can be written" in capsys.readouterr().err


def test_the_source_is_only_replaced_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, link = tmp_path / "before.onnx", tmp_path / "link.onnx"
    export_pyramid(Pyramid(), before, pyramid_operands())
    link.symlink_to(before)
    content = before.read_bytes()
    for target in (before, link):
        with pytest.raises(fourtap.InputError, match=r"expected another file than the source, found the same"):
            fourtap.onnx.rewrite(before, target)
        assert main(["rewrite", str(before), str(target)]) == 1
        assert "--overwrite-source" in capsys.readouterr().err
    assert before.read_bytes() == content
    assert main(["rewrite", str(before), str(before), "--overwrite-source"]) == 0
    assert before.read_bytes() != content


def test_files_that_are_no_models_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.onnx"
    file.write_text("no model")
    with pytest.raises(fourtap.InputError, match="expected a model of ONNX, found"):
        fourtap.onnx.rewrite(file)
    with pytest.raises(fourtap.InputError, match="to: expected one of fourtap, tensorrt, portable, found 'other'"):
        fourtap.onnx.rewrite(file, to="other")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(fourtap.UnsupportedError, match=r"^onnx: expected the package to be installed.*\[onnx\]"):
        fourtap.onnx.rewrite(file)


def test_broken_models_end_in_onnx_runtime_s_error_with_our_words(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    export_pyramid(Pyramid(), file, pyramid_operands(), sizes_change=True)
    fourtap.onnx.rewrite(file, file, sizes={"h": 6, "w": 8, "h2": 3, "w2": 4}, overwrite_source=True)
    session = Session(file, with_library=True)
    fine, coarse, locations, weights = pyramid_operands()
    with pytest.raises(Exception, match="fourtap: attention_weights: expected shape"):
        session.run(fine, coarse, locations, weights[:, 1:].contiguous())
