"""Puts nodes into a model in the place of others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fourtap.onnx.functions import DOMAIN, Call
from fourtap.onnx.packages import require

__all__ = ["Replacement", "import_domain", "put", "unused_prefix"]


@dataclass
class Replacement:
    """A call of the operator as it is now."""

    out: str
    "The tensor that it makes, as before."
    nodes: list[Any]
    "What takes its place."
    initializers: list[Any]
    call: Call | None = None
    "What a function must know of it, if it is a node of ours."


def import_domain(model: Any, domain: str) -> None:
    """Let a model have nodes of a domain."""
    if all(one.domain != domain for one in model.opset_import):
        model.opset_import.append(require("onnx", "rewriting a model").helper.make_opsetid(domain, 1))


def unused_prefix(model: Any) -> str:
    """What no name in a model begins with; one that was rewritten before has names of ours."""
    used = {name for node in model.graph.node for name in [node.name, *node.output]}
    used.update(tensor.name for tensor in model.graph.initializer)
    prefixes = (f"{DOMAIN}{at}" if at else DOMAIN for at in itertools.count())
    return next(prefix for prefix in prefixes if not any(name.startswith(f"{prefix}_") for name in used))


def put(model: Any, replacements: Sequence[Replacement]) -> None:
    """Put nodes in the place of the last one of each call, and take out what then is computed for nobody."""
    at_end = {one.out: one for one in replacements}
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
