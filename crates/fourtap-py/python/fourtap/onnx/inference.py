"""Element types and shapes of a model's tensors, as far as they follow from its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fourtap.onnx.functions import NODES, TENSORRT
from fourtap.onnx.packages import require

__all__ = ["Inferred", "infer"]

# In the place of nodes whose shapes ONNX does not know: what they make has the shape that this body has.
_DOMAIN = "fourtap.outline"
_OUTLINE = """
<domain: "fourtap.outline", opset_import: ["": 17]>
{name} (value, shapes, starts, {others}) => (out)
{{
    query_axes = Constant <value_ints = [0, 0, -1]> ()
    by_query = Reshape ({of_queries}, query_axes)
    of_query = ReduceMax <axes = [2]> (by_query)
    channel_axes = Constant <value_ints = [0, 0, -1]> ()
    by_pixel = Reshape (value, channel_axes)
    of_pixel = ReduceMax <axes = [1]> (by_pixel)
    of_query_too = CastLike (of_query, value)
    merged = Add (of_query_too, of_pixel)
    last = Constant <value_ints = [2]> ()
    of_query_apart = Unsqueeze (of_query_too, last)
    of_pixel_apart = ReduceMax <axes = [1]> (value)
    apart = Add (of_query_apart, of_pixel_apart)
    out = Identity ({result})
}}
"""
# Constants that shapes are made of are far smaller; larger ones would only be copied.
_LARGEST_CONSTANT = 1024


@dataclass
class Inferred:
    """What is known of tensors, by their names."""

    types: Mapping[str, int] = field(default_factory=dict)
    "Element types, numbers of ``onnx.TensorProto``."
    shapes: Mapping[str, list[int | None]] = field(default_factory=dict)
    "Sizes of axes, None for one that may change. Tensors of an unknown number of axes are not in it."


def infer(model: Any) -> Inferred:
    """Of an ``onnx.ModelProto``, which is not changed.

    Shapes that the file states for tensors between its inputs and outputs are not trusted: they are those of the
    export, even where inputs were given dynamic axes since.
    """
    onnx = require("onnx", "a search for patterns")
    outline = _outline(onnx, model)
    try:
        graph = onnx.shape_inference.infer_shapes(outline, data_prop=True).graph
    except Exception:  # a model that has nodes nobody knows
        graph = outline.graph
    infos = [*graph.value_info, *graph.input, *graph.output]
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    shapes = {
        info.name: [axis.dim_value if axis.HasField("dim_value") else None for axis in info.type.tensor_type.shape.dim]
        for info in infos
        if info.type.tensor_type.HasField("shape")
    }
    for tensor in model.graph.initializer:
        types[tensor.name], shapes[tensor.name] = tensor.data_type, list(tensor.dims)
    return Inferred(types, shapes)


def _outline(onnx: Any, model: Any) -> Any:
    """The model without its weights, which become inputs, and without stated shapes."""
    graph = onnx.GraphProto()
    graph.name = "outline"
    graph.node.extend(model.graph.node)
    ours = [node for node in graph.node if node.op_type in NODES]
    for node in ours:
        node.domain = _DOMAIN
        node.ClearField("attribute")
    given = {info.name for info in model.graph.input}
    graph.input.extend(model.graph.input)
    for tensor in model.graph.initializer:
        elements = 1
        for size in tensor.dims:
            elements *= size
        if elements <= _LARGEST_CONSTANT:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    # What nodes of other domains make has only the type that the file states.
    others = {name for node in graph.node if node.domain not in ("", "ai.onnx") for name in node.output}
    for info in [*model.graph.value_info, *model.graph.output]:
        if info.name in others and info.type.HasField("tensor_type"):
            graph.value_info.append(
                onnx.helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, None)
            )
    made = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    made.functions.extend(model.functions)
    if ours:
        made.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    made.functions.extend(_stand_in(node) for node in {node.op_type: node for node in ours}.values())
    return made


def _stand_in(node: Any) -> Any:
    """A function by the name of a node of ours, which makes tensors of the same shape."""
    parser = require("onnx.parser", "a search for patterns")
    others = ["locations", "weights"] if len(node.input) == 5 else ["references", "offsets", "logits", "mask"]
    result = "apart" if node.op_type == TENSORRT else "merged"
    text = _OUTLINE.format(name=node.op_type, others=", ".join(others), of_queries=others[1], result=result)
    return parser.parse_function(text)
