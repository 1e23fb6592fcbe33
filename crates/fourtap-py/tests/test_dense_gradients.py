"""Gradients of dense attention, on the CPU: against PyTorch's own function in f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_reference import TOLERANCE, Problem, problem
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional

import fourtap
from fourtap import scaled_dot_product_attention as attend

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def operands(seed: int, **options: Any) -> Problem:
    options.setdefault("dtype", torch.float32)
    return problem(seed, device="cpu", **options)


def differentiate(function: Any, tensors: list[Tensor], grad_out: Tensor, **options: Any) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, **options)
    return torch.autograd.grad(out, leaves, grad_out.to(out.dtype))


def check(seed: int, given: Problem, bias: Tensor | None = None, tolerance: float = 4.0, **options: Any) -> None:
    """All gradients, one by one."""
    dtype = given.query.dtype
    tensors = [*given.operands, *([] if bias is None else [bias])]
    shape = (*given.query.shape[:-1], given.value.shape[-1])
    grad_out = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    expected = differentiate(
        functional.scaled_dot_product_attention, [tensor.double() for tensor in tensors], grad_out, **options
    )
    for name, found, wanted in zip(
        ("query", "key", "value", "bias"), differentiate(attend, tensors, grad_out, **options), expected, strict=False
    ):
        assert found.dtype is dtype or name == "bias"
        assert found.shape == wanted.shape
        # A query that sees one key has none.
        error = (found.double() - wanted).norm() / max(wanted.norm(), 0.1 * expected[2].norm())
        assert error < tolerance * TOLERANCE[dtype], (name, error)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1), (37, 53), (113, 203), (64, 64)])
def test_gradients_are_those_of_pytorch(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    check(1, operands(1, dtype=dtype, sizes=sizes, channels=(40, 24)))


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"scale": -0.3}, {"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}]
)
def test_options_act_on_gradients(options: dict[str, Any]) -> None:
    heads = (6, 2) if options.get("enable_gqa") else (3, 3)
    check(2, operands(2, heads=heads, sizes=(70, 70)), **options)


@pytest.mark.parametrize("shape", [(37, 53), (53,), (1, 53), (4, 37, 1), (4, 1, 1), (2, 1, 37, 53), (2, 4, 37, 53)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_gradient_of_a_bias_is_summed_where_it_broadcasts(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    # That of a bias which all keys of a row share is 0 but for rounding.
    if shape[-1] == 1:
        leaves = [tensor.requires_grad_() for tensor in (*operands(3, dtype=dtype).operands, bias)]
        (found,) = torch.autograd.grad(attend(*leaves).sum(), leaves[3:])
        assert found.shape == shape and found.abs().max() < 1e3 * TOLERANCE[dtype]
        return
    check(3, operands(3, dtype=dtype), bias=bias)


def test_queries_that_see_no_key_have_no_gradient() -> None:
    given = operands(4)
    mask = torch.rand(37, 53, generator=torch.Generator().manual_seed(4)) < 0.5
    mask[5] = False
    leaves = [tensor.requires_grad_() for tensor in given.operands]
    attend(*leaves, mask).sum().backward()
    assert given.query.grad is not None and given.query.grad[:, :, 5].eq(0).all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("wanted", range(1, 16))
def test_any_of_them_may_be_asked_for(wanted: int) -> None:
    tensors = [*operands(5).operands, torch.randn(37, 53)]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    whole = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    some = [tensor.clone().requires_grad_(bool(wanted >> at & 1)) for at, tensor in enumerate(tensors)]
    attend(*some).square().sum().backward()
    for found, expected in zip(some, whole, strict=True):
        assert found.grad is None if not found.requires_grad else torch.equal(found.grad, expected)


def test_finite_differences_agree() -> None:
    given = operands(6, dtype=torch.float64, batch=(1,), heads=(2, 1), sizes=(3, 5), channels=(4, 3))
    leaves = [tensor.requires_grad_() for tensor in (*given.operands, torch.randn(2, 1, 5, dtype=torch.float64))]
    options: dict[str, Any] = {"enable_gqa": True, "window": (2, 1), "causal_alignment": "bottom_right"}
    assert torch.autograd.gradcheck(lambda *tensors: attend(*tensors, **options), leaves)


def test_tensors_that_broadcast_get_their_own_gradients() -> None:
    given = operands(7, sizes=(9, 11), channels=(8, 8))
    key, value = given.key[:1, :1].clone(), given.value[:, :1].clone()
    leaves = [tensor.requires_grad_() for tensor in (given.query, key, value)]
    grads = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    heads = given.query.shape[1]
    wide = [given.query, key.expand(2, heads, -1, -1), value.expand(-1, heads, -1, -1)]
    expected = torch.autograd.grad(functional.scaled_dot_product_attention(*wide).square().sum(), leaves)
    for found, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_the_same_in_every_run_and_memory_order() -> None:
    given = operands(8, dtype=torch.bfloat16)
    grad_out = torch.randn_like(given.query)
    first = differentiate(attend, [*given.operands], grad_out)
    swapped = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given.operands]
    for tensors in ([*given.operands], swapped):
        for found, expected in zip(differentiate(attend, tensors, grad_out), first, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients_are_the_same(backend: str) -> None:
    torch._dynamo.reset()
    tensors = [*operands(9).operands, torch.randn(37, 53)]
    grad_out = torch.randn_like(tensors[0])
    compiled = torch.compile(lambda *leaves: attend(*leaves), fullgraph=True, backend=backend)
    for found, expected in zip(
        differentiate(compiled, tensors, grad_out), differentiate(attend, tensors, grad_out), strict=True
    ):
        assert torch.equal(found, expected)


def test_the_operators_keep_pytorchs_rules() -> None:
    query, key, value = operands(10, sizes=(5, 7), channels=(8, 8)).operands
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    settings: tuple[Any, ...] = (None, None, None, False, False)
    opcheck(torch.ops.fourtap.dense.default, (*leaves, *settings, True))
    out, lse = torch.ops.fourtap.dense(*leaves, *settings, True)
    assert not lse.requires_grad
    plain = [tensor.detach() for tensor in (torch.ones_like(out), *leaves)]
    wanted = [True, False, True, False]
    opcheck(torch.ops.fourtap.dense_backward.default, (*plain, *settings, None, out.detach(), lse, wanted))


def test_autocast_gives_gradients_in_the_tensors_own_types() -> None:
    leaves = [tensor.requires_grad_() for tensor in operands(11).operands]
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(*leaves)
    assert out.dtype is torch.bfloat16
    found = torch.autograd.grad(out.float().square().sum(), leaves)
    assert all(gradient.dtype is torch.float32 for gradient in found)
    expected = torch.autograd.grad(functional.scaled_dot_product_attention(*leaves).square().sum(), leaves)
    for gradient, wanted in zip(found, expected, strict=True):
        assert (gradient - wanted).norm() < 2e-2 * wanted.norm()


def test_second_derivatives_are_refused() -> None:
    query, key, value = operands(13).operands
    query.requires_grad_()
    (gradient,) = torch.autograd.grad(attend(query, key, value).square().sum(), query, create_graph=True)
    with pytest.raises(fourtap.UnsupportedError, match="expected to be differentiated once"):
        gradient.sum().backward()


def test_the_operator_alone_needs_the_lse() -> None:
    query, key, value = operands(14).operands
    with pytest.raises(fourtap.InputError, match="return_lse: expected True where gradients are wanted"):
        torch.ops.fourtap.dense(query.requires_grad_(), key, value, None, None, None, False, False, False)
