"""Exports of PyTorch models with our nodes in them, each with a function for runtimes that do not have our library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

# Registers the operators that are translated here.
from fourtap import _exporting, _projected_registered, _registered  # noqa: F401
from fourtap.errors import InputError, UnsupportedError
from fourtap.onnx.expanding import expand
from fourtap.onnx.functions import DOMAIN, FROM_LOCATIONS, FROM_PROJECTIONS, INPUTS, OPTIONAL, Call, functions
from fourtap.onnx.missing import missing
from fourtap.onnx.packages import require
from fourtap.onnx.placing import unused_prefix

__all__ = ["Translation", "export", "translation"]

_PURPOSE = "an export to ONNX"
_TYPES = ("float", "float16", "bfloat16", "double", "int64", "int32", "bool")
# All operators used here are as they are in this opset in every later one.
_OPSET = 18


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] = (),
    file: Any = None,
    *,
    kwargs: dict[str, Any] | None = None,
    to: str = "fourtap",
    with_functions: bool = True,
    **options: Any,
) -> Any:
    """Export a model to ONNX, as ``torch.onnx.export(dynamo=True)`` does, with calls of fourtap in a form of ours.

    The model calls fourtap itself, has modules of :mod:`fourtap.nn`, or was patched by :mod:`fourtap.compat`.

    Args:
        model: The model, in the mode it is to run in (usually ``eval()``).
        args: Its arguments, as examples.
        file: Where to write the model, if anywhere.
        kwargs: Its arguments that have names.
        to: ``"fourtap"``: our nodes; ``"portable"``: operators that every runtime has, no GridSample among them.
        with_functions: Whether the file carries our nodes as functions of ONNX's own operators, so that it runs where
            our library is not registered, too.
        options: All else that ``torch.onnx.export`` takes, such as ``dynamic_shapes`` and ``input_names``.

    Returns:
        PyTorch's ``torch.onnx.ONNXProgram``.

    """
    if to not in ("fourtap", "portable"):
        raise InputError(f"to: expected fourtap or portable, found {to!r}")
    for package in ("onnx", "onnxscript"):
        require(package, _PURPOSE)
    if not options.pop("dynamo", True):
        raise UnsupportedError("dynamo: expected True, found False; without it exports have no nodes of ours")
    theirs = dict(options.pop("custom_translation_table", None) or {})
    # What is written below may exceed what a file can hold; `save` decides as torch.onnx.export would.
    saving = {name: options.pop(name) for name in ("external_data", "keep_initializers_as_inputs") if name in options}
    with translation() as ours:
        table = {**ours.table, **theirs}
        program = torch.onnx.export(model, args, kwargs=kwargs, dynamo=True, custom_translation_table=table, **options)
    if program is None:
        raise UnsupportedError("torch: expected a version whose torch.onnx.export(dynamo=True) returns a program")
    if to == "portable":
        _expand(program)
    elif with_functions:
        ours.add_functions(program)
    if file is not None:
        program.save(file, **saving)
    return program


def _expand(program: Any) -> None:
    ir = require("onnx_ir", _PURPOSE)
    model = program.model_proto
    expand(model, unused_prefix(model))
    program.model = ir.serde.deserialize_model(model)


@contextmanager
def translation() -> Iterator[Translation]:
    """Keep fourtap's operators in exports, for a ``torch.onnx.export`` of one's own.

    Example::

        with fourtap.onnx.translation() as ours:
            program = torch.onnx.export(model, args, dynamo=True, custom_translation_table=ours.table)
        ours.add_functions(program)
        program.save("model.onnx")

    """
    with _exporting.kept():
        yield Translation()


class Translation:
    """What PyTorch's exporter needs to know about our operators; for one export."""

    def __init__(self) -> None:
        """Of nothing yet."""
        onnxscript = require("onnxscript", _PURPOSE)
        self._op = getattr(onnxscript, f"opset{_OPSET}")
        opset = onnxscript.values.Opset(DOMAIN, 1)
        self._from_locations = onnxscript.values.Op(opset, FROM_LOCATIONS, _schema(FROM_LOCATIONS))
        self._from_projections = onnxscript.values.Op(opset, FROM_PROJECTIONS, _schema(FROM_PROJECTIONS))
        self._calls: list[Call] = []
        #: For ``torch.onnx.export(custom_translation_table=...)``.
        self.table: dict[Callable[..., Any], Callable[..., Any]] = {
            torch.ops.fourtap.msda.default: _function(self._msda),
            torch.ops.fourtap.msda_projected.default: _function(self._msda_projected),
            **missing(self._op),
        }

    def add_functions(self, program: Any) -> None:
        """Give a program, once it is exported, the functions that its nodes call where our library is not there."""
        ir = require("onnx_ir", _PURPOSE)
        for proto in functions(self._calls, program.model.opset_imports[""]):
            function = ir.serde.deserialize_function(proto)
            program.model.functions[function.identifier()] = function

    def _msda(
        self,
        value: Any,
        spatial_shapes: Any,
        level_start_index: Any,
        levels: Sequence[Any],
        sampling_locations: Any,
        attention_weights: Any,
        deterministic: bool,
    ) -> Any:
        shapes, starts, count = self._levels(spatial_shapes, level_start_index, levels, sampling_locations.shape[3])
        self._calls.append(Call(FROM_LOCATIONS, count))
        return self._from_locations(value, shapes, starts, sampling_locations, attention_weights)

    def _msda_projected(
        self,
        value: Any,
        spatial_shapes: Any,
        level_start_index: Any,
        levels: Sequence[Any],
        reference_points: Any,
        sampling_offsets: Any,
        attention_logits: Any,
        value_mask: Any,
        points_per_level: Sequence[int],
        nearest: bool,
        box_scale: Sequence[float],
        mask_is_applied: bool,
        deterministic: bool,
    ) -> Any:
        if attention_logits is None:
            raise UnsupportedError("attention_logits: expected a tensor in an export, found None")
        shapes, starts, count = self._levels(spatial_shapes, level_start_index, levels, len(points_per_level) or None)
        samples = attention_logits.shape[3]
        if not points_per_level:
            if not isinstance(samples, int):
                raise UnsupportedError("points_per_level: expected numbers in an export, found None")
            points_per_level = [samples // count] * count
        attributes: dict[str, Any] = {
            "points_per_level": list(points_per_level),
            "sampling": "nearest" if nearest else "bilinear",
        }
        if reference_points.shape[-1] == 4:
            # Written out, as the function knows no default.
            attributes["box_scale"] = list(box_scale) or [0.5 / max(points, 1) for points in points_per_level]
        value, mask = self._masked(value, None if mask_is_applied else value_mask)
        self._calls.append(Call(FROM_PROJECTIONS, count, bool(nearest), mask is not None))
        inputs = [value, shapes, starts, reference_points, sampling_offsets, attention_logits]
        return self._from_projections(*inputs, *([] if mask is None else [mask]), **attributes)

    def _masked(self, value: Any, mask: Any) -> tuple[Any, Any]:
        """Value and mask as the first call has them, with a mask or without: all calls share one function."""
        op = self._op
        first = next((call.masked for call in self._calls if call.name == FROM_PROJECTIONS), mask is not None)
        if mask is None and first:
            nobody = op.Cast(op.Constant(value_int=0), to=9)
            mask = op.Expand(nobody, op.Shape(value, start=0, end=2))
        elif mask is not None and not first:
            zero = op.CastLike(op.Constant(value_float=0.0), value)
            value, mask = op.Where(op.Unsqueeze(mask, op.Constant(value_ints=[2, 3])), zero, value), None
        return value, mask

    def _levels(self, shapes: Any, starts: Any, levels: Sequence[Any], count: Any) -> tuple[Any, Any, int]:
        """Sizes and starts of the levels as tensors, and how many there are."""
        op = self._op
        if shapes is None:
            count = len(levels) // 2
            if all(isinstance(size, int) for size in levels):
                numbers = op.Constant(value_ints=[int(size) for size in levels])
            else:
                one = op.Constant(value_ints=[1])
                parts = [
                    op.Constant(value_ints=[size]) if isinstance(size, int) else op.Reshape(size, one)
                    for size in levels
                ]
                numbers = op.Concat(*parts, axis=0)
            shapes = op.Reshape(numbers, op.Constant(value_ints=[-1, 2]))
        elif not isinstance(count, int):
            count = shapes.shape[0] if shapes.shape is not None else None
        if not isinstance(count, int):
            raise UnsupportedError("spatial_shapes: expected a number of levels that is known in an export, found none")
        if starts is None:
            sizes = op.ReduceProd(shapes, op.Constant(value_ints=[1]), keepdims=0)
            starts = op.CumSum(sizes, op.Constant(value_int=0), exclusive=1)
        return shapes, starts, count


def _schema(name: str) -> Any:
    """What PyTorch's exporter must know of a node: its inputs and attributes, and the type of its output."""
    defs = require("onnx.defs", _PURPOSE)
    kinds = defs.OpSchema.AttrType
    inputs = [defs.OpSchema.FormalParameter("value", "V")]
    for given in INPUTS[name][1:]:
        option = defs.OpSchema.FormalParameterOption.Optional if given in OPTIONAL else None
        inputs.append(
            defs.OpSchema.FormalParameter(given, f"T_{given}", **({} if option is None else {"param_option": option}))
        )
    return defs.OpSchema(
        name,
        DOMAIN,
        1,
        inputs=inputs,
        outputs=[defs.OpSchema.FormalParameter("out", "V")],
        type_constraints=[(one.type_str, [f"tensor({kind})" for kind in _TYPES], "") for one in inputs],
        attributes=[
            defs.OpSchema.Attribute("points_per_level", kinds.INTS, required=False),
            defs.OpSchema.Attribute("sampling", kinds.STRING, required=False),
            defs.OpSchema.Attribute("box_scale", kinds.FLOATS, required=False),
        ],
    )


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as a function: PyTorch notes things on what it is given, which methods do not allow."""

    @functools.wraps(method)
    def function(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named)

    return function
