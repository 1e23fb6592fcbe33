"""Where the numbers in small tensors come from, such as the sizes of levels.

Sizes go through a handful of nodes between the Shape that reads them and the place where they are needed. Two tensors
are the same at every size if each of their numbers is the same constant or comes from the same place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fourtap.onnx.graph import Graph

__all__ = ["Origin", "Tracer"]

_LARGEST = 256


@dataclass(frozen=True)
class Origin:
    """Where a number comes from that is not known before the model runs."""

    tensor: str
    at: int
    "Its place in the tensor; or, of a shape, the axis."
    is_of_shape: bool = False


class Tracer:
    """Traces the tensors of one graph."""

    def __init__(self, graph: Graph) -> None:
        """Of a graph that does not change meanwhile."""
        self._graph = graph
        self._known: dict[str, Any] = {}

    def numbers(self, name: str) -> Any:
        """An array with the number, or the :class:`Origin`, of each element; None for tensors of unknown shape."""
        if name not in self._known:
            self._known[name] = self._traced(name)
        return self._known[name]

    def shape(self, name: str) -> Sequence[int | None] | None:
        """As :meth:`Graph.shape`; of what a Reshape makes, more than ONNX infers."""
        shape = self._graph.shape(name)
        node = self._graph.producer(name)
        if shape is not None or node is None or node.op_type != "Reshape":
            return shape
        sizes = self.numbers(node.input[1])
        # 0 copies a size, -1 is what is left.
        return None if sizes is None else [size if isinstance(size, int) and size > 0 else None for size in sizes]

    def _traced(self, name: str) -> Any:
        constant = self._graph.array(name)
        if constant is not None:
            return constant.astype(object) if constant.size <= _LARGEST else None
        node = self._graph.producer(name)
        follow = None if node is None else getattr(self, f"_{node.op_type.lower()}", None)
        if follow is not None and node.domain in ("", "ai.onnx"):
            try:
                found = follow(node)
            except (
                ArithmeticError,
                IndexError,
                TypeError,
                ValueError,
            ):  # not a model that runs, or one whose operands are computed
                found = None
            if found is not None:
                return found
        sizes = self.shape(name)
        shape = [size for size in sizes or [] if size is not None]
        if sizes is None or len(shape) < len(sizes) or math.prod(shape) > _LARGEST:
            return None
        return _array([Origin(name, at) for at in range(math.prod(shape))], shape)

    def _shape(self, node: Any) -> Any:
        source = node.input[0]
        sizes = self.shape(source)
        if sizes is None:
            return None
        axes = list(range(len(sizes)))
        begin, end = (self._graph.attribute(node, name, default) for name, default in (("start", 0), ("end", None)))
        axes = axes[begin:end]
        found = [Origin(source, axis, is_of_shape=True) if sizes[axis] is None else sizes[axis] for axis in axes]
        return _array(found, [len(found)])

    def _identity(self, node: Any) -> Any:
        return self.numbers(node.input[0])

    def _cast(self, node: Any) -> Any:
        """Only where it changes no number, as far as sizes go: float has them up to 2^24."""
        data, to = self.numbers(node.input[0]), self._graph.cast_to(node)
        if data is None or to in ("FLOAT", "DOUBLE"):
            return data
        if to not in ("INT32", "INT64"):
            return None
        is_whole = all(one.is_of_shape if isinstance(one, Origin) else one == int(one) for one in data.flat)
        return data if is_whole else None

    def _add(self, node: Any) -> Any:
        return self._computed(node, operator.add)

    def _mod(self, node: Any) -> Any:
        return self._computed(node, operator.mod)

    def _computed(self, node: Any, compute: Callable[[Any, Any], Any]) -> Any:
        """Of constants; PyTorch's exporter counts axes from the end by such arithmetic."""
        one, other = (self.numbers(name) for name in node.input)
        return None if one is None or other is None else np.asarray(compute(one, other), dtype=object)

    def _gather(self, node: Any) -> Any:
        data, at = self.numbers(node.input[0]), self.numbers(node.input[1])
        if data is None or at is None:
            return None
        return np.take(data, at.astype(np.int64), axis=self._graph.attribute(node, "axis", 0))

    def _unsqueeze(self, node: Any) -> Any:
        data, axes = self.numbers(node.input[0]), self._graph.constant(node.input[1])
        return None if data is None or axes is None else np.expand_dims(data, tuple(axes))

    def _squeeze(self, node: Any) -> Any:
        data = self.numbers(node.input[0])
        if data is None or len(node.input) < 2:
            return None if data is None else np.squeeze(data)
        axes = self._graph.constant(node.input[1])
        return None if axes is None else np.squeeze(data, tuple(axes))

    def _concat(self, node: Any) -> Any:
        parts = [self.numbers(name) for name in node.input]
        if any(part is None for part in parts):
            return None
        return np.concatenate(parts, axis=self._graph.attribute(node, "axis", 0))

    def _reshape(self, node: Any) -> Any:
        data, shape = self.numbers(node.input[0]), self.numbers(node.input[1])
        if data is None or shape is None or self._graph.attribute(node, "allowzero", 0):
            return None
        return data.reshape([int(size) or data.shape[axis] for axis, size in enumerate(shape)])

    def _transpose(self, node: Any) -> Any:
        data = self.numbers(node.input[0])
        return None if data is None else np.transpose(data, self._graph.perm(node) or None)

    def _slice(self, node: Any) -> Any:
        data = self.numbers(node.input[0])
        given = [self.numbers(name) if name else None for name in node.input[1:]]
        if data is None or len(given) < 2 or any(one is None for one in given):
            return None
        begins, ends, *others = ([int(number) for number in one.ravel()] for one in given if one is not None)
        axes = others[0] if others else list(range(len(begins)))
        steps = others[1] if len(others) > 1 else [1] * len(begins)
        parts = [slice(None)] * data.ndim
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
            parts[axis] = slice(begin, end, step)
        return data[tuple(parts)]


def _array(elements: list[Any], shape: list[Any]) -> Any:
    """As numpy would not make it of objects."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
