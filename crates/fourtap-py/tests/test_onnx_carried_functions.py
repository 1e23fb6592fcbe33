"""Models that carry our functions already, rewritten: new nodes share a function with those that were there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from onnx_layers import HEADS, LEVELS, SIZES, Layer, export, operands, sampled
from onnx_sessions import Session, assert_close, onnx
from torch import Tensor, nn

import fourtap.onnx
from fourtap.onnx import rewriting

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
FROM_LOCATIONS, FROM_PROJECTIONS = "MSDeformAttn", "MSDeformAttnFromProjections"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def assert_same(model: Any, file: Path, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
    """With our library, and without it."""
    file = file.with_name("rewritten.onnx")
    onnx.save(model, file)
    for with_library in (True, False):
        assert_close(Session(file, with_library=with_library).run(*given), [layer(*given)], 1e-5)


class Twice(Layer):
    """Two calls, of two levels and of one."""

    def forward(self, fine: Tensor, coarse: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        both = super().forward(fine, coarse, references, offsets, logits)
        locations = references[:, :, None, :1, None] + offsets[:, :, :, :1] / 10
        weights = logits[..., : logits.shape[-1] // LEVELS].softmax(-1).unsqueeze(3)
        return both + sampled((fine,), locations, weights)


def rewritten_in_part(file: Path, monkeypatch: pytest.MonkeyPatch, call: int, **options: Any) -> Any:
    find = rewriting.find
    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "find", lambda graph: find(graph)[call : call + 1])
        return fourtap.onnx.rewrite(file, sizes=SIZES, **options).model


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("with_functions", [True, False])
def test_new_calls_of_other_levels_share_a_function(
    first: int, with_functions: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The softmax is over heads, so that both calls are of one kind.
    layer = Twice(weights=lambda logits: logits.softmax(-2).unflatten(-1, (LEVELS, -1)))
    export(layer, file, operands())
    part = rewritten_in_part(file, monkeypatch, first)
    assert [function.name for function in part.functions] == [FROM_LOCATIONS]
    result = fourtap.onnx.rewrite(part, sizes=SIZES, with_functions=with_functions)
    # Kept either way: a function of one level would leave out the other one.
    assert result.replaced == 1 and [function.name for function in result.model.functions] == [FROM_LOCATIONS]
    for images, height, width in ((2, 4, 6), (1, 12, 20)):
        assert_same(result.model, file, layer, operands(images, height, width))
    with pytest.raises(fourtap.onnx.PatternError, match="found no GridSample"):
        fourtap.onnx.rewrite(result.model)


def test_nodes_without_a_function_get_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Twice(weights=lambda logits: logits.softmax(-2).unflatten(-1, (LEVELS, -1)))
    export(layer, file, operands())
    part = rewritten_in_part(file, monkeypatch, 0, with_functions=False)
    with pytest.raises(fourtap.UnsupportedError, match=r"with_functions: expected False .* MSDeformAttn without a fu"):
        fourtap.onnx.rewrite(part, sizes=SIZES)
    result = fourtap.onnx.rewrite(part, sizes=SIZES, with_functions=False)
    assert result.replaced == 1 and not result.model.functions


class Mixed(Layer):
    """A call of ours, exported as it is, and one that is composed of PyTorch's own operators."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, fine: Tensor, coarse: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        sizes = torch.tensor([[6.0, 4.0], [3.0, 2.0]])[:, None]
        locations = references[:, :, None, :, None] + offsets / sizes
        theirs = sampled((fine, coarse), locations, self.weights(logits))
        value = torch.cat([map.flatten(2) for map in (fine, coarse)], 2).transpose(1, 2).unflatten(-1, (HEADS, -1))
        ours = fourtap.ms_deform_attn_from_projections(
            value,
            [(4, 6), (2, 3)],
            references,
            offsets.flatten(3, 4),
            logits,
            sampling="nearest" if self.way == "nearest" else "bilinear",
            value_mask=value[..., 0, 0] > 0 if self.way == "masked" else None,
        )
        return theirs + ours


@pytest.mark.parametrize(
    ("way", "node"),
    [
        ("masked", FROM_LOCATIONS),
        pytest.param("plain", FROM_PROJECTIONS, marks=pytest.mark.slow),
        pytest.param("nearest", FROM_LOCATIONS, marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_exports_of_ours_are_rewritten(way: str, node: str, file: Path) -> None:
    pytest.importorskip("onnxscript")
    layer, given = Mixed(way).eval(), operands()
    fourtap.onnx.export(layer, given, file, verbose=False)
    result = fourtap.onnx.rewrite(file)
    assert (result.replaced, result.node) == (1, node)
    assert {function.name for function in result.model.functions} == {FROM_PROJECTIONS, node}
    assert_same(result.model, file, layer, given)
