"""Runs a model and what was made of it on the same numbers, in ONNX Runtime, and compares.

Each node is compared with what it replaces, on the numbers that this gets in the original model: there nothing but
rounding differs. Outputs of whole models are compared, too, but not judged: where a model chooses its best queries, two
that score alike come in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fourtap.errors import InputError
from fourtap.onnx.errors import VerificationError
from fourtap.onnx.library import library_path
from fourtap.onnx.packages import require

__all__ = ["verify"]

_PURPOSE = "a comparison of models"
_TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-4}
# Enough for the strides of any backbone.
_IMAGE = 128
_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


def verify(
    original: Any,
    rewritten: Any,
    replacements: Sequence[Any],
    types: Mapping[str, int],
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
) -> tuple[float, dict[str, float]]:
    """The largest error of a node, and that of each output of the model; an error if a node is wrong."""
    onnx = require("onnx", _PURPOSE)
    runtime = require("onnxruntime", _PURPOSE)
    outputs = [info.name for info in original.graph.output]
    wanted = list(dict.fromkeys(name for one in replacements for name in [*_given(one), one.attention.out]))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in original.graph.initializer}
    watched = _copy(original)
    computed = [name for name in wanted if name not in constants and name not in outputs]
    of_inputs = {info.name for info in original.graph.input}
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed if name not in of_inputs)
    session = _load(runtime, watched, "the model as it was", repair=lambda model: _in_float(onnx, model, types))
    feed = _feed(session, inputs, sizes)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, _run(session, names, feed, "the model as it was"), strict=True)) | feed | constants
    worst = 0.0
    for at, one in enumerate(replacements):
        error, allowed = _error_of(onnx, runtime, rewritten, one, found)
        if not error <= allowed:
            raise VerificationError(
                f"call {at} of {len(replacements)}, {one.attention.out}: expected an error of at most {allowed:g}, "
                f"found {error:g}"
            )
        worst = max(worst, error)
    whole = _load(runtime, rewritten, "the model as rewritten")
    results = _run(whole, outputs, feed, "the model as rewritten")
    return worst, {name: _error(result, found[name]) for name, result in zip(outputs, results, strict=True)}


def _given(replacement: Any) -> list[str]:
    """The tensors of the model that the new nodes take."""
    made = {name for node in replacement.nodes for name in node.output}
    made.update(tensor.name for tensor in replacement.initializers)
    return list(dict.fromkeys(name for node in replacement.nodes for name in node.input if name and name not in made))


def _error_of(
    onnx: Any, runtime: Any, rewritten: Any, replacement: Any, found: Mapping[str, Any]
) -> tuple[float, float]:
    """How far the new nodes are from what they replace, and how far they may be."""
    helper = onnx.helper
    given = _given(replacement)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(found[name].dtype), None) for name in given
    ]
    expected = found[replacement.attention.out]
    out = onnx.ValueInfoProto(name=replacement.attention.out)
    graph = helper.make_graph(replacement.nodes, "part", infos, [out], replacement.initializers)
    part = helper.make_model(graph, opset_imports=rewritten.opset_import, ir_version=rewritten.ir_version)
    session = _load(runtime, part, "a node as rewritten")
    (result,) = _run(session, None, {name: found[name] for name in given}, "a node as rewritten")
    return _error(result, expected), _TOLERANCE.get(str(result.dtype), _TOLERANCE["float16"])


def _error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number; infinite where only one is a number."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    off = np.abs(found[finite] - expected[finite]).max()
    scale = np.abs(expected[finite]).max()
    return float(off / scale) if scale else float(off)


def _copy(model: Any) -> Any:
    copied = type(model)()
    copied.CopyFrom(model)
    return copied


def _load(runtime: Any, model: Any, which: str, *, repair: Any = None) -> Any:
    options = runtime.SessionOptions()
    # What goes wrong is raised; nothing is to be printed too.
    options.log_severity_level = 4
    # Another order of additions is no fault of a rewritten model.
    options.register_custom_ops_library(library_path())
    try:
        return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if repair is not None:
            return _load(runtime, repair(model), which)
        raise VerificationError(f"{which}: expected one that ONNX Runtime loads, found {error}") from error


def _run(session: Any, names: Sequence[str] | None, feed: Mapping[str, Any], which: str) -> list[Any]:
    try:
        return list(session.run(names, dict(feed)))
    except Exception as error:
        raise VerificationError(
            f"{which}: expected one that runs on these inputs (others can be given), found {error}"
        ) from error


def _feed(session: Any, inputs: Mapping[str, Any] | None, sizes: Mapping[str, int] | None) -> dict[str, Any]:
    """What is given, or random numbers; ones where only whole numbers do: words that exist, masks that let all pass."""
    source = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for given in session.get_inputs():
        if inputs is not None and given.name in inputs:
            feed[given.name] = np.asarray(inputs[given.name])
            continue
        shape = []
        for axis, size in enumerate(given.shape):
            if not isinstance(size, int):
                usual = _IMAGE if len(given.shape) == 4 and axis >= 2 else 1
                size = (sizes or {}).get(str(size), usual)
            shape.append(size)
        kind = _TYPES.get(given.type)
        if kind is None:
            raise InputError(f"{given.name}: expected to be given, as it is a {given.type}, found nothing")
        numbers = source.standard_normal(shape) if kind.startswith("float") else np.ones(shape)
        feed[given.name] = numbers.astype(kind)
    unknown = sorted(set(inputs or {}) - set(feed))
    if unknown:
        raise InputError(f"inputs: expected names of {sorted(feed)}, found {unknown}")
    return feed


def _in_float(onnx: Any, model: Any, types: Mapping[str, int]) -> Any:
    """The model with GridSamples of floats: some exports have images in float and places in double, or both in double,
    which ONNX Runtime does not take."""
    repaired = _copy(model)
    nodes: list[Any] = []
    for node in repaired.graph.node:
        if node.op_type == "GridSample":
            for at, name in enumerate(node.input):
                if types.get(name) != onnx.TensorProto.FLOAT:
                    cast = f"{name}_in_float"
                    if not any(cast in other.output for other in nodes[-2:]):
                        nodes.append(onnx.helper.make_node("Cast", [name], [cast], to=onnx.TensorProto.FLOAT))
                    node.input[at] = cast
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    repaired.graph.ClearField("node")
    repaired.graph.node.extend(copies)
    # They may be of another type now.
    repaired.graph.ClearField("value_info")
    return repaired
