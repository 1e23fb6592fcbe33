"""Nodes that are put into a graph, with the constants they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from fourtap.onnx.packages import require

__all__ = ["Builder"]

_PURPOSE = "building nodes"


class Builder:
    """Collects nodes. What follows from constants alone is computed at once, so that no runtime has to."""

    def __init__(self, prefix: str) -> None:
        """With names that begin with this."""
        self._prefix = prefix
        self._onnx = require("onnx", _PURPOSE)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def node(self, kind: str, *inputs: Any, domain: str = "", **attributes: Any) -> Any:
        """The name of what a node makes of these inputs, each a name or a constant; of constants alone, an array."""
        helper = self._onnx.helper
        if not domain and not any(isinstance(one, str) for one in inputs):
            names = [f"in_{at}" for at in range(len(inputs))]
            evaluator = require("onnx.reference", _PURPOSE).ReferenceEvaluator
            node = helper.make_node(kind, names, ["out"], **attributes)
            return evaluator(node).run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))[0]
        names = [self.name(one) for one in inputs]
        made = self._unused(kind)
        self.nodes.append(helper.make_node(kind, names, [made], name=made, domain=domain, **attributes))
        return made

    def name(self, given: Any) -> str:
        """The name of a tensor, which a constant gets now."""
        if isinstance(given, str):
            return given
        tensor = self._onnx.numpy_helper.from_array(np.asarray(given), self._unused("constant"))
        known = next((one for one in self.initializers if _is_same(one, tensor)), None)
        if known is not None:
            return str(known.name)
        self.initializers.append(tensor)
        return str(tensor.name)

    def _unused(self, what: str) -> str:
        return f"{self._prefix}_{what}_{len(self.nodes) + len(self.initializers)}"


def _is_same(one: Any, other: Any) -> bool:
    return bool(one.data_type == other.data_type and one.dims == other.dims and one.raw_data == other.raw_data)
