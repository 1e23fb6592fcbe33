"""The buffer that scales the offsets of RT-DETRv2, D-FINE and DEIM: it counts as it is at every call."""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
import stand_ins
import torch
from torch import Tensor, nn

import fourtap
from fourtap.compat import rtdetr

CHANNELS, HEADS, BATCH, QUERIES = 12, 3, 2, 7
SHAPES, POINTS = [(4, 9), (3, 4)], [3, 1]


@pytest.fixture(autouse=True)
def repository(tmp_path: Path) -> Iterator[None]:
    with stand_ins.installed(stand_ins.REPOSITORY, tmp_path):
        yield
        rtdetr.unpatch()


class Call:
    """RT-DETRv2's module, patched, and what it is called with."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        home = importlib.import_module("repository.zoo.rtdetrv2_decoder")
        self.module: Any = home.MSDeformableAttention(CHANNELS, HEADS, len(POINTS), POINTS, "default", 0.7)
        self.module.to(device, dtype)
        random = {"device": device, "dtype": dtype}
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        self.query = torch.randn(BATCH, QUERIES, CHANNELS, **random)
        self.boxes = torch.rand(BATCH, QUERIES, 1, 4, **random)
        self.value = torch.randn(BATCH, 48, CHANNELS, **random)
        rtdetr.patch(self.module)

    def __call__(self) -> Tensor:
        found: Tensor = self.module(self.query, self.boxes, self.value, SHAPES)
        return found

    def original(self) -> Tensor:
        """Without the patch, which is in place again afterwards."""
        rtdetr.unpatch()
        found = self()
        rtdetr.patch(self.module)
        return found


def by_state_dict(module: Any) -> None:
    module.load_state_dict({**module.state_dict(), "num_points_scale": module.num_points_scale * 2})


def by_state_dict_that_is_assigned(module: Any) -> None:
    module.load_state_dict({**module.state_dict(), "num_points_scale": module.num_points_scale * 2}, assign=True)


def by_assignment(module: Any) -> None:
    module.num_points_scale = module.num_points_scale * 2


def in_place(module: Any) -> None:
    module.num_points_scale.mul_(2)


def in_place_of_one(module: Any) -> None:
    module.num_points_scale[1] *= 2


def by_data(module: Any) -> None:
    module.num_points_scale.data = module.num_points_scale.data * 2


def by_state_that_is_averaged(module: Any) -> None:
    # As moving averages of models do.
    for tensor in module.state_dict().values():
        tensor.mul_(2)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        by_state_dict,
        by_state_dict_that_is_assigned,
        by_assignment,
        in_place,
        in_place_of_one,
        by_data,
        by_state_that_is_averaged,
    ],
)
def test_a_change_is_noticed(change: Callable[[Any], None], device: str) -> None:
    call = Call(device)
    before = call()
    reference.assert_close(before, call.original(), 1e-12)
    change(call.module)
    after = call()
    assert (after - before).abs().max() > 1e-3
    reference.assert_close(after, call.original(), 1e-12)


@torch.no_grad()
def test_writes_past_autograd_are_noticed_where_reading_costs_nothing() -> None:
    call = Call("cpu")
    before = call()
    call.module.num_points_scale.data.mul_(2)
    doubled = call()
    assert (doubled - before).abs().max() > 1e-3
    reference.assert_close(doubled, call.original(), 1e-12)
    call.module.num_points_scale.numpy()[:] /= 2
    assert torch.equal(call(), before)


def test_copies_of_a_module_have_their_own(device: str) -> None:
    call = Call(device)
    before = call()
    with torch.no_grad():
        twin = copy.deepcopy(call.module)
        twin.num_points_scale.mul_(2)
        assert torch.equal(call(), before)
        file = io.BytesIO()
        torch.save(call.module.state_dict(), file)
        file.seek(0)
        twin.load_state_dict(torch.load(file, weights_only=True))
        call.module = twin
        assert torch.equal(call(), before)


def test_a_scale_that_is_learned_gets_its_gradient(device: str) -> None:
    call = Call(device)
    scale = call.module.num_points_scale
    del call.module.num_points_scale
    call.module.num_points_scale = nn.Parameter(scale)
    operands = {"scale": call.module.num_points_scale, **dict(call.module.named_parameters())}
    expected = call.original()
    reference.assert_same_gradients(call(), expected, operands, torch.randn_like(expected), 1e-11)


def test_it_stays_a_tensor_in_programs(device: str) -> None:
    call = Call(device)
    compiled = torch.compile(call.module, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(call.module, (call.query, call.boxes, call.value, SHAPES)).module()
    for factor in (1, 2):
        with torch.no_grad():
            call.module.num_points_scale.mul_(factor)
            exported.num_points_scale.copy_(call.module.num_points_scale)
        expected = call.original()
        reference.assert_close(compiled(call.query, call.boxes, call.value, SHAPES), expected, 1e-12)
        reference.assert_close(exported(call.query, call.boxes, call.value, SHAPES), expected, 1e-12)


@torch.no_grad()
def test_sixteen_bits_are_as_accurate_as_the_original(device: str) -> None:
    call = Call(device, torch.bfloat16)
    exact = copy.deepcopy(call)
    exact.module.double()
    exact.query, exact.boxes, exact.value = call.query.double(), call.boxes.double(), call.value.double()
    for factors in (torch.ones(4), torch.tensor([1.0, 2.0, 3.0, 1.0])):
        for one in (call, exact):
            scale = one.module.num_points_scale
            scale.mul_(factors.to(scale))
        assert call().dtype is torch.bfloat16
        expected = exact.original()
        off, allowed = ((found.double() - expected).abs().max() for found in (call(), call.original()))
        assert off <= allowed


@torch.no_grad()
def test_a_captured_graph_reads_the_buffer(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a CUDA device")
    call = Call(device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = call()
    for factor in (1, 2):
        call.module.num_points_scale.mul_(factor)
        graph.replay()
        reference.assert_close(found, call.original(), 1e-12)


@torch.no_grad()
def test_a_gpu_is_asked_once(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a CUDA device")
    call = Call(device)
    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_modules_without_boxes_refuse_as_before(device: str) -> None:
    call = Call(device)
    call.boxes = call.boxes[..., :2]
    with pytest.raises(fourtap.InputError, match=r"^box_scale: expected none"):
        call()
