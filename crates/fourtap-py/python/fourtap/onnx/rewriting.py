"""Puts one node in the place of deformable attention that was exported as ONNX's own operators."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fourtap.errors import InputError, UnsupportedError
from fourtap.onnx.errors import PatternError
from fourtap.onnx.expanding import expand
from fourtap.onnx.functions import DOMAIN, FORMS, FROM_PROJECTIONS, NODES, TENSORRT, Call, calls_of, functions
from fourtap.onnx.graph import Graph
from fourtap.onnx.inference import infer
from fourtap.onnx.packages import require
from fourtap.onnx.pattern import Attention, find
from fourtap.onnx.placing import import_domain, put, unused_prefix
from fourtap.onnx.replacing import TENSORRT_DOMAIN, replacement_of

__all__ = ["Rewritten", "rewrite"]

_PURPOSE = "rewriting a model"
# Attributes of functions have defaults since version 9 of the format.
_OLDEST_IR = 9
# A message of protobuf holds less than 2 GiB.
_LARGEST_MESSAGE = 2**31 - 2**20


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
    """Put another form in the place of every deformable attention that a model has as GridSample and what is around it.

    Such models are what PyTorch exports of Deformable DETR, RT-DETR, D-FINE, Grounding DINO and their kin as they come.

    Args:
        source: A file, or an ``onnx.ModelProto``, which is not changed.
        target: Where to write the result, if anywhere.
        to: ``"fourtap"``: our nodes; ``"tensorrt"``: those of TensorRT's plugin, which our library has, too;
            ``"portable"``: operators that every runtime has, no GridSample among them. The last takes models with
            nodes of ours, of mmcv and of TensorRT's plugin, too.
        verify: Whether to run both models and compare them, in ONNX Runtime on the CPU, with our library and, where the
            result carries functions, without it.
        inputs: What to run them on; by default random images and other numbers, at two sizes where axes are dynamic.
        sizes: Of dynamic axes by their names, for random inputs; two numbers are used one after the other.
        with_functions: Whether the result carries our nodes as functions, so that it runs where our library is not
            registered, too. Only our nodes have them. Functions that a model carries already are kept either way, and
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
    if to not in FORMS:
        raise InputError(f"to: expected one of {', '.join(FORMS)}, found {to!r}")
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
    prefix = unused_prefix(model)
    replacements = [
        replacement_of(
            attention,
            types,
            f"{prefix}_{at}",
            for_tensorrt=to == "tensorrt",
            with_projections=is_shared or to != "fourtap",
        )
        for at, attention in enumerate(_attentions(graph, to))
    ]
    calls = [one.call for one in replacements if one.call is not None] if to == "fourtap" else []
    names = " and ".join(sorted({call.name for call in calls}))
    if with_functions:
        _require_functions(model, calls, carried)
    else:
        # Calls beside those that a function was written for would silently lose levels.
        calls = [call for call in calls if call.name in carried]
    put(model, replacements)
    if to == "portable":
        replacements = expand(model, f"{prefix}_portable", replacements)
        names = "portable form"
    elif to == "tensorrt":
        import_domain(model, TENSORRT_DOMAIN)
        names = TENSORRT
    else:
        import_domain(model, DOMAIN)
    if calls:
        _carry(model, calls, carried)
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


def _attentions(graph: Graph, to: str) -> list[Attention]:
    """The calls made of GridSample; none where the model has nodes that can be taken instead."""
    others = sorted({node.op_type for node in graph.nodes if node.op_type in NODES})
    try:
        return find(graph)
    except PatternError as error:
        if not others:
            raise
        if to == "portable":
            return []
        raise PatternError(f'{error}; to="portable" takes the nodes {" and ".join(others)} of the model') from error


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
