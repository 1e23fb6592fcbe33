"""Finds deformable attention that was exported as GridSample and what is around it.

It is written in two ways: by levels, as by Deformable DETR, RT-DETR, Grounding DINO, Mask2Former and mmcv, with the
points of a level on an axis of their own; or by points, as by RT-DETRv2 and D-FINE, with the points of all levels on
one axis. Both exporters of PyTorch make the same nodes of them, but for how a level is cut out.

Only what must be known is looked at: which tensors go in and which comes out. That what is between them computes
deformable attention is for :mod:`fourtap.onnx.verification` to see. A softmax and the arithmetic of locations become
part of a node only where they are proven to be the node's own, at every size: see :mod:`fourtap.onnx.folding`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fourtap.onnx.errors import PatternError
from fourtap.onnx.folding import Size, boxes_and_offsets, logits_of, points_and_offsets
from fourtap.onnx.graph import Graph
from fourtap.onnx.tracing import Origin, Tracer

__all__ = ["Attention", "find"]

_SLICES = ("Slice", "Split", "Gather")
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")


@dataclass
class Attention:
    """The tensors of one call, by their names."""

    value: str
    "``[N, S, M, D]``."
    sizes: list[tuple[int, int] | str]
    "Of each level, height and width; or the tensor that has them at 2 and 3."
    grids: str
    "Places from -1 to 1, ``[N, Q, M, L, P, 2]`` or, by points, ``[N, Q, M, K, 2]``."
    locations: str | None
    "The same from 0 to 1, if the model has that."
    weights: str
    "``[N, Q, M, L, P]`` or, by points, ``[N, Q, M, K]``."
    logits: str | None
    "What their softmax is taken of, ``[N, Q, M, K]``."
    projections: tuple[str, str] | None
    "Points ``[N, Q, 1, L or 1, 1, 2]`` and offsets in pixels ``[N, Q, M, L, P, 2]`` that locations are the sum of."
    boxes: tuple[str, str, str, float] | None
    "Centres and extents, both as such points, offsets in boxes, and the part of a box that an offset of 1 stands for."
    references: int | None
    "How many points or boxes of these a query has: one for each level, or one for all."
    points: list[int] | None
    "Of each level, if it is written by points and they are known."
    by_points: bool
    out: str
    "``[N, Q, M * D]``, or with the last two axes swapped."
    out_is_by_channel: bool
    end: Any
    "The node that computes ``out``."


def find(graph: Graph) -> list[Attention]:
    """All calls in a graph, in its order; or an error that says what was found instead."""
    grids = [node for node in graph.nodes if node.op_type == "GridSample"]
    if not grids:
        raise PatternError("model: expected deformable attention made of GridSample nodes, found no GridSample")
    found: list[Attention] = []
    seen: set[str] = set()
    failures: list[str] = []
    for node in grids:
        if node.output[0] in seen:
            continue
        try:
            attention, members = _match(graph, node)
        except PatternError as error:
            failures.append(f"{node.name or node.output[0]}: {error}")
            continue
        found.append(attention)
        seen.update(members)
    if not found:
        raise PatternError(
            f"model: expected deformable attention, found {len(grids)} GridSample nodes of another kind; {failures[0]}"
        )
    return found


def _match(graph: Graph, sampler: Any) -> tuple[Attention, list[str]]:
    """The call that a GridSample is part of, and the outputs of all its GridSamples."""
    samplers, joined = _levels(graph, sampler)
    for one in samplers:
        _require(graph.attribute(one, "align_corners", 0) == 0, "expected align_corners = 0, found 1")
        _require(graph.attribute(one, "padding_mode", b"zeros") == b"zeros", "expected padding with zeros")
        _require(
            graph.attribute(one, "mode", b"linear") in (b"linear", b"bilinear"),
            "expected bilinear interpolation",
        )
    product = graph.only_consumer(joined, through=_VIEWS)
    _require(product.op_type == "Mul", f"expected a product with weights after sampling, found {product.op_type}")
    arrived = graph.source_among(product.input, joined, through=_VIEWS)
    (other,) = [name for name in product.input if name != arrived] or [None]
    _require(other is not None, "expected weights, found the samples themselves")
    weights, by_points = _weights(graph, str(other))
    total = graph.only_consumer(product.output[0])
    _require(total.op_type == "ReduceSum", f"expected a sum over points, found {total.op_type}")
    end = graph.only_consumer(total.output[0])
    _require(end.op_type == "Reshape", f"expected a Reshape to [N, M * D, Q], found {end.op_type}")
    by_channel = True
    after = graph.consumers(end.output[0])
    if len(after) == 1 and after[0].op_type == "Transpose" and graph.perm(after[0]) == [0, 2, 1]:
        end, by_channel = after[0], False

    values = {_value(graph, one) for one in samplers}
    grids = [_grid(graph, one) for one in samplers]
    _require(len(values) == 1, "expected levels of one value, found several values")
    _require(len({name for name, _ in grids}) == 1, "expected places of all levels in one tensor, found several")
    counts = [count for _, count in grids]
    places = grids[0][0]
    tracer = Tracer(graph)
    sizes = [_size(graph, tracer, one) for one in samplers]
    locations = _from_zero_to_one(graph, places)
    projections, boxes = None, None
    if locations is not None and not by_points:
        projections = points_and_offsets(graph, tracer, locations, weights, [traced for _, traced in sizes])
        boxes = boxes_and_offsets(graph, tracer, locations, weights)
    references = next((tracer.shape(found[0]) for found in (projections, boxes) if found is not None), None)
    attention = Attention(
        value=values.pop(),
        sizes=[where for where, _ in sizes],
        grids=places,
        locations=locations,
        weights=weights,
        logits=logits_of(graph, tracer, weights),
        projections=projections,
        boxes=boxes,
        references=None if references is None else references[3],
        points=[count for count in counts if count is not None] if by_points and None not in counts else None,
        by_points=by_points,
        out=end.output[0],
        out_is_by_channel=by_channel,
        end=end,
    )
    return attention, [one.output[0] for one in samplers]


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise PatternError(words)


def _levels(graph: Graph, sampler: Any) -> tuple[list[Any], str]:
    """The GridSamples of all levels in their order, and the tensor that has the samples of all."""
    node = graph.only_consumer(sampler.output[0], through=("Unsqueeze", "Identity"))
    if node.op_type != "Concat":
        # There is one level.
        return [sampler], sampler.output[0]
    samplers = [graph.producer_through(name, ("Unsqueeze", "Identity")) for name in node.input]
    _require(
        all(one is not None and one.op_type == "GridSample" for one in samplers),
        "expected the samples of all levels side by side, found other tensors beside them",
    )
    return samplers, node.output[0]


def _value(graph: Graph, sampler: Any) -> str:
    """The value that the image of a level is part of, ``[N, S, M, D]``."""
    for node in _back(graph, sampler.input[0], ("Transpose", *_SLICES, *_VIEWS)):
        perm = graph.perm(node)
        if perm == [0, 2, 3, 1]:
            # By points: transposed, then cut.
            return str(node.input[0])
        if perm == [0, 2, 1]:
            # By levels: cut, then transposed; the first axes are [N, S] again where it is cut.
            flat = graph.producer(node.input[0])
            _require(flat is not None and flat.op_type in _VIEWS, "expected M * D channels made of two axes")
            cut = graph.producer(flat.input[0])
            return str(cut.input[0] if cut is not None and cut.op_type in ("Slice", "Split") else flat.input[0])
    raise PatternError("expected an image that is part of a value [N, S, M, D]")


def _size(graph: Graph, tracer: Tracer, sampler: Any) -> tuple[tuple[int, int] | str, Size | None]:
    """Height and width of a level, or the tensor that has them; and where they come from, if that is known."""
    node = graph.producer(sampler.input[0])
    _require(node is not None and node.op_type == "Reshape", "expected an image that was reshaped to its size")
    shape = tracer.numbers(node.input[1])
    if shape is None or shape.shape != (4,):
        return str(node.input[1]), None
    known = [int(size) for size in shape[2:] if not isinstance(size, Origin)]
    words = [size if isinstance(size, int) else "any" for size in shape]
    _require(all(size > 0 for size in known), f"expected an image of known height and width, found {words}")
    traced = (shape[2], shape[3])
    return (known[0], known[1]) if len(known) == 2 else str(node.input[1]), traced


def _grid(graph: Graph, sampler: Any) -> tuple[str, int | None]:
    """The places of all levels, and how many of them are this level's, if that is known."""
    count: int | None = None
    by_head = False
    at = sampler.input[1]
    for node in _back(graph, at, ("Transpose", *_SLICES, *_VIEWS)):
        if graph.perm(node) == [0, 2, 1, 3, 4]:
            by_head, at = True, node.input[0]
            cut = graph.producer_through(at, ("Squeeze", "Identity"))
            if cut is not None and cut.op_type in _SLICES:
                at = cut.input[0]
            break
        if node.op_type in ("Split", "Slice"):
            count = graph.length_of_part(node, str(at))
        at = node.input[0]
    _require(by_head, "expected places by heads")
    return str(at), count


def _weights(graph: Graph, name: str) -> tuple[str, bool]:
    """The weights before they are ordered by heads, and whether they are by points."""
    for node in _back(graph, name, ("Transpose", *_VIEWS)):
        perm = graph.perm(node)
        if perm in ([0, 2, 1, 3, 4], [0, 2, 1, 3]):
            return str(node.input[0]), perm == [0, 2, 1, 3]
    raise PatternError("expected weights by heads")


def _from_zero_to_one(graph: Graph, grids: str) -> str | None:
    """What was doubled and moved to make places from -1 to 1."""
    moved = graph.producer(grids)
    if moved is None or moved.op_type != "Sub" or graph.number(moved.input[1]) != 1:
        return None
    doubled = graph.producer(moved.input[0])
    if doubled is None or doubled.op_type != "Mul":
        return None
    for one, factor in (doubled.input, reversed(doubled.input)):
        if graph.number(factor) == 2:
            return str(one)
    return None


def _back(graph: Graph, name: str, kinds: tuple[str, ...]) -> Iterator[Any]:
    """The nodes before a tensor, along first inputs, as long as they only move numbers."""
    node = graph.producer(name)
    while node is not None and node.op_type in kinds:
        yield node
        node = graph.producer(node.input[0])
