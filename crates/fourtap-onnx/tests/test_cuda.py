"""Sessions on a CUDA device give what sessions on the CPU give. Skipped where there is no CUDA."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx.helper as helper
import onnxruntime
import pytest
from conftest import LEVELS, MSDA, Node, msda_feed, projections_feed, session
from onnx import TensorProto

CUDA = "CUDAExecutionProvider"
# A node that has no kernel there is an error, and not computed on the CPU.
ONLY_THERE = {"session.disable_cpu_ep_fallback": "1"}
NODES = [
    ("fourtap", "MSDeformAttn"),
    ("mmdeploy", "MMCVMultiScaleDeformableAttention"),
    ("mmcv", "MMCVMultiScaleDeformableAttention"),
    ("TRT", "MultiscaleDeformableAttnPlugin_TRT"),
    ("nvidia", "MultiscaleDeformableAttnPlugin_TRT"),
    ("", "MultiscaleDeformableAttnPlugin_TRT"),
]
# What results are off by, at most, that are of this size.
TOLERANCES = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12}


@pytest.fixture(autouse=True)
def device(library: Path) -> None:
    if CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    try:
        one = session(library, [helper.make_node("Neg", ["x"], ["y"])], values[:1], values[1:], provider=CUDA)
    except Exception as error:
        pytest.skip(f"ONNX Runtime does not use a CUDA device: {error}")
    if CUDA not in one.get_providers():
        pytest.skip("ONNX Runtime found no CUDA device")


def compare(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    tolerance = TOLERANCES[str(expected.dtype)]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def on_both(library: Path, name: str, domain: str, feed: dict[str, np.ndarray], **attributes) -> None:
    found = Node(library, name, domain, feed, provider=CUDA, config=ONLY_THERE, **attributes).run()
    compare(found, Node(library, name, domain, feed, **attributes).run())


@pytest.mark.parametrize(("domain", "name"), NODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_nodes(library: Path, domain: str, name: str, dtype: type) -> None:
    feed = msda_feed(q=300, m=4, d=32)
    feed["value"] = feed["value"].astype(dtype)
    on_both(library, name, domain, feed)


def test_doubles(library: Path) -> None:
    feed = {name: one.astype(np.float64) if one.ndim > 2 else one for name, one in msda_feed().items()}
    on_both(library, "MSDeformAttn", "fourtap", feed)


def test_bfloat16(library: Path) -> None:
    feed = msda_feed(q=300, m=4, d=32)
    # Numbers that bfloat16 holds.
    feed["value"] = np.round(feed["value"] * 16).clip(-127, 127) / 16
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if feed[name].ndim > 2 else TensorProto.INT64, None)
        for name in MSDA
    ]
    nodes = [
        helper.make_node("Cast", ["value"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("MSDeformAttn", ["narrow", *MSDA[1:]], ["narrow_out"], domain="fourtap"),
        helper.make_node("Cast", ["narrow_out"], ["out"], to=TensorProto.FLOAT),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    found, expected = (
        session(library, nodes, inputs, [out], "fourtap", provider=provider).run(None, feed)[0]
        for provider in [CUDA, "CPUExecutionProvider"]
    )
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("integers", [np.int32, np.int64])
def test_starts_may_be_left_out_and_levels_be_narrow(library: Path, integers: type) -> None:
    feed = msda_feed(q=300, m=4, d=32)
    del feed["level_start_index"]
    feed["spatial_shapes"] = feed["spatial_shapes"].astype(integers)
    on_both(library, "MSDeformAttn", "fourtap", feed)


@pytest.mark.parametrize("coordinates", [2, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_from_projections(library: Path, coordinates: int, dtype: type) -> None:
    feed = projections_feed(q=300, m=4, d=32, coordinates=coordinates)
    for name in ["value", "sampling_offsets", "attention_logits"]:
        feed[name] = feed[name].astype(dtype)
    on_both(library, "MSDeformAttnFromProjections", "fourtap", feed)
    feed["value_mask"] = np.random.default_rng(1).random((2, 49)) < 0.2
    on_both(library, "MSDeformAttnFromProjections", "fourtap", feed, sampling="nearest")


def test_from_projections_with_uneven_points(library: Path) -> None:
    feed = projections_feed(q=300, m=4, d=32, points=9, coordinates=4)
    attributes = {"points_per_level": [4, 3, 2], "box_scale": [0.5, 0.25, 0.125]}
    on_both(library, "MSDeformAttnFromProjections", "fourtap", feed, **attributes)


def test_sizes_may_change_from_run_to_run(library: Path) -> None:
    on_cuda, on_cpu = (
        Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=provider)
        for provider in [CUDA, "CPUExecutionProvider"]
    )
    for seed, sizes in enumerate(
        [{"n": 1, "q": 30}, {"m": 8, "d": 5}, {"p": 1}, {"levels": LEVELS[:1] * 30}, {"q": 3000, "d": 32}, {"q": 0}, {}]
    ):
        feed = msda_feed(seed, **sizes)
        compare(on_cuda.run(**feed), on_cpu.run(**feed))


def test_between_other_nodes_of_the_device(library: Path) -> None:
    """In the order of the stream: it reads what was computed just before, and what follows reads its result."""
    feed = msda_feed(q=3000, m=8, d=32, levels=np.array([[100, 160], [50, 80]]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if feed[name].ndim > 2 else TensorProto.INT64, None)
        for name in MSDA
    ]
    nodes = [
        helper.make_node("Tanh", ["value"], ["bent"]),
        helper.make_node("Mul", ["bent", "bent"], ["squared"]),
        helper.make_node("Sigmoid", ["attention_weights"], ["weights"]),
        helper.make_node("MSDeformAttn", ["squared", *MSDA[1:4], "weights"], ["sampled"], domain="fourtap"),
        helper.make_node("Sqrt", ["sampled"], ["out"]),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    on_cuda, on_cpu = (
        session(library, nodes, inputs, [out], "fourtap", provider=provider)
        for provider in [CUDA, "CPUExecutionProvider"]
    )
    for scale in (1, 2, 3):
        given = {**feed, "value": feed["value"] * np.float32(scale)}
        np.testing.assert_allclose(on_cuda.run(None, given)[0], on_cpu.run(None, given)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"enable_cuda_graph": "1"}])
def test_tensors_on_the_device(library: Path, options: dict[str, str]) -> None:
    """Bound to the session, so that nothing is copied; with CUDA graphs the third run is one of a graph."""
    feed = projections_feed(q=300, m=4, d=32)
    # Levels are part of the model: a graph has no inputs in host memory.
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in feed if feed[name].ndim > 2]
    names = ["value", "sizes", "", "reference_points", "sampling_offsets", "attention_logits"]
    nodes = [
        helper.make_node("Constant", [], ["sizes"], value=helper.make_tensor("", TensorProto.INT64, [3, 2], LEVELS)),
        helper.make_node("MSDeformAttnFromProjections", names, ["out"], domain="fourtap"),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    there = session(library, nodes, inputs, [out], "fourtap", provider=(CUDA, options))
    here = session(library, nodes, inputs, [out], "fourtap")
    places = {one.name: onnxruntime.OrtValue.ortvalue_from_numpy(feed[one.name], "cuda", 0) for one in inputs}
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 300, 128], np.float32, "cuda", 0)
    binding = there.io_binding()
    for name, place in places.items():
        binding.bind_ortvalue_input(name, place)
    binding.bind_ortvalue_output("out", result)
    for seed in range(4):
        given = {name: projections_feed(seed, q=300, m=4, d=32)[name] for name in places}
        for name, place in places.items():
            place.update_inplace(given[name])
        there.run_with_iobinding(binding)
        compare(result.numpy(), here.run(None, given)[0])


def test_threads_share_a_session(library: Path) -> None:
    on_cpu, on_cuda = (
        Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=provider)
        for provider in ["CPUExecutionProvider", CUDA]
    )

    def work(seed: int) -> None:
        for round in range(20):
            feed = msda_feed(100 * seed + round, q=1 + 50 * seed)
            compare(on_cuda.run(**feed), on_cpu.run(**feed))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_errors_have_our_words(library: Path) -> None:
    node = Node(library, "MSDeformAttn", "fourtap", msda_feed(), provider=CUDA)
    expected = node.run()
    for tensor, spoiled, words in [
        ("level_start_index", np.array([0]), "level_start_index: expected shape"),
        ("value", node.feed["value"][:, :40], "value: expected 49 pixels"),
        ("attention_weights", node.feed["attention_weights"][..., :3], "attention_weights: expected shape"),
    ]:
        with pytest.raises(Exception, match=f"fourtap: {words}"):
            node.run(**{tensor: np.ascontiguousarray(spoiled)})
        # The session goes on working.
        np.testing.assert_array_equal(node.run(), expected)


def test_attributes_are_checked_when_a_model_is_loaded(library: Path) -> None:
    feed = projections_feed()
    with pytest.raises(Exception, match='fourtap: sampling: expected "bilinear" or "nearest", found "cubic"'):
        Node(library, "MSDeformAttnFromProjections", "fourtap", feed, provider=CUDA, sampling="cubic")
