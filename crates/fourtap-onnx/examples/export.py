"""A module of ours, exported and run by ONNX Runtime: with our library, and without it."""

import numpy as np
import onnxruntime
import torch

import fourtap.nn
import fourtap.onnx


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = fourtap.nn.MSDeformAttn(d_model=64, n_levels=2, n_heads=4, n_points=4)

    def forward(self, query, reference_points, fine, coarse):
        # Sizes are read off the maps, so that they may change.
        shapes = [tuple(map.shape[-2:]) for map in (fine, coarse)]
        pixels = torch.cat([map.flatten(2) for map in (fine, coarse)], 2).transpose(1, 2)
        return self.attention(query, reference_points, pixels, shapes)


def tensors(height: int, width: int) -> tuple[torch.Tensor, ...]:
    fine, coarse = torch.rand(1, 64, height, width), torch.rand(1, 64, height // 2, width // 2)
    return torch.rand(1, 10, 64), torch.rand(1, 10, 2, 2), fine, coarse


layer = Layer().eval()
free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
fourtap.onnx.export(layer, tensors(8, 12), "layer.onnx", dynamic_shapes=(None, None, free, free), verbose=False)

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(fourtap.onnx.library_path())
with_library = onnxruntime.InferenceSession("layer.onnx", options, providers=["CPUExecutionProvider"])
anywhere = onnxruntime.InferenceSession("layer.onnx", providers=["CPUExecutionProvider"])
for given in (tensors(8, 12), tensors(20, 30)):
    names = [one.name for one in anywhere.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
    with torch.no_grad():
        expected = layer(*given).numpy()
    for session in (with_library, anywhere):
        (found,) = session.run(None, feed)
        print(found.shape, np.allclose(found, expected, atol=1e-5))  # (1, 10, 64) True
