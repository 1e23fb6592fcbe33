"""The arithmetic before sampling becomes part of a node only if it is proven to be the node's, at every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_layers
import pytest
import torch
from onnx_layers import LEVELS, POINTS, SIZES, Layer, export, operands, widths_and_heights
from onnx_sessions import Session, assert_close, onnx
from torch import Tensor

import fourtap.onnx

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


def assert_same_at_other_sizes(layer: Layer, file: Path, model: Any, *, coordinates: int = 2) -> None:
    """With our library and without it."""
    rewritten = file.with_name("rewritten.onnx")
    onnx.save(model, rewritten)
    original = Session(file, with_library=False)
    for with_library in (True, False):
        session = Session(rewritten, with_library=with_library)
        for images, height, width, queries in ((2, 4, 6, 5), (1, 12, 20, 7), (3, 6, 4, 1)):
            given = operands(images, height, width, queries, coordinates=coordinates)
            expected = original.run(*given)
            assert_close(expected, [layer(*given)], 1e-5)
            assert_close(session.run(*given), expected, 1e-5)


def heights_and_widths(sizes: Tensor) -> Tensor:
    return sizes[None, None, None, :, None, :]


def doubled(sizes: Tensor) -> Tensor:
    return 2 * widths_and_heights(sizes)


def of_other_levels(sizes: Tensor) -> Tensor:
    return widths_and_heights(sizes.flip(0))


def of_the_first_level(sizes: Tensor) -> Tensor:
    return widths_and_heights(sizes[:1])


def by_points(sizes: Tensor) -> Tensor:
    """The sizes of levels, but along the axis of points."""
    return sizes.flip(1)[None, None, None, None, :, :]


def of_the_export(sizes: Tensor) -> Tensor:
    """Constants, the right ones at the size of the export."""
    return torch.tensor([[6.0, 4.0], [3.0, 2.0]])[None, None, None, :, None, :]


def by_two_ways(sizes: Tensor) -> Tensor:
    """The same numbers, gathered and joined."""
    pairs = [torch.stack([sizes[level, 1], sizes[level, 0]]) for level in range(LEVELS)]
    return torch.cat(pairs).view(1, 1, 1, LEVELS, 1, 2)


@pytest.mark.parametrize(
    ("divisor", "node"),
    [
        (widths_and_heights, FROM_PROJECTIONS),
        (by_two_ways, FROM_PROJECTIONS),
        (heights_and_widths, FROM_LOCATIONS),
        (doubled, FROM_LOCATIONS),
        (of_other_levels, FROM_LOCATIONS),
        (of_the_first_level, FROM_LOCATIONS),
        (by_points, FROM_LOCATIONS),
        (of_the_export, FROM_LOCATIONS),
    ],
)
def test_offsets_are_folded_if_divided_by_widths_and_heights(divisor: Any, node: str, file: Path) -> None:
    layer = Layer(divisor)
    export(layer, file, operands())
    # Without a comparison, which must not be what keeps results the same.
    result = fourtap.onnx.rewrite(file, verify=False)
    assert result.node == node
    assert_same_at_other_sizes(layer, file, result.model)


@pytest.mark.parametrize(("divisor", "node"), [(of_the_export, FROM_PROJECTIONS), (heights_and_widths, FROM_LOCATIONS)])
def test_constants_are_the_sizes_of_a_model_of_fixed_size(divisor: Any, node: str, file: Path) -> None:
    layer, given = Layer(divisor), operands()
    export(layer, file, given, sizes_change=False)
    result = fourtap.onnx.rewrite(file, file.with_name("rewritten.onnx"))
    assert result.node == node and result.error is not None and result.error < 1e-5
    assert_close(Session(file.with_name("rewritten.onnx"), with_library=True).run(*given), [layer(*given)], 1e-5)


def by_level(logits: Tensor) -> Tensor:
    """A softmax over the points of each level alone."""
    return logits.unflatten(-1, (LEVELS, POINTS)).softmax(-1)


def by_level_on_four_axes(logits: Tensor) -> Tensor:
    weights = logits.flatten(2).unflatten(-1, (-1, POINTS)).softmax(-1)
    return weights.view(*logits.shape[:3], LEVELS, POINTS)


def over_levels(logits: Tensor) -> Tensor:
    return logits.unflatten(-1, (LEVELS, POINTS)).softmax(-2)


def over_heads(logits: Tensor) -> Tensor:
    return logits.softmax(-2).unflatten(-1, (LEVELS, POINTS))


@pytest.mark.parametrize("weights", [by_level, by_level_on_four_axes, over_levels, over_heads, torch.sigmoid])
@pytest.mark.parametrize("coordinates", [2, 4])
def test_weights_that_are_no_softmax_over_all_samples_stay(weights: Any, coordinates: int, file: Path) -> None:
    if weights is torch.sigmoid:
        weights = lambda logits: logits.unflatten(-1, (LEVELS, POINTS)).sigmoid()  # noqa: E731
    layer = Layer(weights=weights)
    export(layer, file, operands(coordinates=coordinates))
    result = fourtap.onnx.rewrite(file, sizes={name: both[0] for name, both in SIZES.items()})
    assert result.node == FROM_LOCATIONS and result.error is not None and result.error < 1e-5
    assert_same_at_other_sizes(layer, file, result.model, coordinates=coordinates)


def test_boxes_are_folded(file: Path) -> None:
    layer = Layer()
    export(layer, file, operands(coordinates=4))
    result = fourtap.onnx.rewrite(file, verify=False)
    assert result.node == FROM_PROJECTIONS
    assert_same_at_other_sizes(layer, file, result.model, coordinates=4)


def test_references_of_points_are_not_taken_for_those_of_levels(file: Path) -> None:
    class ByPoints(Layer):
        """Each point of a level has a reference of its own, the same in all levels."""

        def forward(self, fine: Tensor, coarse: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
            maps = (fine, coarse)
            sizes = torch.stack([torch._shape_as_tensor(map)[2:] for map in maps])
            locations = references[:, :, None, None] + offsets / self.divisor(sizes)
            return onnx_layers.sampled(maps, locations, self.weights(logits))

    layer = ByPoints()
    export(layer, file, operands())
    result = fourtap.onnx.rewrite(file, verify=False)
    assert result.node == FROM_LOCATIONS
    assert_same_at_other_sizes(layer, file, result.model)


def test_shapes_that_the_file_states_are_not_trusted(file: Path) -> None:
    """Those of the export, in a model whose inputs were given dynamic axes since."""
    from fourtap.onnx.inference import infer

    export(Layer(), file, operands())
    model = onnx.load(file)
    shaped = next(node.output[0] for node in model.graph.node if node.op_type == "Shape")
    product = next(node.output[0] for node in model.graph.node if node.op_type == "Softmax")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(product, onnx.TensorProto.FLOAT, [2, 5, 2, 4]))
    known = infer(model)
    assert known.shapes[product] == [None, None, 2, 4] and known.shapes[shaped] == [4]
