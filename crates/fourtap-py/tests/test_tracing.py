"""``torch.jit.trace`` and exports that trace: none of our lines makes the tracer warn."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourtap
from fourtap.compat.mmcv import MultiScaleDeformableAttention
from fourtap.nn import MSDeformAttn

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SHAPES = [(6, 9), (3, 4)]
TABLE, STARTS = torch.tensor(SHAPES), torch.tensor([0, 54])


class Calling(nn.Module):
    """A module around a function, and what that uses."""

    def __init__(self, function: Callable[..., Any], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, *operands: Tensor) -> Any:
        return self.function(*operands) if self.inner is None else self.function(self.inner, *operands)


def deformable() -> dict[str, tuple[Callable[..., Any], nn.Module | None, tuple[Tensor, ...]]]:
    module = MSDeformAttn(d_model=12, n_levels=2, n_heads=3, n_points=2)
    mmcv = MultiScaleDeformableAttention(embed_dims=12, num_heads=3, num_levels=2, num_points=2, batch_first=True)
    query, features = torch.rand(2, 7, 12), torch.rand(2, 66, 12)
    centres, boxes, mask = torch.rand(2, 7, 2, 2), torch.rand(2, 7, 2, 4), torch.rand(2, 66) > 0.8
    value, locations, weights = torch.rand(2, 66, 3, 4), torch.rand(2, 7, 3, 2, 2, 2), torch.rand(2, 7, 3, 2, 2)
    offsets, logits = torch.rand(2, 7, 3, 4, 2), torch.rand(2, 7, 3, 4)
    images = torch.rand(2, 12, 6, 9), torch.rand(2, 12, 3, 4)

    def of_images(module: nn.Module, query: Tensor, centres: Tensor, *images: Tensor) -> Any:
        features = torch.cat([image.flatten(2) for image in images], 2).transpose(1, 2)
        return module(query, centres, features, [tuple(image.shape[2:]) for image in images])

    given, projected = fourtap.ms_deform_attn, fourtap.ms_deform_attn_from_projections
    return {
        "module": (lambda m, q, r, f: m(q, r, f, SHAPES), module, (query, centres, features)),
        "module, tensors": (lambda m, *a: m(*a), module, (query, centres, features, TABLE, STARTS)),
        "module, mask": (lambda m, q, r, f, k: m(q, r, f, SHAPES, None, k), module, (query, boxes, features, mask)),
        "module, images": (of_images, module, (query, centres, *images)),
        "mmcv": (
            lambda m, q, f, r: m(q, value=f, reference_points=r, spatial_shapes=TABLE, level_start_index=STARTS),
            mmcv,
            (query, features, centres),
        ),
        "given": (lambda v, x, w: given(v, SHAPES, x, w), None, (value, locations, weights)),
        "given, tensors": (given, None, (value, TABLE, locations, weights)),
        "projected": (lambda v, *a: projected(v, SHAPES, *a), None, (value, centres, offsets, logits)),
        "projected, tensors": (projected, None, (value, TABLE, boxes, offsets, logits)),
        "projected, unlike": (
            lambda v, *a: projected(v, SHAPES, *a, points_per_level=[3, 1]),
            None,
            (value, centres, offsets, logits),
        ),
    }


def dense() -> dict[str, tuple[Callable[..., Any], nn.Module | None, tuple[Tensor, ...]]]:
    query, key, value = (torch.rand(2, 4, 16, 8) for _ in range(3))
    attend = fourtap.scaled_dot_product_attention
    return {
        "dense": (attend, None, (query, key, value)),
        "dense, mask": (attend, None, (query, key, value, torch.rand(16, 16) > 0.3)),
        "dense, groups": (lambda *a: attend(*a, enable_gqa=True), None, (query, key[:, :2], value[:, :2])),
        "dense, broadcast": (attend, None, (query, key[:1], value[:1])),
    }


@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "gradients"])
@pytest.mark.parametrize("name", [*deformable(), *dense()])
def test_tracing_warns_of_none_of_our_lines(name: str, gradients: bool) -> None:
    function, inner, operands = (deformable() | dense())[name]
    module = Calling(function, inner).eval()
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(module, operands, check_trace=False)
    with torch.no_grad():
        assert torch.equal(traced(*operands), module(*operands))


@pytest.mark.parametrize("name", deformable())
def test_exports_by_tracing_warn_of_none_of_our_lines(name: str) -> None:
    pytest.importorskip("onnx")
    function, inner, operands = deformable()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        torch.onnx.export(Calling(function, inner).eval(), operands, io.BytesIO(), dynamo=False, opset_version=17)
