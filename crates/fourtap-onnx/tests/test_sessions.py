"""Sessions of ONNX Runtime with our nodes give, bit for bit, what the library gives."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx.helper as helper
import pytest
from conftest import LEVELS, MSDA, STARTS, Node, msda_feed, projections_feed, session
from onnx import TensorProto

import fourtap

MERGED = [("mmdeploy", "MMCVMultiScaleDeformableAttention"), ("mmcv", "MMCVMultiScaleDeformableAttention")]
OURS = [("fourtap", "MSDeformAttn")]
APART = [(domain, "MultiscaleDeformableAttnPlugin_TRT") for domain in ["TRT", "nvidia", ""]]


def expected(feed: dict[str, np.ndarray]) -> np.ndarray:
    return fourtap.ms_deform_attn(
        feed["value"],
        feed["spatial_shapes"].astype(np.int64),
        feed["sampling_locations"],
        feed["attention_weights"],
        level_start_index=feed["level_start_index"].astype(np.int64),
    )


@pytest.mark.parametrize(("domain", "name"), MERGED + OURS + APART)
def test_every_node_gives_the_library_s_result(library: Path, domain: str, name: str) -> None:
    feed = msda_feed()
    # What exports of mmcv say besides, and is of no consequence.
    found = Node(library, name, domain, feed, im2col_step=64).run()
    whole = expected(feed)
    shape = (2, 9, 2, 8) if (domain, name) in APART else (2, 9, 16)
    assert found.shape == shape
    np.testing.assert_array_equal(found, whole.reshape(shape))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("coordinates", ["as value", np.float32])
@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_dtypes(library: Path, dtype: type, coordinates: object, integers: type) -> None:
    of_coordinates = dtype if coordinates == "as value" else np.float32
    feed = msda_feed()
    feed["value"] = feed["value"].astype(dtype)
    for name in ["sampling_locations", "attention_weights"]:
        feed[name] = feed[name].astype(of_coordinates)
    for name in ["spatial_shapes", "level_start_index"]:
        feed[name] = feed[name].astype(integers)
    found = Node(library, "MSDeformAttn", "fourtap", feed).run()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected(feed))


def test_bfloat16(library: Path) -> None:
    feed = msda_feed()
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in MSDA if feed[name].ndim > 2]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in MSDA if feed[name].ndim <= 2]
    nodes = [
        helper.make_node("Cast", ["value"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("MSDeformAttn", ["narrow", *MSDA[1:]], ["narrow_out"], domain="fourtap"),
        helper.make_node("Cast", ["narrow_out"], ["out"], to=TensorProto.FLOAT),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    # Numbers that bfloat16 holds: then the result is off only by its own rounding.
    feed["value"] = np.round(feed["value"] * 16).clip(-127, 127) / 16
    (found,) = session(library, nodes, inputs, [out], "fourtap").run(None, feed)
    np.testing.assert_allclose(found, expected(feed), rtol=2**-8, atol=1e-6)


def test_level_starts_may_be_left_out_of_our_node(library: Path) -> None:
    feed = msda_feed()
    whole = expected(feed)
    del feed["level_start_index"]
    np.testing.assert_array_equal(Node(library, "MSDeformAttn", "fourtap", feed).run(), whole)


@pytest.mark.parametrize("sampling", ["bilinear", "nearest"])
def test_from_projections(library: Path, sampling: str) -> None:
    feed = projections_feed()
    feed["value_mask"] = np.random.default_rng(1).random((2, 49)) < 0.2
    found = Node(library, "MSDeformAttnFromProjections", "fourtap", feed, sampling=sampling).run()
    whole = fourtap.ms_deform_attn_from_projections(**feed, sampling=sampling)
    np.testing.assert_array_equal(found, whole)


def test_from_projections_with_boxes_and_uneven_points(library: Path) -> None:
    feed = projections_feed(points=9, coordinates=4)
    attributes = {"points_per_level": [4, 3, 2], "box_scale": [0.5, 0.25, 0.125]}
    found = Node(library, "MSDeformAttnFromProjections", "fourtap", feed, **attributes).run()
    np.testing.assert_array_equal(found, fourtap.ms_deform_attn_from_projections(**feed, **attributes))
    one = Node(library, "MSDeformAttnFromProjections", "fourtap", projections_feed(coordinates=4), box_scale=[0.25])
    whole = fourtap.ms_deform_attn_from_projections(**projections_feed(coordinates=4), box_scale=0.25)
    np.testing.assert_array_equal(one.run(), whole)


def test_sizes_may_change_from_run_to_run(library: Path) -> None:
    node = Node(library, "MSDeformAttn", "fourtap", msda_feed())
    for seed, sizes in enumerate(
        [{"n": 1, "q": 30}, {"m": 8, "d": 5}, {"p": 1}, {"levels": LEVELS[:1] * 3}, {"q": 0}, {}]
    ):
        feed = msda_feed(seed, **sizes)
        np.testing.assert_array_equal(node.run(**feed), expected(feed))


def test_threads_share_a_session_and_have_their_own(library: Path) -> None:
    shared = Node(library, "MSDeformAttn", "fourtap", msda_feed())

    def work(seed: int) -> None:
        own = Node(library, "MMCVMultiScaleDeformableAttention", "mmdeploy", msda_feed())
        for round in range(20):
            feed = msda_feed(100 * seed + round, q=1 + 7 * seed)
            for node in (shared, own):
                np.testing.assert_array_equal(node.run(**feed), expected(feed))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_other_nodes_of_the_domains_that_we_add_to_still_work(library: Path) -> None:
    values = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("QuickGelu", ["positive"], ["gelu"], domain="com.microsoft", alpha=1.0),
        helper.make_node("Softmax", ["gelu"], ["out"], axis=-1),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    x = np.array([[-1, 0, 1], [2, 3, 4]], np.float32)
    (found,) = session(library, nodes, [values], [out], "com.microsoft").run(None, {"x": x})
    gelu = np.maximum(x, 0) / (1 + np.exp(-np.maximum(x, 0)))
    np.testing.assert_allclose(found, np.exp(gelu) / np.exp(gelu).sum(-1, keepdims=True), rtol=1e-5)


def test_the_optimiser_s_own_nodes_work_in_models_that_do_not_import_their_domain(library: Path) -> None:
    """Transpose and MatMul become com.microsoft's FusedMatMul."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy"]
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["turned", "y"], ["out"]),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [3, 3])
    x, y = np.arange(9, dtype=np.float32).reshape(3, 3), np.eye(3, dtype=np.float32)
    (found,) = session(library, nodes, values, [out]).run(None, {"x": x, "y": y})
    np.testing.assert_array_equal(found, x.T)


def test_the_example_prints_what_it_says() -> None:
    """With the library that is part of the Python package."""
    example = Path(__file__).parents[1] / "examples/run.py"
    run = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[[[15.]]]\n", "")


def test_the_page_in_the_documentation_has_the_example() -> None:
    root = Path(__file__).parents[3]
    example = (root / "crates/fourtap-onnx/examples/run.py").read_text()
    assert f"```python\n{example}```" in (root / "docs/onnx.md").read_text()


def test_starts_are_read(library: Path) -> None:
    """Levels in another order on axis S, as the starts say."""
    feed = msda_feed()
    assert (feed["level_start_index"] == STARTS).all()
    turned = np.roll(feed["value"], 2, axis=1)
    node = Node(library, "MSDeformAttn", "fourtap", feed)
    found = node.run(value=turned, level_start_index=np.array([2, 37, 0]))
    np.testing.assert_array_equal(found, expected(feed))


@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_sizes_and_starts_need_not_be_aligned(library: Path, integers: type) -> None:
    """ONNX Runtime hands over the memory of arrays as it is."""
    feed = msda_feed()
    for name in ["spatial_shapes", "level_start_index"]:
        aligned = feed[name].astype(integers)
        memory = np.zeros(aligned.nbytes + 1, np.uint8)
        feed[name] = memory[1:].view(integers).reshape(aligned.shape)
        feed[name][...] = aligned
        assert not feed[name].flags.aligned
    np.testing.assert_array_equal(Node(library, "MSDeformAttn", "fourtap", feed).run(), expected(feed))
