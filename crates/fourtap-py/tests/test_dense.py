"""Dense attention, against PyTorch's own in f64."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from typing import Any

import dense_reference
import numpy as np
import pytest
import reference
import torch
from dense_reference import SIZES, TOLERANCE, problem
from torch import Tensor
from torch.nn import functional

import fourtap
from fourtap import scaled_dot_product_attention as attend


def assert_right(
    operands: tuple[Tensor, Tensor, Tensor], *, enable_gqa: bool = False, times: float = 1.0, **options: Any
) -> None:
    """The result alone, and the result with the logarithms of its sums."""
    out, lse = dense_reference.attention(*operands, **options)
    alone = attend(*operands, enable_gqa=enable_gqa, **options)
    found, found_lse = attend(*operands, enable_gqa=enable_gqa, return_lse=True, **options)
    query = operands[0]
    assert alone.dtype is query.dtype and alone.device == query.device
    assert found_lse.dtype is (torch.float64 if query.dtype is torch.float64 else torch.float32)
    assert torch.equal(alone, found)
    reference.assert_close(found, out, times * TOLERANCE[query.dtype])
    unseen = lse == -torch.inf
    assert torch.equal(found_lse.cpu() == -torch.inf, unseen)
    # Logarithms of 16-bit numbers' sums are f32: what the inputs lost, the reference lost, too.
    tolerance = 1e-13 if query.dtype is torch.float64 else 2e-6
    reference.assert_close(found_lse.cpu().masked_fill(unseen, 0), lse.masked_fill(unseen, 0), tolerance, "lse")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_every_type_and_size(device: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    assert_right(problem(1, device=device, dtype=dtype, sizes=sizes).operands)


@pytest.mark.parametrize("channels", [(8, 8), (64, 64), (128, 128), (256, 256), (40, 24), (5, 7), (1, 1)])
def test_any_number_of_channels(device: str, channels: tuple[int, int]) -> None:
    assert_right(problem(2, device=device, channels=channels).operands)
    assert_right(problem(3, device=device, channels=channels).operands, is_causal=True)


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("sizes", [*SIZES, (203, 113), (64, 64)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 0, 5, (3, None), (None, 7), (40, 0), (0, 90)])
def test_masks_are_bands_around_the_diagonal(
    device: str, alignment: str, sizes: tuple[int, int], is_causal: bool, window: Any
) -> None:
    case = problem(4, device=device, batch=(1,), heads=(2, 2), sizes=sizes)
    assert_right(case.operands, is_causal=is_causal, causal_alignment=alignment, window=window)


@pytest.mark.parametrize("sizes", [(113, 203), (203, 113), (64, 64)])
def test_is_causal_is_that_of_pytorch(device: str, sizes: tuple[int, int]) -> None:
    case = problem(5, device=device, sizes=sizes)
    expected = functional.scaled_dot_product_attention(*(t.double() for t in case.operands), is_causal=True)
    reference.assert_close(attend(*case.operands, is_causal=True), expected, TOLERANCE[case.query.dtype])


@pytest.mark.parametrize("heads", [(8, 2), (6, 1), (12, 3), (4, 4)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": 9, "causal_alignment": "bottom_right"}])
def test_heads_of_queries_share_those_of_keys(device: str, heads: tuple[int, int], options: dict[str, Any]) -> None:
    case = problem(6, device=device, heads=heads)
    assert_right(case.operands, enable_gqa=True, **options)


@pytest.mark.parametrize("scale", [0, 1, -0.7, 3.0, 1e-9, np.float32(0.25), np.int64(2)])
def test_any_finite_scale(device: str, scale: Any) -> None:
    # Logits of larger scales have larger last bits.
    assert_right(problem(7, device=device).operands, scale=scale, times=max(1.0, 16 * abs(float(scale))))


def test_keys_that_are_not_seen_may_hold_anything(device: str) -> None:
    case = problem(8, device=device, sizes=(20, 20))
    expected = attend(*case.operands, is_causal=True)
    for tensor in (case.key, case.value):
        tensor[:, :, 10:] = torch.nan
    found = attend(*case.operands, is_causal=True)
    reference.assert_close(found[:, :, :10], expected[:, :, :10], TOLERANCE[found.dtype])
    assert bool(found[:, :, 10:].isnan().all())


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "[B, S, H, D]": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "[S, B, H, D]": lambda tensor: tensor.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "[B, H, D, S]": lambda tensor: tensor.transpose(2, 3).contiguous().transpose(2, 3),
    "a part of a larger one": lambda tensor: functional.pad(tensor, (8, 8, 1, 2))[..., 1:-2, 8:-8],
    "every second row": lambda tensor: tensor.repeat_interleave(2, 2)[:, :, ::2],
    "one sequence, expanded": lambda tensor: tensor[:1].expand(tensor.shape),
    "one head, expanded": lambda tensor: tensor[:, :1].expand(tensor.shape),
    "one element on": lambda tensor: torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_inputs_may_lie_as_they_like(device: str, name: str, options: dict[str, Any]) -> None:
    case = problem(9, device=device)
    assert_right(tuple(LAYOUTS[name](tensor) for tensor in case.operands), **options)  # type: ignore[arg-type]
    assert_right((LAYOUTS[name](case.query), case.key, case.value), **options)
    assert_right((case.query, LAYOUTS[name](case.key), case.value), **options)
    assert_right((case.query, case.key, LAYOUTS[name](case.value)), **options)


def test_the_result_lies_as_query_does(device: str) -> None:
    case = problem(10, device=device, channels=(64, 32))
    assert attend(*case.operands).is_contiguous()
    found = attend(LAYOUTS["[B, S, H, D]"](case.query), case.key, case.value)
    assert found.shape == (2, 4, 37, 32) and found.transpose(1, 2).is_contiguous()
    assert torch.equal(found, attend(*case.operands))


@pytest.mark.parametrize("batch", [(), (1,), (3, 2), (2, 1, 3), (1, 2, 1, 2, 1)])
def test_any_axes_before_the_heads(device: str, batch: tuple[int, ...]) -> None:
    case = problem(11, device=device, batch=batch)
    assert_right(case.operands)
    assert_right(problem(12, device=device, batch=batch, heads=(4, 2)).operands, enable_gqa=True, is_causal=True)
    assert attend(*case.operands).shape == (*batch, 4, 37, 64)
    expanded = case.query[..., :1, :1, :].expand(case.query.shape)
    assert_right((expanded, case.key, case.value))


def test_matrices_are_one_head(device: str) -> None:
    query, key, value = (tensor[0, 0] for tensor in problem(13, device=device).operands)
    assert_right((query, key, value), is_causal=True)
    assert attend(query, key, value, return_lse=True)[1].shape == (37,)


def test_axes_that_cannot_be_joined_are_copied(device: str) -> None:
    case = problem(14, device=device, batch=(3, 2))
    exchanged = case.key.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(attend(case.query, exchanged, case.value), attend(*case.operands))
    arrays = [tensor.cpu().numpy() for tensor in (case.query, exchanged, case.value)]
    reference.assert_close(torch.from_numpy(attend(*arrays)), attend(*case.operands).cpu(), TOLERANCE[case.query.dtype])


# Axes before positions and channels, of query, key and value.
BROADCAST = {
    "one sequence of keys": ((3, 2), (1, 2), (1, 2)),
    "one query for all": ((1, 2), (3, 2), (3, 2)),
    "values of their own": ((3, 2), (1, 2), (3, 1)),
    "one head of keys": ((3, 2), (3, 1), (3, 1)),
    "heads of keys only": ((3, 1), (3, 2), (3, 2)),
    "fewer axes": ((3, 2), (2,), ()),
    "more axes": ((2,), (4, 3, 2), (3, 1)),
    "axes that cross": ((4, 1, 2), (1, 3, 2), (4, 3, 1)),
}


@pytest.mark.parametrize("name", BROADCAST)
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_leading_axes_are_broadcast_as_by_pytorch(device: str, name: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(15)
    shapes = [(*axes, size, 16) for axes, size in zip(BROADCAST[name], (5, 7, 7), strict=True)]
    operands = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    expected, lse = dense_reference.attention(*operands, enable_gqa=False)
    given: Any = [operand.to(device, dense_reference.usual_dtype(device)) for operand in operands]
    if kind == "arrays":
        given = [tensor.cpu().numpy() for tensor in given]
    found = [torch.as_tensor(result) for result in attend(*given, return_lse=True)]
    assert found[0].shape == expected.shape and found[1].shape == lse.shape
    reference.assert_close(found[0], expected, TOLERANCE[found[0].dtype])
    reference.assert_close(found[1], lse, TOLERANCE[found[0].dtype])


def test_groups_are_broadcast_before_their_heads(device: str) -> None:
    query, key, value = problem(16, device=device, batch=(3,), heads=(6, 2)).operands
    expected = attend(query, key[:1].expand(3, -1, -1, -1), value, enable_gqa=True)
    assert torch.equal(attend(query, key[:1], value, enable_gqa=True), expected)
    assert torch.equal(attend(query[None], key[:1], value, enable_gqa=True)[0], expected)


def test_empty_problems_have_empty_or_zero_results(device: str) -> None:
    query, key, value = problem(15, device=device).operands
    assert attend(query[:0], key[:0], value[:0]).shape == (0, 4, 37, 64)
    assert attend(query[:, :0], key[:, :0], value[:, :0]).shape == (2, 0, 37, 64)
    assert attend(query[:, :, :0], key, value).shape == (2, 4, 0, 64)
    out, lse = attend(query, key[:, :, :0], value[:, :, :0], return_lse=True)
    assert out.shape == query.shape and not out.any() and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.float64])
def test_autocast_casts_as_pytorch_does(device: str, dtype: torch.dtype, given: torch.dtype) -> None:
    case = problem(16, device=device, dtype=given)
    with torch.autocast(device, dtype):
        found, lse = attend(*case.operands, return_lse=True)
        assert found.dtype is functional.scaled_dot_product_attention(*case.operands).dtype
    assert lse.dtype is (torch.float64 if given is torch.float64 else torch.float32)
    if given is not torch.float64:
        assert torch.equal(found, attend(*(tensor.to(dtype) for tensor in case.operands)))
        query, key, value = case.operands
        with torch.autocast(device, dtype):
            assert torch.equal(attend(query, key.to(dtype), value), found)


def test_parameters_subclasses_and_views_that_negate_are_tensors_too(device: str) -> None:
    class Labelled(Tensor):
        pass

    query, key, value = problem(17, device=device).operands
    expected = attend(query, key, value)
    with torch.no_grad():
        assert torch.equal(attend(torch.nn.Parameter(query), key, value), expected)
    assert torch.equal(attend(query.as_subclass(Labelled), key, value).as_subclass(Tensor), expected)
    with torch.inference_mode():
        assert torch.equal(attend(query, key, value), expected)
    if device == "cpu":
        negated = torch.complex(torch.zeros_like(key), -key).conj().imag
        assert negated.is_neg() and torch.equal(negated, key)
        assert torch.equal(attend(query, negated, value), expected)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    case = problem(18, device="cpu", sizes=(300, 300))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(attend(*case.operands, is_causal=True))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_other_threads_run_while_a_call_computes() -> None:
    operands = [tensor.numpy() for tensor in problem(19, device="cpu", sizes=(1500, 1500)).operands]
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    calls: list[tuple[float, float]] = []
    while len(calls) < 3 or sum(ended - began for began, ended in calls) < 0.2:
        began = time.perf_counter()
        attend(*operands)
        calls.append((began, time.perf_counter()))
    done.set()
    thread.join()
    # With the interpreter's lock held all along there would be none.
    assert sum(began < at < ended for at in ticks for began, ended in calls) >= 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_attention_of_arrays_is_that_of_tensors(dtype: Any) -> None:
    tensors = problem(20, device="cpu", dtype=torch.float64, heads=(4, 2)).operands
    arrays = [tensor.numpy().astype(dtype) for tensor in tensors]
    out, lse = attend(*arrays, enable_gqa=True, window=(20, 3), return_lse=True)
    right = attend(*map(torch.from_numpy, arrays), enable_gqa=True, window=(20, 3), return_lse=True)
    assert out.dtype == dtype and lse.dtype == (np.float64 if dtype is np.float64 else np.float32)
    np.testing.assert_array_equal(out, right[0].numpy())
    np.testing.assert_array_equal(lse, right[1].numpy())


def test_arrays_of_bfloat16_are_those_of_ml_dtypes() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    case = problem(21, device="cpu", dtype=torch.bfloat16)
    out, lse = attend(*(tensor.float().numpy().astype(bfloat16) for tensor in case.operands), return_lse=True)
    assert out.dtype == bfloat16 and lse.dtype == np.float32
    np.testing.assert_array_equal(out.astype(np.float32), attend(*case.operands).float().numpy())


def test_strided_reversed_and_broadcast_arrays_are_read_as_they_lie() -> None:
    query, key, value = (tensor.numpy() for tensor in problem(22, device="cpu").operands)
    expected = attend(query, key, value)
    transposed = np.ascontiguousarray(query.swapaxes(1, 2)).swapaxes(1, 2)
    backwards = np.ascontiguousarray(key[::-1, :, ::-1])[::-1, :, ::-1]
    found = attend(transposed, backwards, np.asfortranarray(value))
    np.testing.assert_array_equal(found, expected)
    assert found.swapaxes(1, 2).flags.c_contiguous
    spread = np.broadcast_to(key[:1], key.shape)
    np.testing.assert_array_equal(attend(query, spread, value), attend(query, spread.copy(), value))
    read_only = query.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(attend(read_only, key, value), expected)


def test_arrays_need_no_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = None  # importing it fails
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
import numpy, fourtap
one = numpy.ones((1, 2, 3))
print(fourtap.scaled_dot_product_attention(one, one, 2 * one, window=numpy.int32(1), scale=0.5).sum())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "12.0"


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="Python 3.10 does not tell")
def test_type_checkers_know_the_result_of_a_return_lse_that_varies() -> None:
    overloads = typing.get_overloads(fourtap.scaled_dot_product_attention)
    results = {f.__annotations__["return_lse"]: f.__annotations__["return"] for f in overloads}
    assert results == {"Literal[False]": "T", "Literal[True]": "tuple[T, T]", "bool": "T | tuple[T, T]"}
