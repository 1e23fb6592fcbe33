"""Repositories whose modules have a number of points for each level, and what is patched of repositories."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
import stand_ins
import torch
import watching
from torch import Tensor, nn

import fourtap
from fourtap.compat import _rtdetr_modules as modules
from fourtap.compat import rtdetr

CHANNELS, HEADS, BATCH, QUERIES = 12, 3, 2, 7
POINTS = [3, 1]
TOLERANCES = {torch.float64: (1e-12, 1e-11), torch.float32: (2e-6, 1e-5)}
SQUARE, WIDE, HIGH = [(5, 5), (3, 3)], [(4, 9), (3, 4)], [(9, 4), (4, 3)]


@pytest.fixture(autouse=True)
def repository(tmp_path: Path) -> Iterator[None]:
    with stand_ins.installed(stand_ins.REPOSITORY, tmp_path):
        yield
        rtdetr.unpatch()


def imported(name: str) -> Any:
    return importlib.import_module(f"repository.zoo.{name}")


def by_level(value: Tensor, shapes: list[tuple[int, int]]) -> tuple[Tensor, ...]:
    """As D-FINE's decoder splits its features, once for all layers."""
    heads = value.unflatten(-1, (HEADS, -1)).permute(0, 2, 3, 1)
    return heads.split([height * width for height, width in shapes], dim=-1)


class Call:
    """A module of one of the repositories and what it is called with."""

    def __init__(
        self, name: str, device: str, shapes: list[tuple[int, int]] = WIDE, method: str = "default", **options: Any
    ) -> None:
        dtype = options.get("dtype", torch.float64)
        self.listed = name == "dfine_decoder"
        self.shapes, self.method, self.mask = shapes, method, options.get("mask")
        self.module: Any = imported(name).MSDeformableAttention(CHANNELS, HEADS, len(POINTS), POINTS, method, 0.7)
        self.module.to(device, dtype)
        random = {"device": device, "dtype": dtype}
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        self.query = torch.randn(BATCH, QUERIES, CHANNELS, **random).requires_grad_()
        self.boxes = torch.rand(BATCH, QUERIES, 1, 4, **random).requires_grad_()
        pixels = sum(height * width for height, width in shapes)
        self.value = torch.randn(BATCH, pixels, CHANNELS, **random).requires_grad_()
        if self.mask is True:
            self.mask = torch.rand(BATCH, pixels, device=device) < 0.7

    def __call__(self) -> Tensor:
        value = by_level(self.value, self.shapes) if self.listed else self.value
        mask = {} if self.mask is None else {"value_mask": self.mask}
        found: Tensor = self.module(self.query, self.boxes, value, self.shapes, **mask)
        return found

    @property
    def expected(self) -> Tensor:
        """By the oracle, not by the stand-in, whose columns end where rows do."""
        module, value = self.module, self.value
        value = value if self.listed else module.value_proj(value)
        found = reference.from_projections(
            value.unflatten(-1, (HEADS, -1)),
            self.shapes,
            self.boxes,
            module.sampling_offsets(self.query).unflatten(-1, (HEADS, -1, 2)),
            module.attention_weights(self.query).unflatten(-1, (HEADS, -1)),
            points=POINTS,
            mask=None if self.mask is None else ~self.mask,
            nearest=self.method == "discrete",
            box_scale=[0.7 / count for count in POINTS],
        )
        result: Tensor = found if self.listed else module.output_proj(found)
        return result

    @property
    def differentiable(self) -> dict[str, Tensor]:
        tensors = {"query": self.query, "value": self.value, **dict(self.module.named_parameters())}
        if self.method == "default":
            return {**tensors, "boxes": self.boxes}
        return {name: tensor for name, tensor in tensors.items() if "sampling_offsets" not in name}


@pytest.mark.parametrize("name", ["rtdetrv2_decoder", "dfine_decoder"])
@pytest.mark.parametrize("method", ["default", "discrete"])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_results_and_gradients_are_those_of_the_original(
    name: str, method: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(name, device, SQUARE, method, dtype=dtype)
    rtdetr.patch(call.module)
    with monkeypatch.context() as patch:
        # From projections: nothing samples at given locations.
        patch.setattr(fourtap.attention, "ms_deform_attn", None)
        found = call()
    of_result, of_gradients = TOLERANCES[dtype]
    reference.assert_close(found, call.expected, of_result)
    grad_out = torch.randn_like(found)
    reference.assert_same_gradients(found, call.expected, call.differentiable, grad_out, of_gradients)
    rtdetr.unpatch()
    reference.assert_close(call(), found, of_result)


def test_masks_are_true_for_pixels_that_count(device: str) -> None:
    call = Call("rtdetrv2_decoder", device, mask=True)
    before = call()
    rtdetr.patch(call.module)
    reference.assert_close(call(), before, 1e-12)
    reference.assert_close(call(), call.expected, 1e-12)
    # Numbers may be anything, so the original multiplies by them.
    call.mask = call.mask.double() * 0.5
    halved = call()
    rtdetr.unpatch()
    reference.assert_close(halved, call(), 1e-12)


@pytest.mark.parametrize("name", ["rtdetrv2_decoder", "dfine_decoder"])
def test_columns_of_nearest_pixels_end_where_rows_do(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(name, device, WIDE, "discrete")
    before = call()
    # The test would prove nothing if all points were inside of the square.
    assert (before - call.expected).abs().max() > 1e-3
    rtdetr.patch(call.module)
    seen = watching.shapes_of_calls(monkeypatch)
    reference.assert_close(call(), before, 1e-12)
    assert len(seen) == 1


def test_levels_that_are_higher_than_wide_have_all_their_columns(device: str) -> None:
    call = Call("dfine_decoder", device, HIGH, "discrete")
    rtdetr.patch(call.module)
    reference.assert_close(call(), call.expected, 1e-12)


def test_parts_of_one_tensor_are_not_copied(device: str) -> None:
    call = Call("dfine_decoder", device)
    whole = call.value.detach()
    parts = by_level(whole, WIDE)
    joined = modules.one_tensor(parts, WIDE)
    assert joined.data_ptr() == whole.data_ptr()
    assert torch.equal(joined, whole.unflatten(-1, (HEADS, -1)))
    # Others are, with the same result.
    for others in ([part.clone() for part in parts], by_level(call.value, WIDE)):
        copied = modules.one_tensor(others, WIDE)
        assert copied.data_ptr() != whole.data_ptr()
        assert torch.equal(copied, joined)
    # Neighbours, but in the other order.
    swapped = by_level(whole, [(3, 4), (4, 9)])[::-1]
    assert torch.equal(modules.one_tensor(swapped, WIDE), torch.cat(swapped, dim=-1).permute(0, 3, 1, 2))


def core_operands(device: str, shapes: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    random = {"device": device, "dtype": torch.float64}
    pixels = sum(height * width for height, width in shapes)
    value = torch.randn(BATCH, pixels, CHANNELS, **random).requires_grad_()
    locations = (torch.rand(BATCH, QUERIES, HEADS, sum(POINTS), 2, **random) * 1.4 - 0.2).requires_grad_()
    weights = torch.randn(BATCH, QUERIES, HEADS, sum(POINTS), **random).requires_grad_()
    return value, locations, weights


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("method", "shapes"), [("default", WIDE), ("discrete", WIDE), ("discrete", SQUARE)])
def test_functions_are_the_operator(listed: bool, method: str, shapes: list[tuple[int, int]], device: str) -> None:
    value, locations, weights = core_operands(device, shapes)
    given = by_level(value, shapes) if listed else value.unflatten(-1, (HEADS, -1))
    found = rtdetr.deformable_attention_core_func_v2(given, shapes, locations, weights, POINTS, method)
    stock = imported("utils").deformable_attention_core_func_v2
    expected = stock(given, shapes, locations, weights, POINTS, method)
    reference.assert_close(found, expected, 1e-12)
    operands = {"value": value, "weights": weights, **({"locations": locations} if method == "default" else {})}
    reference.assert_same_gradients(found, expected, operands, torch.randn_like(found), 1e-11)


def test_the_first_function_is_the_operator(device: str) -> None:
    problem = reference.problem(3, device=device)
    found = rtdetr.deformable_attention_core_func(problem.value, problem.shapes, problem.locations, problem.weights)
    expected = reference.ms_deform_attn(problem.value, problem.shapes, problem.locations, problem.weights)
    reference.assert_close(found, expected, 1e-12)
    operands = dict(zip(("value", "locations", "weights"), problem.differentiable, strict=True))
    reference.assert_same_gradients(found, expected, operands, problem.grad_out, 1e-11)


def test_deim_says_what_the_value_is(device: str) -> None:
    value, locations, weights = core_operands(device, WIDE)
    operands = (WIDE, locations, weights, POINTS, "default")
    whole = rtdetr.deformable_attention_core_func_v2(value.unflatten(-1, (HEADS, -1)), *operands, value_shape="reshape")
    parts = rtdetr.deformable_attention_core_func_v2(by_level(value, WIDE), *operands, value_shape="default")
    assert torch.equal(whole, parts)
    with pytest.raises(fourtap.InputError, match=r"^value_shape: expected 'default' or 'reshape', found 'flat'$"):
        rtdetr.deformable_attention_core_func_v2(value, *operands, value_shape="flat")


def test_what_does_not_fit_is_refused_by_name(device: str) -> None:
    value, locations, weights = core_operands(device, WIDE)
    parts = by_level(value, WIDE)
    function = rtdetr.deformable_attention_core_func_v2
    with pytest.raises(fourtap.InputError, match=r"^value: expected 2 levels, found 1$"):
        function(parts[:1], WIDE, locations, weights, POINTS)
    with pytest.raises(
        fourtap.InputError, match=r"^value\[1\]: expected shape \[2, 3, 4, 15\], found \[2, 3, 4, 12\]$"
    ):
        function(parts, [(4, 9), (3, 5)], locations, weights, POINTS)
    with pytest.raises(fourtap.InputError, match=r"^num_points_list: expected 2 numbers, found 3$"):
        function(parts, WIDE, locations, weights, [1, 1, 2])
    with pytest.raises(fourtap.InputError, match=r"^sampling_locations: expected shape \[N, Q, M, 5, 2\], found \["):
        function(parts, WIDE, locations, weights, [3, 2])
    with pytest.raises(
        fourtap.InputError, match=r"^attention_weights: expected shape \[N, Q, M, 4\], found \[2, 7, 3, 3"
    ):
        function(parts, WIDE, locations, weights[..., :3], POINTS)
    with pytest.raises(fourtap.InputError, match=r"^method: expected 'default' or 'discrete', found 'bicubic'$"):
        function(parts, WIDE, locations, weights, POINTS, "bicubic")


def test_a_module_without_projections_refuses_by_name(device: str) -> None:
    call = Call("dfine_decoder", device)
    rtdetr.patch(call.module)
    value = by_level(call.value, WIDE)

    def refuses(message: str, query: Tensor, boxes: Tensor, value: Any, shapes: Any) -> None:
        with pytest.raises(fourtap.InputError, match=message):
            call.module(query, boxes, value, shapes)

    boxes = r"^reference_points: expected shape \[2, 7, 2, 2 or 4\], found \[2, 7, 1, 3\]$"
    refuses(boxes, call.query, call.boxes[..., :3], value, WIDE)
    refuses(r"^query: expected shape \[N, Q, 12\], found", call.query[..., :11], call.boxes, value, WIDE)
    refuses(r"^value_spatial_shapes: expected 2 levels, found 1$", call.query, call.boxes, value, WIDE[:1])
    images = [part[:1] for part in value]
    refuses(r"^value\[0\]: expected shape \[2, 3, D, H \* W\], found \[1, ", call.query, call.boxes, images, WIDE)


@pytest.mark.parametrize("thing", ["model", "module", "functions", "package"])
def test_whatever_names_the_repository_will_do(thing: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call("dfine_decoder", device)
    before = call()
    things: dict[str, Any] = {
        "model": nn.ModuleDict({"decoder": nn.Sequential(nn.Identity(), call.module)}),
        "module": imported("dfine_decoder"),
        "functions": imported("utils"),
        "package": importlib.import_module("repository"),
    }
    names = rtdetr.patch(things[thing])
    assert "repository.zoo.utils.deformable_attention_core_func_v2" in names
    is_class_known = "repository.zoo.dfine_decoder.MSDeformableAttention.forward" in names
    assert is_class_known == (thing != "functions")
    assert rtdetr.patch(things[thing]) == names
    seen = watching.shapes_of_calls(monkeypatch)
    reference.assert_close(call(), before, 1e-12)
    assert len(seen) == 1
    rtdetr.unpatch()
    assert torch.equal(call(), before)
    assert len(seen) == 1


def test_there_must_be_something_to_patch() -> None:
    with pytest.raises(fourtap.UnsupportedError, match=r"^Linear: expected MSDeformableAttention or .*, found none"):
        rtdetr.patch(nn.Linear(2, 2))
    with pytest.raises(fourtap.UnsupportedError, match=r"^json: expected MSDeformableAttention or .*, found none"):
        rtdetr.patch(json)
    with pytest.raises(fourtap.InputError, match=r"^things: expected models or modules, found str$"):
        rtdetr.patch("src")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rtdetrv2_decoder", "dfine_decoder"])
def test_compiles_in_one_graph(name: str, device: str) -> None:
    call = Call(name, device)
    expected = call.expected
    rtdetr.patch(call.module)
    call.module = torch.compile(call.module, fullgraph=True, backend="aot_eager")
    reference.assert_close(call(), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_have_the_type_of_the_original(dtype: torch.dtype, device: str) -> None:
    call = Call("dfine_decoder", device, dtype=torch.float32)
    with torch.autocast(device, dtype):
        before = call()
        rtdetr.patch(call.module)
        found = call()
    assert found.dtype == before.dtype
    reference.assert_close(found, call.expected, 0.005 if dtype == torch.float16 else 0.03)
