"""Models and inputs that are wrong end in ONNX Runtime's error, with the library's words in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Node, msda_feed, projections_feed
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

WRONG = [
    ("value", lambda x: x[..., 0], "value: expected rank 4 [N, S, M, D], found rank 3"),
    ("value", lambda x: x[:, :40], "value: expected 49 pixels (axis S), the sum over spatial_shapes, found 40"),
    ("value", lambda x: x[..., :0], "value: expected at least 1 channel per head (axis D), found shape [2, 49, 2, 0]"),
    ("spatial_shapes", lambda x: x.T, "spatial_shapes: expected shape [L, 2], found [2, 3]"),
    (
        "spatial_shapes",
        lambda x: -x,
        "spatial_shapes[0]: expected height and width from 0 to 2147483647, found (-5, -7)",
    ),
    ("level_start_index", lambda x: x[:2], "level_start_index: expected shape [3], found [2]"),
    (
        "level_start_index",
        lambda x: x + 1,
        "level_start_index[2]: expected a start from 0 to 47, so that 2 pixels fit, found 48",
    ),
    (
        "level_start_index",
        lambda x: x * 0,
        "level_start_index[1]: expected 35 or more, after the last pixel of level 0, found 0",
    ),
    (
        "sampling_locations",
        lambda x: x[:1],
        "sampling_locations: expected shape [2, Q, 2, 3, P, 2], found [1, 9, 2, 3, 4, 2]",
    ),
    ("sampling_locations", lambda x: x.ravel(), "sampling_locations: expected rank 6 [N, Q, M, L, P, 2], found rank 1"),
    (
        "attention_weights",
        lambda x: x[..., :3],
        "attention_weights: expected shape [2, 9, 2, 3, 4], found [2, 9, 2, 3, 3]",
    ),
]


@pytest.mark.parametrize(
    "name", ["MSDeformAttn", "MMCVMultiScaleDeformableAttention", "MultiscaleDeformableAttnPlugin_TRT"]
)
@pytest.mark.parametrize(("tensor", "spoil", "words"), WRONG)
def test_shapes(library: Path, name: str, tensor: str, spoil, words: str) -> None:
    domain = {"MSDeformAttn": "fourtap", "MMCVMultiScaleDeformableAttention": "mmdeploy"}.get(name, "TRT")
    node = Node(library, name, domain, msda_feed())
    with pytest.raises(InvalidArgument) as error:
        node.run(**{tensor: np.ascontiguousarray(spoil(node.feed[tensor]))})
    assert f"fourtap: {words}" in str(error.value)
    # The session goes on working.
    assert np.isfinite(node.run()).all()


def test_element_types(library: Path) -> None:
    feed = msda_feed()
    for name, dtype, words in [
        ("spatial_shapes", np.float32, "spatial_shapes: expected element type int64 or int32, found float"),
        ("sampling_locations", np.float64, "sampling_locations: expected element type f32, found f64"),
        (
            "attention_weights",
            np.int32,
            "attention_weights: expected element type float, float16, bfloat16 or double, found int32",
        ),
    ]:
        wrong = {**feed, name: feed[name].astype(dtype)}
        with pytest.raises(InvalidArgument) as error:
            Node(library, "MSDeformAttn", "fourtap", wrong).run()
        assert f"fourtap: {words}" in str(error.value)


def test_value_of_integers_has_no_node(library: Path) -> None:
    feed = msda_feed()
    feed["value"] = feed["value"].astype(np.int32)
    with pytest.raises((Fail, InvalidGraph, NotImplemented)):
        Node(library, "MSDeformAttn", "fourtap", feed)


def test_inputs_that_are_missing(library: Path) -> None:
    feed = msda_feed()
    del feed["level_start_index"]
    with pytest.raises((Fail, InvalidGraph)):
        Node(library, "MMCVMultiScaleDeformableAttention", "mmdeploy", feed)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"sampling": "cubic"}, 'sampling: expected "bilinear" or "nearest", found "cubic"'),
        ({"sampling": 3}, "sampling: expected a string, found none, or another type"),
        ({"points_per_level": [4, -4, 4]}, "points_per_level: expected 0 or more, found -4"),
        ({"points_per_level": 4}, "points_per_level: expected a list of integers, found none, or another type"),
        ({"box_scale": [1, 2, 3]}, "box_scale: expected a list of floats, found none, or another type"),
        ({"box_scale": 0.5}, "box_scale: expected a list of floats, found none, or another type"),
    ],
)
def test_attributes_are_checked_when_a_model_is_loaded(library: Path, attributes: dict, words: str) -> None:
    with pytest.raises((Fail, InvalidArgument, RuntimeException)) as error:
        Node(library, "MSDeformAttnFromProjections", "fourtap", projections_feed(), **attributes)
    assert f"fourtap: {words}" in str(error.value)


def test_projections(library: Path) -> None:
    feed = projections_feed(points=11)
    with pytest.raises(InvalidArgument) as error:
        Node(library, "MSDeformAttnFromProjections", "fourtap", feed).run()
    words = "points_per_level: expected one number for each of 3 levels, found none, and 11 points"
    assert f"fourtap: {words}" in str(error.value)
    feed = projections_feed()
    feed["value_mask"] = np.zeros((2, 49), np.int32)
    with pytest.raises(InvalidArgument) as error:
        Node(library, "MSDeformAttnFromProjections", "fourtap", feed).run()
    assert "fourtap: value_mask: expected element type bool, found int32" in str(error.value)
