"""Calls of dense attention that make no sense, or ask for what is not there: each ends in its typed exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_reference import problem
from torch._subclasses.fake_tensor import FakeTensorMode

import fourtap
from fourtap import scaled_dot_product_attention as attend

Case = tuple[str, str, Callable[[Any], Any], type[Exception], str]
CHANGES: list[Case] = [
    ("rank of query", "query", lambda t: t[0, 0, 0], ValueError, "query: expected rank 2 or more [..., H, S, D]"),
    ("rank of key", "key", lambda t: t[0, 0, 0], ValueError, "key: expected rank"),
    ("rank of value", "value", lambda t: t[0, 0, 0], ValueError, "value: expected rank"),
    ("sequences", "key", lambda t: t[[0, 1, 1]], ValueError, "key: expected"),
    ("channels", "key", lambda t: t[..., :32], ValueError, "key: expected shape [2, Hk, Sk, 64], found"),
    ("keys", "value", lambda t: t[:, :, 1:], ValueError, "value: expected shape [2, 4, 53, Dv], found [2, 4, 52, 64]"),
    ("heads of value", "value", lambda t: t[:, :2], ValueError, "value: expected"),
    ("no channels", "value", lambda t: t[..., :0], ValueError, "value: expected at least 1 channel"),
    ("another type", "key", lambda t: t.bfloat16(), TypeError, "key: expected element type"),
    ("whole numbers", "query", lambda t: t.int(), TypeError, "query: expected element type f16, bf16, f32 or f64"),
    ("complex", "value", lambda t: t.to(torch.complex64), TypeError, "value: expected element type f16, bf16"),
    ("booleans", "key", lambda t: t > 0, TypeError, "key: expected element type f16, bf16"),
]


def refused(error: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, fourtap.Error), caught.value
    assert message in str(caught.value)


@pytest.mark.parametrize("way", ["eager", "autocast", "registered"])
@pytest.mark.parametrize(("name", "tensor", "change", "error", "message"), CHANGES, ids=[case[0] for case in CHANGES])
def test_a_wrong_tensor_is_named(
    device: str, way: str, name: str, tensor: str, change: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    wrong: dict[str, Any] = dict(zip(("query", "key", "value"), problem(1, device=device).operands, strict=True))
    wrong[tensor] = change(wrong[tensor])
    if way == "eager":
        refused(error, message, lambda: attend(**wrong))
    elif way == "registered":
        refused(error, message, lambda: torch.ops.fourtap.dense(**wrong, **PLAIN))
    elif name != "another type":  # which autocast makes one
        with torch.autocast(device, torch.bfloat16):
            refused(error, message, lambda: attend(**wrong))


PLAIN = {
    "scale": None,
    "left": None,
    "right": None,
    "bottom_right": False,
    "enable_gqa": False,
    "return_lse": False,
}


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_heads_must_fit(device: str, kind: str) -> None:
    operands: Any = problem(2, device=device, heads=(8, 2)).operands
    unequal: Any = problem(2, device=device, heads=(8, 3)).operands
    if kind == "arrays":
        operands, unequal = ([tensor.cpu().numpy() for tensor in case] for case in (operands, unequal))
    message = "key: expected axes before the positions that broadcast with [2, 8] of query (with enable_gqa=True"
    refused(ValueError, message, lambda: attend(*operands))
    refused(ValueError, "that divides the 8 of query, found 3", lambda: attend(*unequal, enable_gqa=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": -1}, ValueError, "window: expected numbers from 0 to 9223372036854775807, or None for all keys"),
        ({"window": (3, -1)}, ValueError, "window: expected numbers from 0"),
        ({"window": 2**63}, ValueError, "window: expected numbers from 0"),
        ({"window": 1.5}, TypeError, "window: expected an integer, None, or a pair of them, found 1.5"),
        ({"window": (1, 2, 3)}, TypeError, "window: expected an integer, None, or a pair of them"),
        ({"window": (1, "2")}, TypeError, "window: expected an integer, None, or a pair of them, found '2'"),
        ({"window": True}, TypeError, "window: expected an integer"),
        ({"causal_alignment": "bottom"}, ValueError, "causal_alignment: expected 'top_left' or 'bottom_right', found"),
        ({"causal_alignment": None}, ValueError, "causal_alignment: expected 'top_left' or 'bottom_right'"),
        ({"scale": float("nan")}, ValueError, "scale: expected a finite number of f32, found NaN"),
        ({"scale": 1e300}, ValueError, "scale: expected a finite number of f32"),
        ({"scale": "1"}, TypeError, "scale: expected a number or None, found '1'"),
        ({"scale": 1j}, TypeError, "scale: expected a number or None, found 1j"),
    ],
)
def test_a_wrong_argument_is_named(device: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    operands = problem(3, device=device).operands
    refused(error, message, lambda: attend(*operands, **options))
    refused(error, message, lambda: attend(*(tensor.cpu().numpy() for tensor in operands), **options))


@pytest.mark.parametrize("p", [0.1, 1, -0.5])
def test_dropout_is_refused_not_forgotten(device: str, p: float) -> None:
    operands = problem(4, device=device).operands
    refused(NotImplementedError, "dropout_p: expected 0.0, as dense", lambda: attend(*operands, dropout_p=p))
    assert torch.equal(attend(*operands, None, 0.0), attend(*operands))


def test_things_that_are_no_tensors_are_named(device: str) -> None:
    query, key, value = problem(5, device=device).operands
    array = key.cpu().numpy()
    refused(ValueError, "key: expected a PyTorch tensor, like the others", lambda: attend(query, array, value))
    refused(ValueError, "key: expected a NumPy array, like the others", lambda: attend(array, key, array))
    refused(TypeError, "query: expected a PyTorch tensor or a NumPy array, found", lambda: attend([1.0], key, value))
    refused(ValueError, "query: expected a dense tensor", lambda: attend(query.to_sparse(), key, value))
    nested = torch.nested.nested_tensor(list(key), layout=torch.jagged)
    refused(ValueError, "key: expected a dense tensor, found a nested", lambda: attend(query, nested, value))
    swapped = array.astype(array.dtype.newbyteorder())
    refused(TypeError, "key: expected elements in this machine's byte order", lambda: attend(array, swapped, array))
    refused(TypeError, "query: expected element type f16", lambda: attend(array.astype(np.int64), array, array))


def test_tensors_on_two_devices_are_refused(device: str) -> None:
    query, key, value = problem(6, device=device).operands
    if device == "cpu":
        refused(ValueError, "key: expected meta (where query is)", lambda: attend(query.to("meta"), key, value))
        refused(ValueError, "value: expected", lambda: attend(query, key, value.to("meta")))
        return
    refused(ValueError, "key: expected memory of cuda:0", lambda: attend(query, key.cpu(), value))
    refused(ValueError, "key: expected host memory", lambda: attend(query.cpu(), key, value.cpu()))


def test_derivatives_in_forward_mode_are_refused_not_forgotten(device: str) -> None:
    query, key, value = problem(8, device=device).operands

    def function(key: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value)

    message = "key: expected a tensor without a derivative, found forward mode"
    refused(NotImplementedError, message, lambda: torch.func.jvp(function, (key,), (key,)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(key, key)
        refused(NotImplementedError, message, lambda: function(dual))
        assert torch.equal(function(key), function(key.clone()))


# Gradients in 32 and 64 bits, of which there are none on CUDA. Fake tensors are refused like real ones, on any machine.

NAMES = ["query", "key", "value", "attn_mask"]
EXPECTED = "expected query, key and value of float16 or bfloat16 where a gradient is wanted on CUDA"


def on_cuda(dtype: torch.dtype, *, real: bool = False, bias: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    make = torch.randn if real else torch.empty
    operands = {name: make(1, 2, 8, 32, device="cuda", dtype=dtype) for name in NAMES[:3]}
    return operands | {"attn_mask": make(2, 1, 8, device="cuda", dtype=bias or dtype)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_in_32_or_64_bits_is_refused_on_cuda(name: str, dtype: torch.dtype) -> None:
    with FakeTensorMode():
        operands: dict[str, Any] = on_cuda(dtype)
        operands[name].requires_grad_()
        hint = f"torch.no_grad() and {name}.detach() ask for none), found {dtype}"
        for message in (f"{name}: {EXPECTED}", hint):
            refused(NotImplementedError, message, lambda: attend(**operands))
            refused(NotImplementedError, message, lambda: attend(**operands, return_lse=True))
            refused(NotImplementedError, message, lambda: torch.ops.fourtap.dense(**operands, **PLAIN))
        with torch.no_grad():
            assert not attend(**operands).requires_grad
        assert not attend(**operands | {name: operands[name].detach()}).requires_grad


@pytest.mark.parametrize("bias", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_in_16_bits_is_not_refused_on_cuda(name: str, dtype: torch.dtype, bias: torch.dtype | None) -> None:
    with FakeTensorMode():
        operands: dict[str, Any] = on_cuda(dtype, bias=bias)
        operands[name].requires_grad_()
        out = attend(**operands)
        assert out.requires_grad and out.dtype is dtype
        out, lse = (found.detach() for found in attend(**operands, return_lse=True))
        plain = [operand.detach() for operand in operands.values()]
        settings = [None, None, None, False, False]
        found = torch.ops.fourtap.dense_backward(out, *plain[:3], *settings, plain[3], out, lse, [True] * 4)
        for gradient, operand in zip(found, plain, strict=True):
            assert gradient.shape == operand.shape and gradient.dtype is operand.dtype and gradient.is_cuda


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused_on_cuda_is_computed_without_a_gradient_or_in_16_bits(name: str) -> None:
    operands: dict[str, Any] = on_cuda(torch.float32, real=True)
    expected = attend(**operands)
    operands[name].requires_grad_()
    refused(NotImplementedError, f"{name}: {EXPECTED}", lambda: attend(**operands))
    with torch.no_grad():
        assert torch.equal(attend(**operands), expected)
    with torch.autocast("cuda", torch.bfloat16):
        out = attend(**operands)
    (gradient,) = torch.autograd.grad(out.sum(), operands[name])
    assert gradient.dtype is torch.float32 and gradient.isfinite().all()
    doubles = {which: operand.double() for which, operand in operands.items()}
    with torch.autocast("cuda", torch.bfloat16):  # which leaves 64 bits as they are
        refused(NotImplementedError, f"{name}: {EXPECTED}", lambda: attend(**doubles))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_backward_itself_names_the_type_it_lacks() -> None:
    query, key, value, _ = on_cuda(torch.float32, real=True).values()
    out, lse = attend(query, key, value, return_lse=True)
    settings = [None, None, None, False, False]
    arguments = (torch.ones_like(out), query, key, value, *settings, None, out, lse, [True, True, True, False])
    refused(
        NotImplementedError,
        "f16 or bf16 for gradients of dense attention",
        lambda: torch.ops.fourtap.dense_backward(*arguments),
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gradient_in_32_bits_is_refused_in_compiled_code() -> None:
    query, key, value, _ = on_cuda(torch.float32, real=True).values()
    torch._dynamo.reset()
    compiled = torch.compile(lambda *operands: attend(*operands), backend="aot_eager")
    refused(NotImplementedError, f"value: {EXPECTED}", lambda: compiled(query, key, value.requires_grad_()))
    whole = torch.compile(lambda *operands: attend(*operands), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=f"value: {EXPECTED}"):
        whole(query, key, value)
    with torch.no_grad():
        assert torch.equal(whole(query, key, value), attend(query, key, value))
