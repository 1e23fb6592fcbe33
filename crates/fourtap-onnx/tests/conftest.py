"""Where the library is, and models of one node."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx.helper as helper
import onnxruntime
import pytest
from onnx import TensorProto

CPU = "CPUExecutionProvider"
# By its name, or with its options.
Provider = str | tuple[str, dict[str, str]]

TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}

MSDA = ["value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"]
PROJECTIONS = [
    "value",
    "spatial_shapes",
    "level_start_index",
    "reference_points",
    "sampling_offsets",
    "attention_logits",
    "value_mask",
]


@pytest.fixture(scope="session")
def library() -> Path:
    return Path(os.environ["FOURTAP_ONNX_LIBRARY"])


class Node:
    """A session of a model that is one node; inputs that are left out of the feed are left out of the model."""

    def __init__(
        self,
        library: Path,
        name: str,
        domain: str,
        feed: dict[str, np.ndarray],
        *,
        provider: Provider = CPU,
        config: dict[str, str] | None = None,
        threads: int = 0,
        **attributes,
    ) -> None:
        order = PROJECTIONS if "FromProjections" in name else MSDA
        inputs = [helper.make_tensor_value_info(one, TYPES[str(feed[one].dtype)], None) for one in order if one in feed]
        names = [one if one in feed else "" for one in order]
        node = helper.make_node(name, names, ["out"], domain=domain, **attributes)
        out = helper.make_tensor_value_info("out", TYPES[str(feed["value"].dtype)], None)
        self.session = session(
            library, [node], inputs, [out], domain, provider=provider, config=config, threads=threads
        )
        self.feed = feed

    def run(self, **changed: np.ndarray) -> np.ndarray:
        (out,) = self.session.run(None, {**self.feed, **changed})
        return out


def session(
    library: Path,
    nodes,
    inputs,
    outputs,
    *domains: str,
    provider: Provider = CPU,
    config: dict[str, str] | None = None,
    threads: int = 0,
    initializer=(),
    value_info=(),
) -> onnxruntime.InferenceSession:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializer), value_info=list(value_info))
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(one, 1) for one in domains if one]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    # What goes wrong is raised; nothing is to be printed too.
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    options.register_custom_ops_library(str(library))
    # Not on the CPU instead, where another provider fails.
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider], enable_fallback=False)


LEVELS = np.array([[5, 7], [3, 4], [1, 2]])
STARTS = np.array([0, 35, 47])


def msda_feed(seed: int = 0, n: int = 2, q: int = 9, m: int = 2, d: int = 8, p: int = 4, levels: np.ndarray = LEVELS):
    random = np.random.default_rng(seed)
    sizes = levels.prod(1)
    length = len(levels)
    return {
        "value": random.standard_normal((n, sizes.sum(), m, d)).astype(np.float32),
        "spatial_shapes": levels,
        "level_start_index": sizes.cumsum() - sizes,
        "sampling_locations": random.uniform(-0.2, 1.2, (n, q, m, length, p, 2)).astype(np.float32),
        "attention_weights": random.uniform(0, 1, (n, q, m, length, p)).astype(np.float32),
    }


def projections_feed(
    seed: int = 0, n: int = 2, q: int = 9, m: int = 2, d: int = 8, points: int = 12, coordinates: int = 2
):
    random = np.random.default_rng(seed)
    return {
        "value": random.standard_normal((n, 49, m, d)).astype(np.float32),
        "spatial_shapes": LEVELS,
        "reference_points": random.uniform(0, 1, (n, q, 3, coordinates)).astype(np.float32),
        "sampling_offsets": random.standard_normal((n, q, m, points, 2)).astype(np.float32),
        "attention_logits": random.standard_normal((n, q, m, points)).astype(np.float32),
    }
