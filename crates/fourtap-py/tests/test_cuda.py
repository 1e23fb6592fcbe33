"""What only a CUDA device has: graphs, streams, and a host that must not wait."""

from __future__ import annotations

import gc
from collections.abc import Callable

import dense_reference
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


def used_by_many(work: Callable[[], object]) -> int:
    """Bytes of PyTorch's memory that calls leave behind; of the device's they may leave none."""
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


def test_memory_stays_flat_over_many_calls() -> None:
    case = problem()
    shapes = case.shapes_tensor
    assert used_by_many(lambda: step(case, shapes)) == 0


def test_wrong_levels_in_device_memory_read_nothing_outside() -> None:
    case = problem()
    wrong = torch.tensor([[10_000, 10_000], [-3, 4], [2**40, 2**40]], device="cuda")
    found = fourtap.ms_deform_attn(case.value, wrong, case.locations, case.weights)
    torch.cuda.synchronize()
    assert not found.any()
    step(case, case.shapes)
    torch.cuda.synchronize()


# Few queries of few heads over many keys is where kernels split a row, and need memory for its parts.
DENSE = {
    "square": {"batch": (2,), "sizes": (256, 256)},
    "not a multiple of anything": {"batch": (1,), "sizes": (113, 203)},
    "grouped": {"heads": (8, 2), "sizes": (100, 100)},
    "split": {"batch": (1,), "heads": (2, 2), "sizes": (3, 8192)},
}


def dense_problem(name: str, dtype: torch.dtype, seed: int = 1) -> dense_reference.Problem:
    return dense_reference.problem(seed, device="cuda", dtype=dtype, **DENSE[name])  # type: ignore[arg-type]


def dense_step(operands: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    out, lse = fourtap.scaled_dot_product_attention(*operands, enable_gqa=True, return_lse=True)
    causal = fourtap.scaled_dot_product_attention(
        *operands, enable_gqa=True, is_causal=True, causal_alignment="bottom_right"
    )
    return out, lse, causal


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", DENSE)
def test_a_graph_of_dense_attention_replays(name: str, dtype: torch.dtype) -> None:
    case = dense_problem(name, dtype)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        dense_step(case.operands)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dense_step(case.operands)
    for seed in range(2, 5):
        fresh = dense_problem(name, dtype, seed)
        for old, new in zip(case.operands, fresh.operands, strict=True):
            old.copy_(new)
        for tensor in captured:
            tensor.fill_(torch.nan)
        for _ in range(100):
            graph.replay()
        assert all(map(torch.equal, captured, dense_step(fresh.operands)))
        right, _ = dense_reference.attention(*fresh.operands)
        reference.assert_close(captured[0], right, dense_reference.TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dense_attention_compiled_into_graphs_is_the_same(dtype: torch.dtype) -> None:
    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fourtap.scaled_dot_product_attention(query + 1, key, value, is_causal=True).cos()

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(5):
        fresh = dense_problem("square", dtype, seed)
        torch.compiler.cudagraph_mark_step_begin()
        reference.assert_close(compiled(*fresh.operands), layer(*fresh.operands), dense_reference.TOLERANCE[dtype])


@pytest.mark.parametrize("name", DENSE)
def test_nobody_waits_for_dense_attention(name: str) -> None:
    operands = dense_problem(name, torch.float16).operands
    dense_step(operands)
    torch.cuda.set_sync_debug_mode("error")
    try:
        dense_step(operands)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", DENSE)
def test_dense_attention_goes_to_the_current_stream(name: str) -> None:
    case = dense_problem(name, torch.float16)
    expected = dense_step(case.operands)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        held = [torch.zeros_like(tensor) for tensor in case.operands]
        torch.cuda._sleep(100_000_000)
        for tensor, right in zip(held, case.operands, strict=True):
            tensor.copy_(right)
        found = dense_step((held[0], held[1], held[2]))
        for tensor in held:
            tensor.fill_(torch.nan)
    stream.synchronize()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", DENSE)
def test_memory_stays_flat_over_many_calls_of_dense_attention(name: str) -> None:
    operands = dense_problem(name, torch.float16).operands
    assert used_by_many(lambda: dense_step(operands)) == 0
