"""A graph of ONNX as the search for patterns asks about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fourtap.onnx.errors import PatternError
from fourtap.onnx.inference import Inferred
from fourtap.onnx.packages import require

__all__ = ["Graph"]

_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


class Graph:
    """The nodes of a model, by what they make and by what they take."""

    def __init__(self, model: Any, inferred: Inferred) -> None:
        """Of an ``onnx.ModelProto``, and what is known of its tensors."""
        self._onnx = require("onnx", "a search for patterns")
        self.inferred = inferred
        self.nodes = list(model.graph.node)
        self._producers = {name: node for node in self.nodes for name in node.output}
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._consumers: dict[str, list[Any]] = {}
        for node in self.nodes:
            # Not those that only ask for a shape: they do not stand in the way of taking a tensor out.
            if node.op_type not in ("Shape", "Size"):
                for name in dict.fromkeys(node.input):
                    self._consumers.setdefault(name, []).append(node)

    def producer(self, name: str) -> Any:
        """The node that makes a tensor, or None."""
        return self._producers.get(name)

    def producer_through(self, name: str, through: Sequence[str]) -> Any:
        """The node that makes a tensor, behind nodes of these kinds."""
        node = self.producer(name)
        while node is not None and node.op_type in through:
            node = self.producer(node.input[0])
        return node

    def consumers(self, name: str) -> list[Any]:
        """The nodes that take a tensor, but for those that take its shape."""
        return self._consumers.get(name, [])

    def only_consumer(self, name: str, *, through: Sequence[str] = ()) -> Any:
        """The one node that takes a tensor, behind nodes of these kinds."""
        while True:
            nodes = self.consumers(name)
            if len(nodes) != 1:
                raise PatternError(f"expected one node that takes {name}, found {len(nodes)}")
            if nodes[0].op_type not in through:
                return nodes[0]
            name = nodes[0].output[0]

    def source_among(self, names: Sequence[str], source: str, *, through: Sequence[str]) -> str:
        """Which of these tensors comes from another one, through nodes of these kinds."""
        for name in names:
            at = name
            while at != source:
                node = self.producer(at)
                if node is None or node.op_type not in through:
                    break
                at = node.input[0]
            if at == source:
                return name
        return source

    def shape(self, name: str) -> Sequence[int | None] | None:
        """Sizes of a tensor's axes, None for one that may change; None if the number of axes is not known."""
        return self.inferred.shapes.get(name)

    def cast_to(self, node: Any) -> str:
        """The element type that a Cast makes, by its name."""
        return str(self._onnx.TensorProto.DataType.Name(self.attribute(node, "to", 0)))

    def producer_in_float(self, name: str, through: Sequence[str] = ()) -> Any:
        """The node that makes a tensor, behind nodes of these kinds and casts that round, but do not cut off."""
        node = self.producer(name)
        while node is not None and (
            node.op_type in through or (node.op_type == "Cast" and self.cast_to(node) in _FLOATS)
        ):
            node = self.producer(node.input[0])
        return node

    def attribute(self, node: Any, name: str, default: Any) -> Any:
        """An attribute of a node."""
        for attribute in node.attribute:
            if attribute.name == name:
                return self._onnx.helper.get_attribute_value(attribute)
        return default

    def perm(self, node: Any) -> list[int] | None:
        """How a node permutes axes; None if that is not what it does."""
        return list(self.attribute(node, "perm", [])) if node.op_type == "Transpose" else None

    def array(self, name: str) -> Any:
        """The numbers of a constant tensor, in its shape; None if it is computed."""
        if name in self._initializers:
            return self._onnx.numpy_helper.to_array(self._initializers[name])
        node = self.producer(name)
        if node is not None and node.op_type == "Identity":
            return self.array(node.input[0])
        if node is None or node.op_type != "Constant":
            return None
        value = node.attribute[0]
        content = self._onnx.helper.get_attribute_value(value)
        return self._onnx.numpy_helper.to_array(content) if value.name == "value" else np.array(content)

    def constant(self, name: str) -> list[Any] | None:
        """The same in one list."""
        array = self.array(name)
        return None if array is None else list(array.ravel().tolist())

    def number(self, name: str) -> Any:
        """The number in a constant tensor of one; None if it is not such a tensor."""
        numbers = self.constant(name)
        return numbers[0] if numbers is not None and len(numbers) == 1 else None

    def length_of_part(self, node: Any, name: str) -> int | None:
        """How much of its axis a Split or a Slice gives to a tensor, if that is known."""
        if node.op_type == "Split":
            lengths = self.constant(node.input[1]) if len(node.input) > 1 else None
            return None if lengths is None else int(lengths[list(node.output).index(name)])
        begin, end = (self.number(given) for given in node.input[1:3])
        return int(end - begin) if begin is not None and end is not None and 0 <= begin < end < 2**31 else None
