"""Exports with our nodes, in ONNX Runtime with our library, and without it by the functions that the files carry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("onnxscript")

import test_models
from onnx_sessions import Outputs, Session, assert_close, assert_same_queries, onnx, ours

import fourtap
import fourtap.onnx
from fourtap.compat import transformers as compat
from fourtap.compat.mmcv import MultiScaleDeformableAttention
from fourtap.nn import MSDeformAttn

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CHANNELS, HEADS = 16, 2
SMALL, LARGE = (6, 8), (10, 14)
FREE = torch.export.Dim.DYNAMIC


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def maps(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    height, width = size
    return torch.randn(2, CHANNELS, height, width), torch.randn(2, CHANNELS, height // 2, width // 2)


def flat(*maps: Tensor) -> Tensor:
    return torch.cat([map.flatten(2) for map in maps], 2).transpose(1, 2)


def random_offsets(module: nn.Module) -> nn.Module:
    nn.init.normal_(module.sampling_offsets.weight, std=0.3)
    nn.init.normal_(module.attention_weights.weight, std=0.3)
    return module.eval()


class Encoder(nn.Module):
    """Our module, over feature maps whose sizes are read off them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = random_offsets(MSDeformAttn(CHANNELS, n_levels=2, n_heads=HEADS, n_points=3))

    def forward(self, query: Tensor, points: Tensor, fine: Tensor, coarse: Tensor, mask: Tensor) -> Tensor:
        shapes = [tuple(map.shape[-2:]) for map in (fine, coarse)]
        found: Tensor = self.attention(query, points, flat(fine, coarse), shapes, None, mask)
        return found


def encoder_operands(size: tuple[int, int], queries: int = 5, coordinates: int = 2) -> tuple[Tensor, ...]:
    fine, coarse = maps(size)
    mask = torch.rand(2, flat(fine, coarse).shape[1]) < 0.2
    return torch.randn(2, queries, CHANNELS), torch.rand(2, queries, 2, coordinates), fine, coarse, mask


ANY_SIZE = ({1: FREE}, {1: FREE}, {2: FREE, 3: FREE}, {2: FREE, 3: FREE}, {1: FREE})


@pytest.mark.parametrize("coordinates", [2, 4])
@torch.no_grad()
def test_a_module_of_ours_takes_other_sizes(coordinates: int, file: Path) -> None:
    layer = Encoder()
    fourtap.onnx.export(
        layer, encoder_operands(SMALL, coordinates=coordinates), file, dynamic_shapes=ANY_SIZE, verbose=False
    )
    for with_library in (True, False):
        session = Session(file, with_library=with_library)
        for size, queries in ((SMALL, 5), (LARGE, 7)):
            operands = encoder_operands(size, queries, coordinates)
            assert_close(session.run(*operands), [layer(*operands)], 1e-5)
        # Where both are there, the library is what runs.
        assert ours(session) == (2 if with_library else 0)


@torch.no_grad()
def test_inputs_that_do_not_fit_end_in_our_words(file: Path) -> None:
    fourtap.onnx.export(Encoder(), encoder_operands(SMALL), file, dynamic_shapes=ANY_SIZE, verbose=False)
    session = Session(file, with_library=True)
    query, points, fine, coarse, mask = encoder_operands(SMALL)
    with pytest.raises(Exception, match=r"fourtap: value_mask: expected shape \[2, 60\], found \[2, 59\]"):
        session.run(query, points, fine, coarse, mask[:, 1:].contiguous())
    with pytest.raises(Exception, match="fourtap: reference_points: expected shape"):
        session.run(query, points[:, :4].contiguous(), fine, coarse, mask)
    assert_close(session.run(query, points, fine, coarse, mask), session.run(query, points, fine, coarse, mask), 0)


class Pyramid(nn.Module):
    """The operators, called twice."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, fine: Tensor, coarse: Tensor, *operands: Tensor) -> Tensor:
        value = flat(fine, coarse).unflatten(-1, (HEADS, -1))
        of_fine = flat(fine).unflatten(-1, (HEADS, -1))
        shapes: Any = [tuple(map.shape[-2:]) for map in (fine, coarse)]
        if self.way == "locations":
            locations, weights = operands
            both = fourtap.ms_deform_attn(value, shapes, locations, weights)
            # Fewer levels than the other call has.
            return both + fourtap.ms_deform_attn(of_fine, shapes[:1], locations[:, :, :, :1], weights[:, :, :, :1])
        if self.way == "tensors":
            locations, weights = operands
            sizes = torch.tensor([list(SMALL), [SMALL[0] // 2, SMALL[1] // 2]])
            starts = torch.tensor([0, SMALL[0] * SMALL[1]])
            return fourtap.ms_deform_attn(value, sizes, locations, weights, level_start_index=starts)
        references, offsets, logits, mask = operands
        attend = fourtap.ms_deform_attn_from_projections
        if self.way == "nearest":
            points, sampling = [4, 2], "nearest"
            return attend(
                value, shapes, references, offsets, logits, points_per_level=points, sampling=sampling, box_scale=0.3
            )
        if self.way == "turns":
            # As many references as half the points, which take turns.
            references = references.unsqueeze(3) + torch.tensor([[0.0], [0.1], [0.2]])
            return attend(value, shapes, references, offsets, logits)
        masks = [mask, None] if self.way == "mask in the first call" else [None, mask]
        first, second = (attend(value, shapes, references, offsets, logits, value_mask=one) for one in masks)
        return first + 2 * second


WAYS = ["locations", "tensors", "nearest", "turns", "mask in the first call", "mask in the second call"]


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_the_operators(way: str, file: Path) -> None:
    layer = Pyramid(way).eval()
    fine, coarse = maps(SMALL)
    if way in ("locations", "tensors"):
        operands = [torch.rand(2, 5, HEADS, 2, 3, 2) * 1.4 - 0.2, torch.rand(2, 5, HEADS, 2, 3)]
    else:
        operands = [torch.rand(2, 5, 2, 4), torch.randn(2, 5, HEADS, 6, 2), torch.randn(2, 5, HEADS, 6)]
        operands.append(torch.rand(2, fine[0, 0].numel() + coarse[0, 0].numel()) < 0.3)
    given = {f"given_{at}": operand for at, operand in enumerate([fine, coarse, *operands])}
    fourtap.onnx.export(layer, tuple(given.values()), file, input_names=list(given), verbose=False)
    for with_library in (True, False):
        session = Session(file, with_library=with_library)
        assert_close(session.named(**given), [layer(*given.values())], 1e-5)
        assert bool(ours(session)) == with_library


@torch.no_grad()
def test_mmcv_s_module(file: Path) -> None:
    layer = random_offsets(MultiScaleDeformableAttention(CHANNELS, HEADS, num_levels=2, num_points=3, batch_first=True))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, query: Tensor, points: Tensor, fine: Tensor, coarse: Tensor, mask: Tensor) -> Tensor:
            sizes = [tuple(map.shape[-2:]) for map in (fine, coarse)]
            found: Tensor = self.layer(
                query,
                value=flat(fine, coarse),
                reference_points=points,
                spatial_shapes=sizes,
                key_padding_mask=mask,
            )
            return found

    model, operands = Model().eval(), encoder_operands(SMALL)
    fourtap.onnx.export(model, operands, file, verbose=False)
    for with_library in (True, False):
        session = Session(file, with_library=with_library)
        assert_close(session.run(*operands), [model(*operands)], 1e-5)
        assert bool(ours(session)) == with_library


@torch.no_grad()
def test_an_export_of_one_s_own_and_one_without_us_afterwards(file: Path) -> None:
    layer, operands = Encoder(), encoder_operands(SMALL)
    with fourtap.onnx.translation() as translation:
        program = torch.onnx.export(
            layer, operands, dynamo=True, custom_translation_table=translation.table, verbose=False
        )
    program.save(file)
    assert not onnx.load(file).functions
    assert_close(Session(file, with_library=True).run(*operands), [layer(*operands)], 1e-5)
    translation.add_functions(program)
    program.save(file)
    assert [function.name for function in onnx.load(file).functions] == ["MSDeformAttnFromProjections"]
    torch.onnx.export(layer, operands, dynamo=True, verbose=False).save(file)
    assert all(node.domain in ("", "ai.onnx") for node in onnx.load(file).graph.node)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    example = root / "crates/fourtap-onnx/examples/export.py"
    run = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout == "(1, 10, 64) True\n" * 4, run.stderr
    assert f"```python\n{example.read_text()}```" in (root / "docs/onnx.md").read_text()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(fourtap.UnsupportedError, match=r"^onnxscript: expected the package to be installed.*\[onnx\]"):
        fourtap.onnx.export(Encoder(), encoder_operands(SMALL))


def test_the_other_exporter_is_refused() -> None:
    with pytest.raises(fourtap.UnsupportedError, match="dynamo: expected True, found False"):
        fourtap.onnx.export(Encoder(), encoder_operands(SMALL), dynamo=False)


@pytest.fixture
def unpatched() -> Iterator[None]:
    yield
    compat.unpatch()


# Exports of whole models take half a minute each. Those that are missing PyTorch exports to no file that ONNX Runtime
# loads, with or without fourtap.
FAMILIES = [
    "deformable_detr",
    "grounding_dino",
    "rt_detr",
    "rt_detr_v2",
    "rt_detr_v2-discrete",
    "d_fine",
    "mask2former",
    "lw_detr",
    "rf_detr",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_patched_models_compute_what_they_do_without_us(name: str, file: Path, unpatched: None) -> None:
    model, inputs = test_models.build(name, "cpu")
    wrapped = Outputs(model, list(inputs)).eval()
    expected = wrapped(*inputs.values())
    compat.patch()
    fourtap.onnx.export(wrapped, tuple(inputs.values()), file, input_names=list(inputs), verbose=False)
    for with_library in (True, False):
        session = Session(file, with_library=with_library)
        compare = assert_same_queries if name.startswith("rt_detr_v2") else assert_close
        compare(session.named(**inputs), expected)
        assert ours(session) == (test_models.CASES[name].calls if with_library else 0)
