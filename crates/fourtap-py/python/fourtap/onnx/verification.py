"""Runs a model and what was made of it on the same numbers, in ONNX Runtime, and compares.

Each node is compared with what it replaces, on the numbers that this gets in the original model: there nothing but
rounding differs. It is run by our library, and by the function that the file carries for runtimes without that. Outputs
of whole models are compared, too, but not judged: where a model chooses its best queries, two that score alike come in
another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fourtap.onnx.errors import VerificationError
from fourtap.onnx.functions import DOMAIN, NODES
from fourtap.onnx.library import library_path
from fourtap.onnx.packages import require
from fourtap.onnx.random_inputs import feeds

__all__ = ["verify"]

_PURPOSE = "a comparison of models"
_TOLERANCE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-4}
# Of the numbers that a call computes; fewer prove nothing. Masks and points outside an image make zeros of many.
_LEAST_SHARE = 0.1
_OTHERS = "other inputs can be given: --inputs and --size, or inputs= and sizes="


def verify(
    original: Any,
    rewritten: Any,
    replacements: Sequence[Any],
    types: Mapping[str, int],
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int | Sequence[int]] | None,
) -> tuple[float, dict[str, float]]:
    """The largest error of a node, and that of each output of the model; an error if a node is wrong."""
    runtime = require("onnxruntime", _PURPOSE)
    before = _Original(runtime, original, replacements, types)
    after = [
        (_load(runtime, rewritten, which, with_library=with_library), which)
        for which, with_library in _ways("the model as rewritten", rewritten)
    ]
    worst = 0.0
    of_outputs: dict[str, float] = {}
    for feed in feeds(before.session, inputs, sizes):
        found = before.run(feed)
        for at, one in enumerate(replacements):
            which = f"call {at} of {len(replacements)}, {one.out}"
            expected = found[one.out]
            _require_numbers(expected, which)
            for result, ran in _results(runtime, rewritten, one, found):
                error, allowed = _error(result, expected), _TOLERANCE.get(str(result.dtype), _TOLERANCE["float16"])
                if not error <= allowed:
                    raise VerificationError(f"{which}{ran}: expected an error of at most {allowed:g}, found {error:g}")
                worst = max(worst, error)
        for session, ran in after:
            for name, result in zip(before.outputs, _run(session, before.outputs, feed, ran), strict=True):
                of_outputs[name] = max(of_outputs.get(name, 0.0), _error(result, found[name]))
    return worst, of_outputs


class _Original:
    """The model as it was, which shows the tensors around each call."""

    def __init__(self, runtime: Any, model: Any, replacements: Sequence[Any], types: Mapping[str, int]) -> None:
        onnx = require("onnx", _PURPOSE)
        self.outputs = [info.name for info in model.graph.output]
        self._constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        wanted = dict.fromkeys(name for one in replacements for name in [*_given(one), one.out])
        known = {*self._constants, *self.outputs, *(info.name for info in model.graph.input)}
        watched = _copy(model)
        watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
        self.session = _load(
            runtime, watched, "the model as it was", repair=lambda model: _in_float(onnx, model, types)
        )

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """All tensors that are known, by their names."""
        names = [output.name for output in self.session.get_outputs()]
        found = _run(self.session, names, feed, "the model as it was")
        return {**self._constants, **feed, **dict(zip(names, found, strict=True))}


def _ways(what: str, model: Any) -> list[tuple[str, bool]]:
    """How a model can run, and whether that takes our library: by it, by functions, or by plain operators."""
    carried = {(function.domain, function.name) for function in model.functions}
    nodes = {(node.domain, node.op_type) for node in model.graph.node if node.op_type in NODES}
    if not nodes:
        return [(what, False)]
    by_functions = [(f"{what}, by the functions that the file carries", False)]
    return [(what, True)] + (by_functions if nodes <= carried else [])


def _given(replacement: Any) -> list[str]:
    """The tensors of the model that the new nodes take."""
    made = {name for node in replacement.nodes for name in node.output}
    made.update(tensor.name for tensor in replacement.initializers)
    return list(dict.fromkeys(name for node in replacement.nodes for name in node.input if name and name not in made))


def _results(runtime: Any, rewritten: Any, replacement: Any, found: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """What the new nodes compute, and by what, if not by our library."""
    onnx = require("onnx", _PURPOSE)
    helper = onnx.helper
    given = {name: found[name] for name in _given(replacement)}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in given.items()
    ]
    out = onnx.ValueInfoProto(name=replacement.out)
    graph = helper.make_graph(replacement.nodes, "part", infos, [out], replacement.initializers)
    part = helper.make_model(graph, opset_imports=rewritten.opset_import, ir_version=rewritten.ir_version)
    part.functions.extend(function for function in rewritten.functions if function.domain == DOMAIN)
    for which, with_library in _ways("", part):
        session = _load(runtime, part, f"a node as rewritten{which}", with_library=with_library)
        yield _run(session, None, given, f"a node as rewritten{which}")[0], which


def _require_numbers(expected: Any, which: str) -> None:
    """Refuse what tells nothing: NaN or zeros are the same whatever a node computes."""
    told = np.count_nonzero(np.isfinite(expected) & (expected != 0))
    if told < max(_LEAST_SHARE * expected.size, 1):
        raise VerificationError(
            f"{which}: expected at least {_LEAST_SHARE:.0%} of the numbers to be finite and not zero, so that they can "
            f"be compared, found {told} of {expected.size} ({_OTHERS})"
        )


def _error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number; infinite where only one is a number."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0  # outputs of a model, which are not judged; of calls, numbers are required
    off = np.abs(found[finite] - expected[finite]).max()
    scale = np.abs(expected[finite]).max()
    return float(off / scale) if scale else float(off)


def _copy(model: Any) -> Any:
    copied = type(model)()
    copied.CopyFrom(model)
    return copied


def _load(runtime: Any, model: Any, which: str, *, with_library: bool = True, repair: Any = None) -> Any:
    options = runtime.SessionOptions()
    # What goes wrong is raised; nothing is to be printed too.
    options.log_severity_level = 4
    if with_library:
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
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
        raise VerificationError(
            f"{which}: expected one that runs on inputs of {shapes} ({_OTHERS}), found {error}"
        ) from error


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
