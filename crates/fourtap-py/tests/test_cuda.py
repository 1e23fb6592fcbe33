"""What only a CUDA device has: graphs, streams, and a host that must not wait."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import reference
import torch
from torch import Tensor

import fourtap

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def problem(seed: int = 1, dtype: torch.dtype = torch.float32) -> reference.Problem:
    return reference.problem(seed, device="cuda", dtype=dtype, heads=8, channels=32, queries=100)


def step(case: reference.Problem, shapes: object) -> list[Tensor]:
    found = fourtap.ms_deform_attn(case.value, shapes, case.locations, case.weights, deterministic=True)  # type: ignore[arg-type]
    return [found, *torch.autograd.grad(found, case.differentiable, case.grad_out)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("on_device", [True, False])
def test_a_graph_of_forward_and_backward_replays(dtype: torch.dtype, on_device: bool) -> None:
    case = problem(dtype=dtype)
    shapes = case.shapes_tensor if on_device else case.shapes
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(case, shapes)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(case, shapes)
    for seed in range(2, 5):
        fresh = problem(seed, dtype)
        with torch.no_grad():
            for old, new in zip(case.differentiable, fresh.differentiable, strict=True):
                old.copy_(new)
            case.grad_out.copy_(fresh.grad_out)
        for tensor in captured:
            tensor.detach().fill_(torch.nan)
        for _ in range(100):
            graph.replay()
        right = step(fresh, shapes)
        assert all(map(torch.equal, captured, right))


def test_compiled_into_graphs_it_is_the_same() -> None:
    case = problem()
    shapes = case.shapes_tensor

    def layer(value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        return fourtap.ms_deform_attn(value + 1, shapes, locations, weights).cos()

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(5):
        fresh = problem(seed)
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(*fresh.differentiable)
        expected = layer(*fresh.differentiable)
        reference.assert_close(found, expected, 1e-6)
        named = dict(zip(("value", "locations", "weights"), fresh.differentiable, strict=True))
        reference.assert_same_gradients(found, expected, named, fresh.grad_out, 1e-5)


def test_nobody_waits_for_the_device() -> None:
    case = problem()
    shapes, starts = case.shapes_tensor, case.level_start_index
    step(case, shapes)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(case, shapes)
        fourtap.ms_deform_attn(case.value, shapes, case.locations, case.weights, level_start_index=starts)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_work_goes_to_the_current_stream() -> None:
    case = problem()
    expected = step(case, case.shapes)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        # What comes late on this stream is seen, which it would not be on another.
        held = [tensor.detach().clone() for tensor in case.differentiable]
        for tensor in held:
            tensor.fill_(0)
        torch.cuda._sleep(100_000_000)
        for tensor, right in zip(held, case.differentiable, strict=True):
            tensor.copy_(right)
        found = fourtap.ms_deform_attn(held[0], case.shapes, held[1], held[2])
        for tensor in held:
            tensor.fill_(torch.nan)
    stream.synchronize()
    assert torch.equal(found, expected[0])


def test_memory_stays_flat_over_many_calls() -> None:
    case = problem()

    def used(work: Callable[[], object]) -> int:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        gc.collect()  # so that nothing of earlier tests goes away meanwhile
        before = torch.cuda.memory_allocated()
        free = torch.cuda.mem_get_info()[0]
        for _ in range(2000):
            work()
        torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] >= free - (4 << 20)
        return torch.cuda.memory_allocated() - before

    shapes = case.shapes_tensor
    assert used(lambda: step(case, shapes)) == 0


def test_wrong_levels_in_device_memory_read_nothing_outside() -> None:
    case = problem()
    wrong = torch.tensor([[10_000, 10_000], [-3, 4], [2**40, 2**40]], device="cuda")
    found = fourtap.ms_deform_attn(case.value, wrong, case.locations, case.weights)
    torch.cuda.synchronize()
    assert not found.any()
    step(case, case.shapes)
    torch.cuda.synchronize()
