"""A model of one node, run by ONNX Runtime with our library."""

import numpy as np
import onnx.helper as helper
import onnxruntime
from onnx import TensorProto

import fourtap.onnx

inputs = [
    helper.make_tensor_value_info("value", TensorProto.FLOAT, ["N", "S", "M", "D"]),
    helper.make_tensor_value_info("spatial_shapes", TensorProto.INT64, ["L", 2]),
    helper.make_tensor_value_info("level_start_index", TensorProto.INT64, ["L"]),
    helper.make_tensor_value_info("sampling_locations", TensorProto.FLOAT, ["N", "Q", "M", "L", "P", 2]),
    helper.make_tensor_value_info("attention_weights", TensorProto.FLOAT, ["N", "Q", "M", "L", "P"]),
]
node = helper.make_node("MSDeformAttn", [one.name for one in inputs], ["out"], domain="fourtap")
graph = helper.make_graph([node], "attention", inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)])
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("fourtap", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=9)

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(fourtap.onnx.library_path())
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
(out,) = session.run(
    None,
    {
        # One image with one level, a row of two pixels; one head of one channel.
        "value": np.array([10, 20], np.float32).reshape(1, 2, 1, 1),
        "spatial_shapes": np.array([[1, 2]]),
        "level_start_index": np.array([0]),
        # One query, which looks halfway between them.
        "sampling_locations": np.full((1, 1, 1, 1, 1, 2), 0.5, np.float32),
        "attention_weights": np.ones((1, 1, 1, 1, 1), np.float32),
    },
)
print(out)  # [[[15.]]]
