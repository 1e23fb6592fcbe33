"""What only a CUDA device has: graphs, streams, and a host that must not wait."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import dense_reference
import pytest
import reference
import torch
from torch import Tensor
from torch.nn import functional

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


# Gradients of dense attention. Masks and biases need memory of their own, most of all a bias that many sequences share.
TRAINING = {
    "plain": {"batch": (2,), "sizes": (256, 256)},
    "grouped": {"heads": (8, 2), "sizes": (113, 203)},
    "wide": {"batch": (1,), "sizes": (130, 130), "channels": (256, 256)},
    "masked": {"batch": (2,), "sizes": (110, 110)},
    "biased": {"batch": (64,), "sizes": (49, 49), "channels": (32, 32)},
}


@dataclass
class Training:
    """Leaves whose gradients are wanted, a mask that has none, and the gradient of the result."""

    leaves: list[Tensor]
    mask: Tensor | None
    grad_out: Tensor

    @property
    def given(self) -> list[Tensor]:
        return [*self.leaves, self.grad_out, *([] if self.mask is None else [self.mask])]


def training(name: str, dtype: torch.dtype, seed: int = 1) -> Training:
    case = dense_reference.problem(seed, device="cuda", dtype=dtype, **TRAINING[name])  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(seed)
    queries, keys = case.query.shape[-2], case.key.shape[-2]
    leaves, mask = [*case.operands], None
    if name == "masked":
        mask = (torch.rand(queries, keys, generator=source) < 0.5).cuda()
        mask[:, 0] = True
    if name == "biased":
        leaves.append(torch.randn(1, 4, queries, keys, generator=source).to("cuda", dtype))
    grad_out = torch.randn(case.query.shape, generator=source).to("cuda", dtype)
    return Training([leaf.requires_grad_() for leaf in leaves], mask, grad_out)


def training_step(case: Training) -> list[Tensor]:
    query, key, value, *bias = case.leaves
    mask = bias[0] if bias else case.mask
    out = fourtap.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, case.leaves, case.grad_out)]


def exact_gradients(case: Training) -> tuple[Tensor, ...]:
    leaves = [leaf.detach().cpu().double().requires_grad_() for leaf in case.leaves]
    query, key, value, *bias = leaves
    mask = bias[0] if bias else None if case.mask is None else case.mask.cpu()
    out = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    return torch.autograd.grad(out, leaves, case.grad_out.cpu().double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TRAINING)
def test_a_graph_of_dense_attention_and_its_gradients_replays(name: str, dtype: torch.dtype) -> None:
    case = training(name, dtype)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training_step(case)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = training_step(case)
    for seed in range(2, 5):
        fresh = training(name, dtype, seed)
        with torch.no_grad():
            for old, new in zip(case.given, fresh.given, strict=True):
                old.copy_(new)
            for tensor in captured:
                tensor.fill_(torch.nan)
        for _ in range(100):
            graph.replay()
        assert all(map(torch.equal, captured, training_step(fresh)))
        for found, right in zip(captured[1:], exact_gradients(fresh), strict=True):
            assert (found.cpu().double() - right).norm() < 4 * dense_reference.TOLERANCE[dtype] * right.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_dense_attention_compiled_into_graphs_are_the_same(dtype: torch.dtype) -> None:
    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fourtap.scaled_dot_product_attention(query + 1, key, value, is_causal=True) * 2

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(5):
        case = training("plain", dtype, seed)
        torch.compiler.cudagraph_mark_step_begin()
        found = torch.autograd.grad(compiled(*case.leaves), case.leaves, case.grad_out)
        expected = torch.autograd.grad(layer(*case.leaves), case.leaves, case.grad_out)
        for ours, right in zip(found, expected, strict=True):
            reference.assert_close(ours, right, dense_reference.TOLERANCE[dtype])


@pytest.mark.parametrize("name", TRAINING)
def test_nobody_waits_for_gradients_of_dense_attention(name: str) -> None:
    case = training(name, torch.float16)
    training_step(case)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training_step(case)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", TRAINING)
def test_gradients_of_dense_attention_go_to_the_current_stream(name: str) -> None:
    case = training(name, torch.float16)
    expected = training_step(case)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        held = [torch.zeros_like(leaf) for leaf in case.leaves]
        grad_out = torch.zeros_like(case.grad_out)
        torch.cuda._sleep(100_000_000)
        with torch.no_grad():
            for tensor, right in zip([*held, grad_out], [*case.leaves, case.grad_out], strict=True):
                tensor.copy_(right)
        found = training_step(Training([tensor.requires_grad_() for tensor in held], case.mask, grad_out))
        with torch.no_grad():
            for tensor in [*held, grad_out]:
                tensor.fill_(torch.nan)
    stream.synchronize()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", TRAINING)
def test_memory_stays_flat_over_many_gradients_of_dense_attention(name: str) -> None:
    case = training(name, torch.float16)
    # Less, if something else was freed meanwhile.
    assert used_by_many(lambda: training_step(case)) <= 0


def test_gradients_of_dense_attention_store_no_weights() -> None:
    case = dense_reference.problem(1, device="cuda", dtype=torch.float16, batch=(1,), sizes=(4096, 4096))
    leaves = [tensor.requires_grad_() for tensor in case.operands]
    out = fourtap.scaled_dot_product_attention(*leaves)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    # The gradients and that of the result are 8 MiB; weights of all pairs would be 128 MiB.
    assert torch.cuda.max_memory_allocated() - before < 16 << 20
    del gradients
    assert torch.cuda.memory_allocated() <= before
