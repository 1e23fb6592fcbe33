"""Puts the portable form in the place of every node of a library that is deformable attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fourtap.onnx.building import Builder
from fourtap.onnx.errors import PatternError
from fourtap.onnx.functions import FROM_PROJECTIONS, NODES, TENSORRT
from fourtap.onnx.graph import Graph
from fourtap.onnx.inference import infer
from fourtap.onnx.placing import Replacement, put
from fourtap.onnx.portable import Levels, Value, attend, places_of_locations, places_of_projections
from fourtap.onnx.tracing import Origin, Tracer

__all__ = ["expand"]

# The first with Range and CumSum.
_OLDEST_OPSET = 11
_FLOAT = 1


def expand(model: Any, prefix: str, replacements: Sequence[Replacement] = ()) -> list[Replacement]:
    """Of all nodes of :data:`NODES`, in any domain; also of those that are part of replacements made before.

    Returns:
        The replacements as they are then, and those of the other nodes.

    """
    opset = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if opset < _OLDEST_OPSET:
        raise PatternError(f"opset: expected {_OLDEST_OPSET} or later, which has Range, found {opset}")
    graph = Graph(model, infer(model))
    tracer = Tracer(graph)
    nodes = [node for node in graph.nodes if node.op_type in NODES]
    expanded = {
        node.output[0]: _Node(graph, tracer, node, f"{prefix}_{at}").replacement() for at, node in enumerate(nodes)
    }
    put(model, list(expanded.values()))
    _remove_domains(model, {node.domain for node in nodes} - {node.domain for node in model.graph.node} - {""})
    return [_joined(one, expanded) for one in replacements] + list(expanded.values())


def _joined(replacement: Replacement, expanded: dict[str, Replacement]) -> Replacement:
    """A replacement whose nodes of ours are expanded, which are taken out of the others."""
    parts = [
        expanded.pop(node.output[0]) if node.output[0] in expanded else Replacement("", [node], [])
        for node in replacement.nodes
    ]
    nodes = [node for part in parts for node in part.nodes]
    initializers = [*replacement.initializers, *(tensor for part in parts for tensor in part.initializers)]
    return Replacement(replacement.out, nodes, initializers)


def _remove_domains(model: Any, domains: set[str]) -> None:
    """Functions and imports that are for nodes of these domains, of which there are none any more."""
    for field in ("functions", "opset_import"):
        kept = [
            type(one).FromString(one.SerializeToString()) for one in getattr(model, field) if one.domain not in domains
        ]
        model.ClearField(field)
        getattr(model, field).extend(kept)


class _Node:
    """A node, and what is known of its tensors."""

    def __init__(self, graph: Graph, tracer: Tracer, node: Any, prefix: str) -> None:
        self._graph, self._tracer, self._node = graph, tracer, node
        self._build = Builder(prefix)
        self._is_projected = node.op_type == FROM_PROJECTIONS

    def replacement(self) -> Replacement:
        build = self._build
        value = self._value()
        if self._is_projected:
            counts = self._points_per_level()
            levels = self._levels(counts)
            places, weights = self._projected_places(levels, counts), self._softmax()
            nearest = self._graph.attribute(self._node, "sampling", b"bilinear") == b"nearest"
        else:
            count, points = self._known([3, 4], slice(3, 5))
            levels = self._levels([points] * count)
            samples = count * points
            locations = build.node("Reshape", self._as_float(3), np.array([0, 0, 0, samples, 2]))
            places = places_of_locations(build, levels, locations)
            weights = build.node("Reshape", self._as_float(4), np.array([0, 0, 0, samples]))
            nearest = False
        apart = attend(build, value, levels, places, weights, nearest=nearest)
        # A size of -1 could not be told of an empty tensor.
        heads, channels = value.heads or -1, value.channels or -1
        by_head = self._node.op_type == TENSORRT
        shape = [0, 0, 0, channels] if by_head else [0, 0, heads * channels if heads > 0 and channels > 0 else -1]
        self._as_value(build.node("Reshape", apart, np.array(shape)))
        build.nodes[-1].output[0] = self._node.output[0]
        return Replacement(self._node.output[0], build.nodes, build.initializers)

    def _value(self) -> Value:
        shape = self._shape(0) or [None] * 4
        if len(shape) != 4:
            raise self._error(f"value: expected 4 axes, found {len(shape)}")
        name = self._as_float(0)
        if self._is_projected and self._input(6):
            mask = self._build.node("Reshape", self._input(6), np.array([0, -1, 1, 1]))
            name = self._build.node("Where", mask, np.float32(0), name)
        images, _, heads, channels = shape
        return Value(name, images, heads, channels)

    def _levels(self, counts: Sequence[int]) -> Levels:
        of_samples = [level for level, count in enumerate(counts) for _ in range(count)]
        starts = self._numbers(2) if self._input(2) else None
        return Levels.of_samples(self._build, self._numbers(1), starts, of_samples)

    def _points_per_level(self) -> list[int]:
        given = list(self._graph.attribute(self._node, "points_per_level", []))
        if len(given) > 1:
            return given
        (count,) = self._known([1], slice(0, 1))
        (samples,) = self._known([5], slice(3, 4))
        return (given or [samples // max(count, 1)]) * count

    def _projected_places(self, levels: Levels, counts: Sequence[int]) -> Any:
        """Of references ``[N, Q, L or 1, C]`` or ``[N, Q, L or 1, T, C]``, of which points take turns."""
        build, references = self._build, self._as_float(3)
        of_levels, *repeated, coordinates = self._known([3], slice(2, None))
        turns = repeated[0] if repeated else 1
        references = build.node("Reshape", references, np.array([0, 0, 1, of_levels * turns, coordinates]))
        if of_levels * turns > 1:
            at = [
                (level if of_levels > 1 else 0) * turns + point % turns
                for level, count in enumerate(counts)
                for point in range(count)
            ]
            references = build.node("Gather", references, np.array(at), axis=3)
        scale = None
        if coordinates == 4:
            scales = list(self._graph.attribute(self._node, "box_scale", []))
            scales = scales * (len(counts) if len(scales) == 1 else 1) or [0.5 / max(count, 1) for count in counts]
            scale = [factor for factor, count in zip(scales, counts, strict=True) for _ in range(count)]
        return places_of_projections(build, levels, references, self._as_float(4), scale)

    def _softmax(self) -> Any:
        return self._build.node("Softmax", self._as_float(5), axis=-1)

    def _known(self, inputs: Sequence[int], axes: slice) -> list[int]:
        """Sizes of the first of these inputs of which they are known."""
        found = {self._input(at): self._shape(at) for at in inputs}
        for shape in found.values():
            sizes = [] if shape is None else [size for size in shape[axes] if size is not None]
            if shape is not None and len(sizes) == len(shape[axes]) > 0:
                return sizes
        name, shape = next(iter(found.items()))
        raise self._error(f"{name}: expected known sizes from axis {axes.start} on, found {shape or 'none'}")

    def _numbers(self, at: int) -> Any:
        """Numbers of an input, if they are constant; its name if not."""
        found = self._tracer.numbers(self._input(at))
        is_constant = found is not None and not any(isinstance(one, Origin) for one in found.flat)
        return found.astype(np.int64) if is_constant else self._input(at)

    def _as_float(self, at: int) -> Any:
        name = self._input(at)
        return name if self._type(name) == _FLOAT else self._build.node("Cast", name, to=_FLOAT)

    def _as_value(self, result: Any) -> Any:
        """The result in the type of ``value``."""
        kind = self._type(self._input(0))
        if kind is None:
            return self._build.node("CastLike", result, self._input(0))
        return result if kind == _FLOAT else self._build.node("Cast", result, to=kind)

    def _type(self, name: str) -> int | None:
        return self._graph.inferred.types.get(name) or None

    def _shape(self, at: int) -> Sequence[int | None] | None:
        return self._tracer.shape(self._input(at))

    def _input(self, at: int) -> str:
        return str(self._node.input[at]) if len(self._node.input) > at else ""

    def _error(self, words: str) -> PatternError:
        return PatternError(
            f"{self._node.name or self._node.output[0]} ({self._node.op_type}): {words}; "
            'to="fourtap" keeps a node of the library, which needs no known sizes'
        )
