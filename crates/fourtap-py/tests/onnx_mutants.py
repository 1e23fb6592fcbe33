"""Models that look like another one: graphs of ONNX with one thing changed.

A mutant may compute the same, something else, or nothing that runs; that is for who takes it to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx_sessions import onnx

_SWAPPED_OPERATORS = {
    "Add": ("Sub", "Mul", "Max"),
    "Sub": ("Add",),
    "Mul": ("Add", "Div", "Sub"),
    "Div": ("Mul", "Sub"),
    "Softmax": ("LogSoftmax", "Hardmax", "Sigmoid"),
}
_SWAPPED_OPERANDS = ("Sub", "Div", "Concat")
_SAMPLING = {
    "mode": ("nearest", "bicubic"),
    "padding_mode": ("border", "reflection"),
    "align_corners": (1,),
}
_LARGEST_CONSTANT = 64


@dataclass(frozen=True)
class Mutant:
    """A model, and what is changed in it."""

    kind: str
    what: str
    model: Any


@dataclass(frozen=True)
class Tensors:
    """What the tensors of a model are when it runs."""

    types: Mapping[str, Any]
    shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    "At each of the sizes that were tried."


def mutants(model: Any, tensors: Tensors) -> Iterator[Mutant]:
    """All of a model, in its order."""
    for at, node in enumerate(model.graph.node):
        for kind, what, change in _changes(node, at, model, tensors):
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            change(changed.graph)
            yield Mutant(kind, f"{node.op_type} {node.output[0]}: {what}", changed)


Change = tuple[str, str, Callable[[Any], None]]


def _changes(node: Any, at: int, model: Any, tensors: Tensors) -> Iterator[Change]:
    if node.op_type == "Constant":
        yield from _of_constants(node, at)
        return
    yield from _of_operators(node, at)
    yield from _of_axes(node, at)
    if node.op_type == "GridSample":
        for name, choices in _SAMPLING.items():
            for choice in choices:
                yield "mode", f"{name} = {choice}", _setting(at, name, choice)
    out = node.output[0]
    if tensors.types.get(out) == np.float32:
        yield from _after(node, at, model, tensors)


def _of_constants(node: Any, at: int) -> Iterator[Change]:
    if node.attribute[0].name != "value":
        return
    array = onnx.numpy_helper.to_array(node.attribute[0].t)
    if array.size > _LARGEST_CONSTANT or array.dtype == np.bool_:
        return
    # Axes and indices are small; a huge number stands for an end.
    changed = {"one more": array + 1, "one less": array - 1, "negated": -array, "doubled": 2 * array}
    changed["backwards"] = np.ascontiguousarray(array.ravel()[::-1].reshape(array.shape))
    if array.dtype.kind == "f":
        changed["a little more"] = array * array.dtype.type(1.01)
    if array.ndim > 1:
        changed["rows exchanged"] = np.ascontiguousarray(np.roll(array, 1, axis=int(np.argmax(array.shape))))
    for what, other in changed.items():
        if (other != array).any() and np.abs(array.astype(np.float64)).max() < 2**31:
            yield "constant", what, _holding(at, other.astype(array.dtype))


def _of_operators(node: Any, at: int) -> Iterator[Change]:
    for other in _SWAPPED_OPERATORS.get(node.op_type, ()):
        yield "operator", f"{other} instead", _being(at, other)
    if node.op_type == "ReduceSum":
        yield "operator", "a part of it", _part(at)
    if node.op_type in _SWAPPED_OPERANDS and len(node.input) > 1 and node.input[0] != node.input[1]:
        yield "order", "operands exchanged", _exchanging(at, "input")
    if len(node.output) > 1:
        yield "order", "results exchanged", _exchanging(at, "output")


def _of_axes(node: Any, at: int) -> Iterator[Change]:
    for attribute in node.attribute:
        if attribute.name == "axis":
            for axis in range(-3, 5):
                if axis != attribute.i:
                    yield "axis", f"axis {axis}", _setting(at, "axis", axis)
        if attribute.name == "keepdims":
            yield "axis", "keepdims changed", _setting(at, "keepdims", 1 - attribute.i)
        if attribute.name == "perm":
            perm = list(attribute.ints)
            for one in range(len(perm)):
                for other in range(one):
                    changed = list(perm)
                    changed[one], changed[other] = perm[other], perm[one]
                    yield "axis", f"axes {changed}", _setting(at, "perm", changed)


def _after(node: Any, at: int, model: Any, tensors: Tensors) -> Iterator[Change]:
    """What happens to a tensor of numbers before others take it."""
    out = node.output[0]
    for operator in ("Neg", "Relu", "Abs", "Floor", "Tanh"):
        yield "operator", f"{operator} after it", _then(at, operator)
    yield "residual", "added to itself", _then(at, "Add", out)
    before = {name for other in list(model.graph.node)[:at] for name in other.output}
    before |= {given.name for given in model.graph.input}
    alike = [name for name in before if name != out and tensors.shapes.get(name) == tensors.shapes[out]]
    for name in sorted(name for name in alike if tensors.types[name] == np.float32)[:2]:
        yield "residual", f"{name} added", _then(at, "Add", name)
    for axis in range(len(tensors.shapes[out][0])):
        yield "order", f"axis {axis} backwards", _flipped(at, axis)


def _holding(at: int, array: Any) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.node[at].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(array))

    return change


def _being(at: int, operator: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.node[at].op_type = operator
        if operator == "Sigmoid":
            graph.node[at].ClearField("attribute")

    return change


def _part(at: int) -> Callable[[Any], None]:
    """As a mean is of a sum."""

    def change(graph: Any) -> None:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(4, np.float32), "mutant_count"))
        _insert(graph, at, "Div", [graph.node[at].output[0], "mutant_count"])

    return change


def _exchanging(at: int, side: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        names = getattr(graph.node[at], side)
        names[0], names[1] = names[1], names[0]

    return change


def _setting(at: int, name: str, value: Any) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        node = graph.node[at]
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        copies = [onnx.AttributeProto.FromString(one.SerializeToString()) for one in kept]
        node.ClearField("attribute")
        node.attribute.extend([*copies, onnx.helper.make_attribute(name, value)])

    return change


def _then(at: int, operator: str, *others: str) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        _insert(graph, at, operator, [graph.node[at].output[0], *others])

    return change


def _flipped(at: int, axis: int) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        names = [f"mutant_{what}" for what in ("begin", "end", "axis", "step")]
        for name, number in zip(names, (-1, -(2**62), axis, -1), strict=True):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
        _insert(graph, at, "Slice", [graph.node[at].output[0], *names])

    return change


def _insert(graph: Any, at: int, operator: str, operands: list[str]) -> None:
    """A node behind another one, whose result those that took the other's take."""
    node = graph.node[at]
    out, raw = node.output[0], "mutant_raw"
    node.output[0] = raw
    graph.node.insert(at + 1, onnx.helper.make_node(operator, [raw if one == out else one for one in operands], [out]))
