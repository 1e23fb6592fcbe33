"""The portable form in ONNX Runtime without our library, against the formula in float64."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_nodes
import pytest
import test_models
import test_onnx_rewrite
import torch
from onnx_layers import HEADS, SIZES, Layer, LayerByPoints, export, operands
from onnx_nodes import NodeProblem, onnx
from onnx_sessions import assert_same_queries, onnxruntime

import fourtap
import fourtap.onnx
from fourtap.onnx.__main__ import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
# All operators that the form is made of, and no more.
PLAIN = set(
    "Abs Add Cast CastLike Concat CumSum Div Floor Gather Greater MatMul Max Min Mul Range Relu Reshape Shape Slice "
    "Softmax Sub Where".split()
)
NODES = {
    "ours": ("MSDeformAttn", "fourtap"),
    "mmcv's": ("MMCVMultiScaleDeformableAttention", "mmdeploy"),
    "TensorRT's": (onnx_nodes.TENSORRT, "TRT"),
}


def portable(model: Any) -> Any:
    result = fourtap.onnx.rewrite(model, to="portable", verify=False)
    assert (result.replaced, result.node) == (1, "portable form")
    assert {(node.domain, node.op_type) for node in result.model.graph.node} <= {("", name) for name in PLAIN}
    assert [one.domain for one in result.model.opset_import] == [""]
    return result.model


def run(model: Any, feed: dict[str, Any]) -> Any:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


@pytest.mark.parametrize("levels_change", [False, True])
@pytest.mark.parametrize("node", NODES)
def test_from_locations(node: str, levels_change: bool) -> None:
    for seed in range(8):
        problem = onnx_nodes.from_locations(seed, batch=1 + seed % 3, queries=40 * seed, points=1 + seed % 4)
        model = portable(problem.model(*NODES[node], levels_change=levels_change))
        found = run(model, problem.feed(model))
        assert found.shape == (1 + seed % 3, 40 * seed, *((3, 5) if node == "TensorRT's" else (15,)))
        if found.size:
            problem.assert_within_tolerance(found)


PROJECTIONS: dict[str, dict[str, Any]] = {
    "points": {},
    "boxes": {"coordinates": 4},
    "unlike levels": {"coordinates": 4, "points": [2, 1, 3, 4], "box_scale": [0.1, 0.2, 0.3, 0.4]},
    "one reference": {"coordinates": 4, "axes": (2, 400, 1)},
    "references that take turns": {"axes": (2, 400, 4, 2)},
    "references of one image": {"axes": (1, 400, 4)},
    "a mask": {"masked": True},
    "nearest": {"sampling": "nearest"},
}


@pytest.mark.parametrize("levels_change", [False, True])
@pytest.mark.parametrize("way", PROJECTIONS)
def test_from_projections(way: str, levels_change: bool) -> None:
    # In small problems the naive form is accurate by luck.
    for seed in range(4):
        problem = onnx_nodes.from_projections(seed, **{"queries": 400, **PROJECTIONS[way]})
        model = portable(problem.model(levels_change=levels_change))
        problem.assert_within_tolerance(run(model, problem.feed(model)))


@pytest.mark.parametrize("make", [onnx_nodes.from_locations, onnx_nodes.from_projections])
def test_float16_keeps_coordinates_in_float(make: Any) -> None:
    for seed in range(10):
        # Wide enough that coordinates in float16 would be off by a sixteenth of a pixel.
        problem: NodeProblem = make(seed, dtype=torch.float16, shapes=((9, 150), (3, 4)))
        model = portable(problem.model())
        found = run(model, problem.feed(model))
        problem.assert_within_tolerance(found)
        expected = problem.expected.numpy()
        assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("sampling", ["bilinear", "nearest"])
def test_another_size_in_another_run(sampling: str) -> None:
    model = None
    for seed, shapes in enumerate((((4, 6), (1, 3)), ((1, 1), (7, 5)), ((9, 2), (2, 1)))):
        problem = onnx_nodes.from_projections(seed, shapes=shapes, batch=seed + 1, queries=5 + seed, sampling=sampling)
        model = model or portable(problem.model(levels_change=True))
        problem.assert_within_tolerance(run(model, problem.feed(model)))


def test_samples_that_are_not_in_the_image_add_nothing() -> None:
    problem = onnx_nodes.from_locations(0, queries=12)
    locations = problem.inputs["sampling_locations"]
    for query, number in enumerate((np.nan, np.inf, -np.inf, 3e38, -3e38)):
        locations[:, query, ..., 0] = number
        locations[:, query + 5, ..., 1] = number
    # One pixel away from the centres at the border; and neighbours that are not numbers.
    sides = np.array(onnx_nodes.SHAPES, np.float32)[:, None, ::-1]
    locations[:, 10], locations[:, 11] = -0.5 / sides, 1 + 0.5 / sides
    model = portable(problem.model())
    found = run(model, problem.feed(model))
    assert (found == 0).all()
    expected = fourtap.ms_deform_attn(
        *(problem.inputs[name] for name in ("value", "spatial_shapes", "sampling_locations", "attention_weights"))
    )
    assert (expected == 0).all()


def test_pixels_of_other_levels_and_images_are_not_touched() -> None:
    for level in range(len(onnx_nodes.SHAPES)):
        problem = onnx_nodes.from_locations(level, queries=40)
        begin = problem.inputs["level_start_index"][level]
        end = begin + np.prod(onnx_nodes.SHAPES[level])
        for spoilt in (slice(None, begin), slice(end, None)):
            problem.inputs["value"][:, spoilt] = np.nan
        problem.inputs["value"][1] = np.nan
        one = problem.inputs
        one["spatial_shapes"], one["level_start_index"] = (
            one["spatial_shapes"][[level]],
            one["level_start_index"][[level]],
        )
        one["sampling_locations"], one["attention_weights"] = (
            one[name][:, :, :, [level]] for name in ("sampling_locations", "attention_weights")
        )
        model = portable(problem.model())
        found = run(model, problem.feed(model))
        assert np.isfinite(found[0]).all() and found[0].any() and np.isnan(found[1]).any()


def test_old_opsets_of_mmcv() -> None:
    problem = onnx_nodes.from_locations(0)
    for levels_change in (False, True):
        model = portable(problem.model(*NODES["mmcv's"], opset=11, levels_change=levels_change))
        problem.assert_within_tolerance(run(model, problem.feed(model)))
    with pytest.raises(fourtap.onnx.PatternError, match="opset: expected 11 or later, which has Range, found 10"):
        fourtap.onnx.rewrite(problem.model(*NODES["mmcv's"], opset=10), to="portable")


LAYERS = {"points": Layer(), "boxes": Layer(), "by points": LayerByPoints()}


@pytest.mark.parametrize("sizes_change", [True, False])
@pytest.mark.parametrize("way", LAYERS)
def test_files_that_hold_grid_sample(way: str, sizes_change: bool, tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    given = operands(coordinates=2 if way == "points" else 4)
    if way == "by points":
        given = (*given[:3], torch.randn(2, 5, HEADS * 4 * 2), torch.randn(2, 5, HEADS, 4))
    export(LAYERS[way], before, given, sizes_change=sizes_change)
    sizes = [f"--size={name}={first},{second}" for name, (first, second) in SIZES.items()] if sizes_change else []
    assert main(["rewrite", str(before), str(after), "--to", "portable", *sizes]) == 0
    kinds = Counter(node.op_type for node in onnx.load(after).graph.node)
    assert "GridSample" not in kinds and kinds["MatMul"] == 1
    # What was rewritten to nodes before can be rewritten again.
    for form in ("fourtap", "tensorrt"):
        if (way, form) != ("by points", "tensorrt"):
            ours = fourtap.onnx.rewrite(before, to=form, sizes=SIZES)
            again = fourtap.onnx.rewrite(ours.model, to="portable", sizes=SIZES)
            assert again.replaced == 1 and again.error is not None and again.error < 1e-6
            assert not again.model.functions


@pytest.mark.parametrize(
    "name",
    ["rt_detr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deformable_detr", "rt_detr_v2", "d_fine"))],
)
def test_whole_models(name: str, tmp_path: Path) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    model, inputs = test_onnx_rewrite.export_stock(name, before, dynamo=False)
    result = fourtap.onnx.rewrite(before, after, to="portable")
    assert result.replaced == test_models.CASES[name].calls and result.error is not None and result.error < 1e-5
    session = onnxruntime.InferenceSession(after, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {name: inputs[name].numpy() for name in names})
    with torch.no_grad():
        assert_same_queries([torch.from_numpy(one) for one in found], model(*inputs.values()))


@torch.no_grad()
def test_exports(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from test_onnx_export import ANY_SIZE, LARGE, SMALL, Encoder, encoder_operands

    file, layer = tmp_path / "model.onnx", Encoder()
    fourtap.onnx.export(layer, encoder_operands(SMALL), file, to="portable", dynamic_shapes=ANY_SIZE, verbose=False)
    model = onnx.load(file)
    assert all(node.domain == "" and node.op_type != "GridSample" for node in model.graph.node) and not model.functions
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for size, queries in ((SMALL, 5), (LARGE, 7)):
        given = encoder_operands(size, queries)
        names = [one.name for one in session.get_inputs()]
        (found,) = session.run(None, {name: one.numpy() for name, one in zip(names, given, strict=True)})
        torch.testing.assert_close(torch.from_numpy(found), layer(*given), atol=1e-5, rtol=1e-5)
    with pytest.raises(fourtap.InputError, match="to: expected fourtap or portable, found 'tensorrt'"):
        fourtap.onnx.export(layer, encoder_operands(SMALL), to="tensorrt")


def test_errors_name_the_node_and_a_form_that_would_do() -> None:
    problem = onnx_nodes.from_locations(0)
    model = problem.model()
    for name in ("sampling_locations", "attention_weights"):
        given = next(one for one in model.graph.input if one.name == name)
        given.type.tensor_type.shape.dim[4].dim_param = "p"
    words = r"^attention \(MSDeformAttn\): sampling_locations: expected known sizes from axis 3 on, found .*"
    with pytest.raises(fourtap.onnx.PatternError, match=words + 'to="fourtap" keeps a node of the library'):
        fourtap.onnx.rewrite(model, to="portable")
    words = 'found no GridSample; to="portable" takes the nodes MSDeformAttn of the model'
    with pytest.raises(fourtap.onnx.PatternError, match=words):
        fourtap.onnx.rewrite(model)
