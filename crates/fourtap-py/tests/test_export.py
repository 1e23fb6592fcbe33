"""Programs that leave Python: torch.jit.trace, and ONNX by both exporters.

ONNX needs packages that the tests do without; where they are missing, these tests are skipped.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn

import fourtap
from fourtap.compat import transformers as compat
from fourtap.nn import MSDeformAttn

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
HEADS, CHANNELS, QUERIES, POINTS = 2, 4, 3, 5
SMALL, LARGE = (6, 8), (10, 14)


class Pyramid(nn.Module):
    """Two feature maps, whose sizes are read off the maps, as models do."""

    def __init__(self, levels: str) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, fine: Tensor, coarse: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        maps = (fine, coarse)
        value = torch.cat([map.flatten(2) for map in maps], 2).transpose(1, 2).unflatten(-1, (HEADS, CHANNELS))
        shapes: Any = [tuple(map.shape[-2:]) for map in maps]
        starts: Any = None
        if self.levels == "list and starts":
            starts = [0, fine.shape[-2] * fine.shape[-1]]
        elif self.levels == "tensor":
            shapes = torch.stack([torch._shape_as_tensor(map)[-2:] for map in maps])
        elif self.levels == "constants":
            shapes = [SMALL, (SMALL[0] // 2, SMALL[1] // 2)]
        return fourtap.ms_deform_attn(value, shapes, locations, weights, level_start_index=starts)


LEVELS = ["list", "list and starts", "tensor", "constants"]


def pyramid(size: tuple[int, int], device: str) -> tuple[Tensor, ...]:
    height, width = size
    images, channels = 2, HEADS * CHANNELS
    return (
        torch.randn(images, channels, height, width, device=device),
        torch.randn(images, channels, height // 2, width // 2, device=device),
        torch.rand(images, QUERIES, HEADS, 2, POINTS, 2, device=device) * 1.4 - 0.2,
        torch.rand(images, QUERIES, HEADS, 2, POINTS, device=device),
    )


def sizes_for(levels: str) -> list[tuple[int, int]]:
    return [SMALL] if levels == "constants" else [SMALL, LARGE]


@pytest.mark.parametrize("levels", LEVELS)
def test_traced_calls_take_other_image_sizes(levels: str, device: str) -> None:
    layer = Pyramid(levels)
    traced = torch.jit.trace(layer, pyramid(SMALL, device))
    assert "fourtap::msda" in str(traced.graph)
    kept = io.BytesIO()
    torch.jit.save(traced, kept)
    kept.seek(0)
    loaded = torch.jit.load(kept)
    for size in sizes_for(levels):
        operands = pyramid(size, device)
        assert torch.equal(traced(*operands), layer(*operands))
        assert torch.equal(loaded(*operands), layer(*operands))


def test_traced_calls_have_gradients(device: str) -> None:
    layer = Pyramid("list")
    traced = torch.jit.trace(layer, pyramid(SMALL, device))
    operands = [tensor.requires_grad_() for tensor in pyramid(LARGE, device)]
    named = dict(zip(("fine", "coarse", "locations", "weights"), operands, strict=True))
    found = traced(*operands)
    reference.assert_same_gradients(found, layer(*operands), named, torch.randn_like(found), 1e-6)


def test_a_traced_module_takes_other_image_sizes(device: str) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MSDeformAttn(8, n_levels=1, n_heads=2, n_points=2)

        def forward(self, query: Tensor, points: Tensor, features: Tensor) -> Tensor:
            shapes = [tuple(features.shape[-2:])]
            found: Tensor = self.attention(query, points, features.flatten(2).transpose(1, 2), shapes)
            return found

    def operands(height: int, width: int) -> tuple[Tensor, ...]:
        shapes = ((1, 3, 8), (1, 3, 1, 2), (1, 8, height, width))
        return tuple(torch.rand(shape, device=device) for shape in shapes)

    encoder = Encoder().to(device)
    traced = torch.jit.trace(encoder, operands(*SMALL))
    other = operands(*LARGE)
    reference.assert_close(traced(*other), encoder(*other), 1e-6)


def test_traced_dense_attention_computes_the_same(device: str) -> None:
    dtype = torch.float16 if device == "cuda" else torch.float32

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fourtap.scaled_dot_product_attention(query, key, value, is_causal=True)

    operands = [torch.randn(2, 2, 6, 16, device=device, dtype=dtype) for _ in range(3)]
    traced = torch.jit.trace(layer, operands)
    others = [torch.randn(1, 3, 9, 16, device=device, dtype=dtype) for _ in range(3)]
    assert torch.equal(traced(*others), layer(*others))


@pytest.fixture
def onnx_file(tmp_path: Any) -> Any:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    return tmp_path / "model.onnx"


def run_onnx(file: Any, operands: tuple[Tensor, ...]) -> list[Tensor]:
    import onnx
    import onnxruntime

    # Everybody's operators, so that any runtime runs it.
    assert all(node.domain in ("", "ai.onnx") for node in onnx.load(file).graph.node)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, dict(zip(names, (tensor.numpy() for tensor in operands), strict=True)))
    return [torch.from_numpy(tensor) for tensor in found]


@pytest.mark.parametrize("levels", LEVELS)
def test_onnx_by_tracing_takes_other_image_sizes_in_any_runtime(levels: str, onnx_file: Any) -> None:
    layer = Pyramid(levels)
    axes = {"fine": {2: "h", 3: "w"}, "coarse": {2: "h2", 3: "w2"}}
    names = ["fine", "coarse", "locations", "weights"]
    torch.onnx.export(
        layer,
        pyramid(SMALL, "cpu"),
        onnx_file,
        dynamo=False,
        opset_version=17,
        input_names=names,
        dynamic_axes={} if levels == "constants" else axes,
    )
    for size in sizes_for(levels):
        operands = pyramid(size, "cpu")
        reference.assert_close(run_onnx(onnx_file, operands)[0], layer(*operands), 1e-5)


@pytest.mark.parametrize("levels", ["list", "constants"])
def test_onnx_by_dynamo_takes_other_image_sizes_in_any_runtime(levels: str, onnx_file: Any) -> None:
    pytest.importorskip("onnxscript")
    layer = Pyramid(levels).eval()
    free = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    shapes = None if levels == "constants" else (free, free, None, None)
    torch.onnx.export(layer, pyramid(SMALL, "cpu"), dynamo=True, dynamic_shapes=shapes).save(onnx_file)
    for size in sizes_for(levels):
        operands = pyramid(size, "cpu")
        reference.assert_close(run_onnx(onnx_file, operands)[0], layer(*operands), 1e-5)


@pytest.fixture
def patched() -> Iterator[None]:
    compat.patch()
    yield
    compat.unpatch()


class Detector(nn.Module):
    """A model of transformers that takes an image and returns tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(pixel_values=image)
        return found.logits, found.pred_boxes


def detector(name: str, device: str) -> Detector:
    import test_models

    model, _ = test_models.build(name, device)
    return Detector(model).eval()


# Whether the model, traced as transformers has it, is right for images of another size than it was traced with.
TAKES_OTHER_SIZES = {"deformable_detr": False, "rt_detr": True, "rt_detr_v2": True, "d_fine": True}
FAMILIES = [pytest.param(name, marks=[] if name == "rt_detr" else pytest.mark.slow) for name in TAKES_OTHER_SIZES]


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_traced_models_compute_the_same(name: str, device: str, patched: None) -> None:
    model = detector(name, device)
    image, other = torch.randn(1, 3, 96, 128, device=device), torch.randn(1, 3, 128, 160, device=device)
    traced = torch.jit.trace(model, (image,), check_trace=False)
    assert "fourtap::msda" in str(traced.inlined_graph)
    for picture in [image, other] if TAKES_OTHER_SIZES[name] else [image]:
        for found, expected in zip(traced(picture), model(picture), strict=True):
            reference.assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_models_in_onnx_compute_what_they_do_without_us(name: str, onnx_file: Any) -> None:
    model = detector(name, "cpu")
    image = torch.randn(1, 3, 96, 128)

    def outputs() -> list[Tensor]:
        torch.onnx.export(model, (image,), onnx_file, dynamo=False, opset_version=17)
        return run_onnx(onnx_file, (image,))

    # Not against PyTorch, where that can be had: rounded otherwise, queries that score alike come in another order.
    # Deformable DETR without us is a program that onnxruntime does not take: it has no GridSample of those types.
    expected = list(model(image)) if name == "deformable_detr" else outputs()
    compat.patch()
    try:
        found = outputs()
    finally:
        compat.unpatch()
    for ours, theirs in zip(found, expected, strict=True):
        reference.assert_close(ours, theirs, 1e-5)
