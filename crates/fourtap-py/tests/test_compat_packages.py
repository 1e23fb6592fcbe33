"""The packages themselves, where they are installed: the test environment does without them, for they are large.

To run these: ``pip install ultralytics rfdetr groundingdino-py``. What they compute is written down in ``stand_ins``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
import watching
from torch import Tensor, nn

from fourtap.compat import groundingdino, rfdetr, ultralytics

SHAPES = [(6, 9), (3, 4)]
PIXELS = 66
CHANNELS, HEADS, POINTS, BATCH, QUERIES = 12, 3, 2, 2, 7
TOLERANCES = {torch.float64: (1e-12, 1e-11), torch.float32: (2e-6, 1e-5)}


def ultralytics_module() -> tuple[nn.Module, Callable[..., Tensor], int]:
    pytest.importorskip("ultralytics")
    module = importlib.import_module("ultralytics.nn.modules.transformer")
    shapes = [list(shape) for shape in SHAPES]
    attention = module.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS)
    return attention, lambda query, points, value, mask: attention(query, points, value, shapes, mask), 1


def rf_detr_module() -> tuple[nn.Module, Callable[..., Tensor], int]:
    pytest.importorskip("rfdetr")
    module = importlib.import_module("rfdetr.models.ops.modules.ms_deform_attn")
    attention = module.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS)

    def call(query: Tensor, points: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        levels = (torch.tensor(SHAPES, device=query.device), torch.tensor([0, 54], device=query.device))
        return attention(query, points, value, *levels, mask)

    return attention, call, len(SHAPES)


def grounding_dino_module() -> tuple[nn.Module, Callable[..., Tensor], int]:
    pytest.importorskip("groundingdino")
    groundingdino.install()
    module = importlib.import_module("groundingdino.models.GroundingDINO.ms_deform_attn")
    attention = module.MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, batch_first=True)

    def call(query: Tensor, points: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        levels = {
            "spatial_shapes": torch.tensor(SHAPES, device=query.device),
            "level_start_index": torch.tensor([0, 54], device=query.device),
        }
        return attention(query=query, value=value, reference_points=points, key_padding_mask=mask, **levels)

    return attention, call, len(SHAPES)


PACKAGES = {
    "ultralytics": (ultralytics_module, ultralytics),
    "rfdetr": (rf_detr_module, rfdetr),
    "groundingdino": (grounding_dino_module, groundingdino),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("corners", [2, 4])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("package", list(PACKAGES))
def test_modules_compute_what_they_did(
    package: str, dtype: torch.dtype, corners: int, masked: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, compat = PACKAGES[package]
    module, call, levels = build()
    module.to(device, dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    random = {"device": device, "dtype": dtype}
    query = torch.randn(BATCH, QUERIES, CHANNELS, **random).requires_grad_()
    points = torch.rand(BATCH, QUERIES, levels, corners, **random).requires_grad_()
    value = torch.randn(BATCH, PIXELS, CHANNELS, **random).requires_grad_()
    mask = torch.rand(BATCH, PIXELS, device=device) < 0.3 if masked else None
    seen = watching.shapes_of_calls(monkeypatch)
    expected = call(query, points, value, mask)
    assert not seen
    names = compat.patch()
    found = call(query, points, value, mask)
    compat.unpatch()
    assert any(name.endswith(".forward") for name in names) and len(seen) == 1
    of_result, of_gradients = TOLERANCES[dtype]
    reference.assert_close(found, expected, of_result)
    tensors = {"query": query, "points": points, "value": value, **dict(module.named_parameters())}
    reference.assert_same_gradients(found, expected, tensors, torch.randn_like(expected), of_gradients)
    assert torch.equal(call(query, points, value, mask), expected)
    assert len(seen) == 1
