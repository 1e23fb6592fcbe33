"""What of the arithmetic before sampling a node can do itself: the softmax, and locations from points or boxes.

Each is folded into a node only if it is proven to be what the node computes, at every size that the model takes: by the
shapes of tensors, and by where the numbers come from that offsets are divided by. Where a proof is missing, the node
takes locations and weights as the model computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fourtap.onnx.graph import Graph
from fourtap.onnx.tracing import Tracer

__all__ = ["Size", "boxes_and_offsets", "logits_of", "points_and_offsets"]

#: Height and width of a level, each a number or where it comes from.
Size = tuple[Any, Any]
_AXES = ("Squeeze", "Unsqueeze", "Identity")


def logits_of(graph: Graph, tracer: Tracer, weights: str) -> str | None:
    """What weights are the softmax of, over all samples of a query: ``[N, Q, M, K]``."""
    node = graph.producer_through(weights, ("Reshape", "Identity"))
    if node is None or node.op_type != "Softmax" or graph.attribute(node, "axis", -1) not in (-1, 3):
        return None
    shape, of_weights = tracer.shape(node.input[0]), tracer.shape(weights)
    if shape is None or of_weights is None or len(shape) != 4:
        return None
    # Over the points of each level on its own, the last axis is shorter.
    heads, *samples = of_weights[2:]
    count = None if None in samples else math.prod(size for size in samples if size is not None)
    is_over_all = heads is not None and count is not None and list(shape[2:]) == [heads, count]
    return str(node.input[0]) if is_over_all else None


def points_and_offsets(
    graph: Graph, tracer: Tracer, locations: str, weights: str, sizes: Sequence[Size | None]
) -> tuple[str, str] | None:
    """Points and offsets in pixels, where offsets are divided by the width and height of their level."""
    for points, moved in _terms(graph, locations):
        quotient = graph.producer_in_float(moved)
        if quotient is None or quotient.op_type != "Div":
            continue
        offsets, divisor = quotient.input
        if (
            _are_references(tracer, [points], offsets)
            and _are_offsets(tracer, offsets, weights)
            and _are_widths_and_heights(tracer.numbers(divisor), sizes, tracer.shape(offsets))
        ):
            return points, str(offsets)
    return None


def boxes_and_offsets(graph: Graph, tracer: Tracer, locations: str, weights: str) -> tuple[str, str, str, float] | None:
    """Centres, extents and offsets of boxes, where offsets are multiplied by extents and by a number."""
    for centres, moved in _terms(graph, locations):
        factors, scale = _factors(graph, moved)
        kinds = [getattr(graph.producer_in_float(name, _AXES), "op_type", None) for name in factors]
        if len(factors) != 2 or sorted(kind in ("Slice", "Split") for kind in kinds) != [False, True]:
            continue
        extents, offsets = factors if kinds[0] in ("Slice", "Split") else reversed(factors)
        if _are_references(tracer, [centres, extents], offsets) and _are_offsets(tracer, offsets, weights):
            return centres, extents, offsets, scale
    return None


def _terms(graph: Graph, locations: str) -> list[tuple[str, str]]:
    """The two terms of a sum, either first."""
    total = graph.producer(locations)
    if total is None or total.op_type != "Add":
        return []
    one, other = (str(name) for name in total.input)
    return [(one, other), (other, one)]


def _are_references(tracer: Tracer, references: Sequence[str], offsets: str) -> bool:
    """Whether these are of the axes ``[N, Q, 1, L or 1, 1, 2]``, as a node has no others."""
    of_offsets = tracer.shape(offsets)
    shapes = [tracer.shape(name) for name in references]
    if of_offsets is None or len(of_offsets) != 6 or any(shape is None or len(shape) != 6 for shape in shapes):
        return False
    for shape in shapes:
        assert shape is not None
        # A node does not repeat points of one image or query for all.
        repeats = any(size == 1 and other != 1 for size, other in zip(shape[:2], of_offsets[:2], strict=True))
        if repeats or shape[2] != 1 or shape[4] != 1 or shape[3] not in (1, of_offsets[3]) or shape[5] not in (2, None):
            return False
    return len({shape[3] for shape in shapes if shape is not None}) == 1


def _are_offsets(tracer: Tracer, offsets: str, weights: str) -> bool:
    """Whether there is an offset for each weight: ``[N, Q, M, L, P, 2]``."""
    shape, of_weights = tracer.shape(offsets), tracer.shape(weights)
    if shape is None or of_weights is None or len(of_weights) != 5:
        return False
    return None not in of_weights[2:] and list(shape[2:]) == [*of_weights[2:], 2]


def _are_widths_and_heights(divisor: Any, sizes: Sequence[Size | None], offsets: Sequence[int | None] | None) -> bool:
    """Whether numbers that divide ``[N, Q, M, L, P, 2]`` are, for each level, its width and its height."""
    if divisor is None or offsets is None or any(size is None for size in sizes):
        return False
    points = offsets[4]
    expected = [number for size in sizes if size is not None for _ in range(points or 0) for number in reversed(size)]
    try:
        found = np.broadcast_to(divisor, (1, 1, 1, len(sizes), points or 0, 2))
    except ValueError:  # other numbers for each head or query
        return False
    return list(found.flat) == expected


def _factors(graph: Graph, name: str) -> tuple[list[str], float]:
    """What a product is made of: tensors, and all numbers in one."""
    number = graph.number(name)
    if number is not None:
        return [], float(number)
    node = graph.producer_in_float(name)
    if node is not None and node.op_type == "Mul":
        (left, one), (right, other) = (_factors(graph, given) for given in node.input)
        return left + right, one * other
    if node is not None and node.op_type == "Div" and graph.number(node.input[1]):
        left, one = _factors(graph, node.input[0])
        return left, one / float(graph.number(node.input[1]))
    return [str(name)], 1.0
