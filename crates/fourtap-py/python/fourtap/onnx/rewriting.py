"""Puts one node in the place of deformable attention that was exported as ONNX's own operators."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fourtap.errors import InputError, UnsupportedError
from fourtap.onnx.errors import PatternError
from fourtap.onnx.functions import DOMAIN, FROM_LOCATIONS, FROM_PROJECTIONS, Call, calls_of, functions
from fourtap.onnx.graph import Graph
from fourtap.onnx.inference import infer
from fourtap.onnx.packages import require
from fourtap.onnx.pattern import Attention, find

__all__ = ["Replacement", "Rewritten", "rewrite"]

_PURPOSE = "rewriting a model"
_TENSORRT = ("TRT", "MultiscaleDeformableAttnPlugin_TRT")
# Attributes of functions have defaults since version 9 of the format.
_OLDEST_IR = 9
# A message of protobuf holds less than 2 GiB.
_LARGEST_MESSAGE = 2**31 - 2**20


@dataclass
class Replacement:
    """A call of the operator as it was and as it is."""

    attention: Attention
    call: Call
    nodes: list[Any] = field(default_factory=list)
    "What takes its place."
    initializers: list[Any] = field(default_factory=list)


@dataclass
class Rewritten:
    """A model that was rewritten."""

    model: Any
    "The ``onnx.ModelProto``."
    replaced: int
    "How many calls became a node."
    node: str
    "Which."
    error: float | None = None
    "By how much nodes differ from what they replace, relative to the largest number; None if that was not tried."
    output_errors: dict[str, float] = field(default_factory=dict)
    "The same for the outputs of the model, where small errors may grow."


def rewrite(
    source: str | os.PathLike[str] | Any,
    target: str | os.PathLike[str] | None = None,
    *,
    to: str = "fourtap",
    verify: bool = True,
    inputs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    with_functions: bool = True,
    overwrite_source: bool = False,
) -> Rewritten:
    """Put one node in the place of every deformable attention that a model has as GridSample and what is around it.

    Such models are what PyTorch exports of Deformable DETR, RT-DETR, D-FINE, Grounding DINO and their kin as they come.

    Args:
        source: A file, or an ``onnx.ModelProto``, which is not changed.
        target: Where to write the result, if anywhere.
        to: ``"fourtap"``: our nodes; ``"tensorrt"``: those of TensorRT's plugin, which our library has, too.
        verify: Whether to run both models and compare them, in ONNX Runtime on the CPU, with our library and, where the
            result carries functions, without it.
        inputs: What to run them on; by default random images and other numbers, at two sizes where axes are dynamic.
        sizes: Of dynamic axes by their names, for random inputs; two numbers are used one after the other.
        with_functions: Whether the result carries our nodes as functions, so that it runs where our library is not
            registered, too. TensorRT's node has none. Functions that a model carries already are kept either way, and
            written anew where new nodes need more of them.
        overwrite_source: Whether ``target`` may be the file that ``source`` is.

    Raises:
        InputError: The source cannot be read, or the target cannot be written or is the source.
        UnsupportedError: The model has nodes of ours that cannot share a function with new ones.
        PatternError: There is no deformable attention in it, or none that the node can compute.
        VerificationError: The result is not that of the model, or they could not be run, or what the model computes on
            these inputs tells nothing: too few finite numbers other than zero.

    """
    onnx = require("onnx", _PURPOSE)
    if to not in ("fourtap", "tensorrt"):
        raise InputError(f'to: expected "fourtap" or "tensorrt", found {to!r}')
    if target is not None:
        _require_target(target, source, overwrite_source)
    original = source if isinstance(source, onnx.ModelProto) else _load(onnx, source)
    model = onnx.ModelProto()
    model.CopyFrom(original)
    graph = Graph(model, infer(model))
    types = graph.inferred.types
    carried = {one.name: calls_of(one) for one in model.functions if one.domain == DOMAIN}
    # A function has one way of sampling, and is with a mask or without.
    is_shared = not any(call.nearest or call.masked for call in carried.get(FROM_PROJECTIONS, []))
    prefix = _unused_prefix(model)
    replacements = [
        _Replacing(onnx, attention, types, f"{prefix}_{at}", to, with_projections=is_shared).made()
        for at, attention in enumerate(find(graph))
    ]
    calls = [one.call for one in replacements] if to == "fourtap" else []
    if with_functions:
        _require_functions(model, calls, carried)
    else:
        # Calls beside those that a function was written for would silently lose levels.
        calls = [call for call in calls if call.name in carried]
    _put(model, replacements)
    _import(onnx, model, DOMAIN if to == "fourtap" else _TENSORRT[0])
    if calls:
        _carry(model, calls, carried)
    names = " and ".join(sorted({one.call.name for one in replacements})) if to == "fourtap" else _TENSORRT[1]
    result = Rewritten(model, len(replacements), names)
    if verify:
        from fourtap.onnx.verification import verify as compare

        result.error, result.output_errors = compare(original, model, replacements, types, inputs, sizes)
    if target is not None:
        large = model.ByteSize() > _LARGEST_MESSAGE
        try:
            onnx.save(model, os.fspath(target), save_as_external_data=large)
        except OSError as error:
            raise _unwritable(target, error) from error
    return result


def _require_target(target: str | os.PathLike[str], source: Any, overwrite_source: bool) -> None:
    """Refuse a target that cannot be written or must not be replaced, before any work is done for it."""
    if isinstance(source, (str, os.PathLike)) and not overwrite_source:
        try:
            same = os.path.samefile(source, target)
        except OSError:  # one of them is not there
            same = False
        if same:
            raise InputError(
                f"{os.fspath(target)}: expected another file than the source, found the same "
                "(overwrite_source=True, or --overwrite-source on the command line, replaces it)"
            )
    path = os.fspath(target)
    folder = os.path.dirname(path) or os.curdir
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: str | os.PathLike[str], error: OSError) -> InputError:
    return InputError(f"{os.fspath(target)}: expected a path that can be written, found: {error.strerror or error}")


def _load(onnx: Any, source: str | os.PathLike[str]) -> Any:
    try:
        return onnx.load(os.fspath(source))
    except OSError as error:
        raise InputError(f"{os.fspath(source)}: expected a file that can be read, found {error}") from error
    except Exception as error:  # protobuf's own, which differs from version to version
        raise InputError(f"{os.fspath(source)}: expected a model of ONNX, found {error}") from error


def _import(onnx: Any, model: Any, domain: str) -> None:
    if all(one.domain != domain for one in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))


def _unused_prefix(model: Any) -> str:
    """What no name in a model begins with; one that was rewritten before has names of ours."""
    used = {name for node in model.graph.node for name in [node.name, *node.output]}
    used.update(tensor.name for tensor in model.graph.initializer)
    prefixes = (f"{DOMAIN}{at}" if at else DOMAIN for at in itertools.count())
    return next(prefix for prefix in prefixes if not any(name.startswith(f"{prefix}_") for name in used))


def _require_functions(model: Any, calls: Sequence[Call], carried: Mapping[str, Any]) -> None:
    """Refuse functions that nodes of the model would take, for which they were not written."""
    wanted = {call.name for call in calls}
    there = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    alone = sorted((there & wanted) - carried.keys())
    if alone:
        raise UnsupportedError(
            f"with_functions: expected False (--no-functions), as the model has nodes {alone[0]} without a function, "
            "found True"
        )


def _carry(model: Any, calls: Sequence[Call], carried: Mapping[str, Sequence[Call]]) -> None:
    """Functions for these calls and for those of the same names that the model had."""
    opset = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    names = {call.name for call in calls}
    of_both = [*calls, *(call for name in sorted(names) for call in carried.get(name, []))]
    others = [one for one in model.functions if one.domain != DOMAIN or one.name not in names]
    copies = [type(one).FromString(one.SerializeToString()) for one in others]
    model.ClearField("functions")
    model.functions.extend([*copies, *functions(of_both, opset)])
    model.ir_version = max(model.ir_version, _OLDEST_IR)


def _put(model: Any, replacements: Sequence[Replacement]) -> None:
    """Put nodes in the place of the last one of each call, and take out what then is computed for nobody."""
    at_end = {one.attention.out: one for one in replacements}
    nodes: list[Any] = []
    for node in model.graph.node:
        replacement = at_end.get(node.output[0]) if node.output else None
        nodes += [node] if replacement is None else replacement.nodes
    needed = {info.name for info in model.graph.output}
    kept: list[Any] = []
    for node in reversed(nodes):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
            needed.update(_captured(node))
    initializers = [*model.graph.initializer, *(tensor for one in replacements for tensor in one.initializers)]
    of_inputs = {info.name for info in model.graph.input}
    initializers = [tensor for tensor in initializers if tensor.name in needed or tensor.name in of_inputs]
    infos = [info for info in model.graph.value_info if info.name in needed]
    for name, content in (("node", reversed(kept)), ("initializer", initializers), ("value_info", infos)):
        copies = [type(one).FromString(one.SerializeToString()) for one in content]
        model.graph.ClearField(name)
        getattr(model.graph, name).extend(copies)


def _captured(node: Any) -> set[str]:
    """What the graphs in a node (If, Loop) take from around them; more than that does no harm."""
    names: set[str] = set()
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            names.update(info.name for info in graph.output)
            for inner in graph.node:
                names.update(inner.input)
                names |= _captured(inner)
    return names


class _Replacing:
    """The nodes that compute one call."""

    def __init__(
        self,
        onnx: Any,
        attention: Attention,
        types: Mapping[str, int],
        prefix: str,
        to: str,
        *,
        with_projections: bool,
    ) -> None:
        self._onnx, self._attention, self._types, self._prefix, self._to = onnx, attention, types, prefix, to
        self._folds = with_projections and attention.logits is not None
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []

    def made(self) -> Replacement:
        attention, points = self._attention, self._attention.points
        count = len(attention.sizes)
        shapes, starts = self._levels()
        levels = [attention.value, shapes, starts]
        name = FROM_LOCATIONS
        if self._to == "tensorrt":
            if points is not None and len(set(points)) > 1:
                raise PatternError(f"points: expected as many for each level, as TensorRT's node wants, found {points}")
            levels[1:] = [self._node("Cast", one, to=self._onnx.TensorProto.INT32) for one in (shapes, starts)]
            domain, node_name = _TENSORRT
            apart = self._node(node_name, *levels, *self._by_level(), domain=domain)
            found = self._node("Reshape", apart, self._constant("merged", [0, 0, -1]))
        elif self._folds and attention.projections is not None:
            name = FROM_PROJECTIONS
            found = self._from_points(levels, *attention.projections)
        elif self._folds and attention.boxes is not None:
            name = FROM_PROJECTIONS
            found = self._from_boxes(levels, *attention.boxes)
        elif points is not None and len(set(points)) > 1:
            name = FROM_PROJECTIONS
            found = self._from_whole(levels, points)
        else:
            found = self._node(name, *levels, *self._by_level(), domain=DOMAIN)
        if attention.out_is_by_channel:
            found = self._node("Transpose", found, perm=[0, 2, 1])
        # The last node makes what the model goes on with.
        self._nodes[-1].output[0] = attention.out
        return Replacement(attention, Call(name, count), self._nodes, self._initializers)

    def _by_level(self) -> tuple[str, str]:
        """Locations and weights with the points of each level on an axis of their own."""
        attention, count = self._attention, len(self._attention.sizes)
        locations, weights = self._as_float(self._locations()), self._as_float(attention.weights)
        if attention.by_points:
            locations = self._node("Reshape", locations, self._constant("by_level", [0, 0, 0, count, -1, 2]))
            weights = self._node("Reshape", weights, self._constant("by_level", [0, 0, 0, count, -1]))
        return locations, weights

    def _from_points(self, levels: Sequence[str], points: str, offsets: str) -> str:
        """Without the arithmetic and the softmax before it, which take longer than the node does."""
        points = self._node("Reshape", self._as_float(points), self._constant("points", [0, 0, -1, 2]))
        offsets = self._node("Reshape", self._as_float(offsets), self._constant("offsets", [0, 0, 0, -1, 2]))
        return self._projected([*levels, points, offsets])

    def _from_boxes(self, levels: Sequence[str], centres: str, extents: str, offsets: str, scale: float) -> str:
        joined = self._node("Concat", self._as_float(centres), self._as_float(extents), axis=-1)
        boxes = self._node("Reshape", joined, self._constant("boxes", [0, 0, -1, 4]))
        offsets = self._node("Reshape", self._as_float(offsets), self._constant("offsets", [0, 0, 0, -1, 2]))
        return self._projected([*levels, boxes, offsets], box_scale=[scale] * len(self._attention.sizes))

    def _from_whole(self, levels: Sequence[str], points: Sequence[int]) -> str:
        """Of levels with unlike points, which only this node takes: offsets into the whole image are locations."""
        whole = self._constant("whole", [0.0, 0.0, 1.0, 1.0], [1, 1, 1, 1, 4])
        return self._projected(
            [*levels, whole, self._as_float(self._locations())],
            points_per_level=list(points),
            box_scale=[1.0] * len(points),
        )

    def _projected(self, inputs: Sequence[str], **attributes: Any) -> str:
        logits = self._attention.logits
        if logits is None:
            raise PatternError("weights: expected those of a softmax, as levels have unlike points, found others")
        logits = self._as_float(logits)
        return self._node(FROM_PROJECTIONS, *inputs, logits, domain=DOMAIN, sampling="bilinear", **attributes)

    def _locations(self) -> str:
        attention = self._attention
        if attention.locations is not None:
            return attention.locations
        grids = self._as_float(attention.grids)
        moved = self._node("Add", grids, self._constant("unit", [1.0], []))
        return self._node("Mul", moved, self._constant("half", [0.5], []))

    def _levels(self) -> tuple[str, str]:
        """Sizes and starts: constants, or computed from the shapes that images were given."""
        sizes = self._attention.sizes
        known = [size for size in sizes if not isinstance(size, str)]
        if len(known) == len(sizes):
            begins = [sum(height * width for height, width in known[:level]) for level in range(len(known))]
            flat = [number for size in known for number in size]
            return self._constant("shapes", flat, [len(known), 2]), self._constant("starts", begins)
        two, four = self._constant("two", [2]), self._constant("four", [4])
        parts = [
            self._node("Slice", size, two, four) if isinstance(size, str) else self._constant("size", list(size))
            for size in sizes
        ]
        joined = self._node("Concat", *parts, axis=0)
        shapes = self._node("Reshape", joined, self._constant("pairs", [-1, 2]))
        heights, widths = (self._node("Gather", shapes, self._constant("side", [side], []), axis=1) for side in (0, 1))
        areas = self._node("Mul", heights, widths)
        return shapes, self._node("CumSum", areas, self._constant("axis", [0], []), exclusive=1)

    def _as_float(self, name: str) -> str:
        """Some exports have places in double, which no runtime samples by."""
        is_float = self._types.get(name) == self._onnx.TensorProto.FLOAT
        return name if is_float else self._node("Cast", name, to=self._onnx.TensorProto.FLOAT)

    def _name(self, what: str) -> str:
        return f"{self._prefix}_{what}_{len(self._nodes) + len(self._initializers)}"

    def _constant(self, what: str, numbers: Sequence[float], shape: Sequence[int] | None = None) -> str:
        kinds = self._onnx.TensorProto
        kind = kinds.FLOAT if any(isinstance(number, float) for number in numbers) else kinds.INT64
        name = self._name(what)
        dims = [len(numbers)] if shape is None else shape
        self._initializers.append(self._onnx.helper.make_tensor(name, kind, dims, list(numbers)))
        return name

    def _node(self, kind: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        made = self._name(kind) if out is None else out
        node = self._onnx.helper.make_node(
            kind, list(inputs), [made], name=self._name(kind), domain=domain, **attributes
        )
        self._nodes.append(node)
        return made
