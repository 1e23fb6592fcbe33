"""Gradients of dense attention: against PyTorch's own function in f64, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_reference import TOLERANCE, Problem, band, problem, usual_dtype
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional

import fourtap
from fourtap import scaled_dot_product_attention as attend

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def operands(seed: int, device: str, dtype: torch.dtype | None = None, **options: Any) -> Problem:
    if device == "cuda" and dtype in (torch.float32, torch.float64):
        pytest.skip("has no gradients on CUDA: test_dense_refusals.py")
    return problem(seed, device=device, dtype=dtype, **options)


def random(seed: int, *shape: int, device: str, dtype: torch.dtype | None = None) -> Tensor:
    """The same numbers on every device."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device, dtype or usual_dtype(device))


def differentiate(function: Any, tensors: list[Tensor], grad_out: Tensor, **options: Any) -> tuple[Tensor, ...]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, **options)
    return torch.autograd.grad(out, leaves, grad_out.to(out.dtype))


def exact(tensors: list[Tensor], grad_out: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The gradients of PyTorch's function, in f64 on the CPU."""
    on_cpu = {name: option.cpu() if isinstance(option, Tensor) else option for name, option in options.items()}
    doubles = [tensor.detach().cpu().double() for tensor in tensors]
    return differentiate(functional.scaled_dot_product_attention, doubles, grad_out.cpu().double(), **on_cpu)


def gradient_of_out(seed: int, given: Problem) -> Tensor:
    shape = (*given.query.shape[:-1], given.value.shape[-1])
    return random(seed, *shape, device=given.query.device.type, dtype=given.query.dtype)


def assert_near(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    """All gradients, one by one."""
    for name, gradient, wanted in zip(("query", "key", "value", "bias"), found, expected, strict=False):
        assert gradient.shape == wanted.shape
        # A query that sees one key has none.
        error = (gradient.cpu().double() - wanted).norm() / max(wanted.norm(), 0.1 * expected[2].norm())
        assert error < tolerance, (name, error)


def check(seed: int, given: Problem, bias: Tensor | None = None, tolerance: float = 4.0, **options: Any) -> None:
    dtype = given.query.dtype
    tensors = [*given.operands, *([] if bias is None else [bias])]
    grad_out = gradient_of_out(seed, given)
    found = differentiate(attend, tensors, grad_out, **options)
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in tensors]
    assert_near(found, exact(tensors, grad_out, **options), tolerance * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1), (37, 53), (113, 203), (64, 64)])
def test_gradients_are_those_of_pytorch(device: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    check(1, operands(1, device, dtype, sizes=sizes, channels=(40, 24)))


@pytest.mark.parametrize("channels", [(3, 5), (32, 32), (64, 128), (128, 128), (200, 256)])
def test_any_number_of_channels(device: str, channels: tuple[int, int]) -> None:
    check(2, operands(2, device, channels=channels))


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"scale": -0.3}, {"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}]
)
def test_options_act_on_gradients(device: str, options: dict[str, Any]) -> None:
    heads = (6, 2) if options.get("enable_gqa") else (3, 3)
    check(2, operands(2, device, heads=heads, sizes=(70, 70)), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"window": (5, 3)},
        {"window": 9, "causal_alignment": "bottom_right"},
        {"window": (20, None), "is_causal": True, "causal_alignment": "bottom_right"},
    ],
)
def test_windows_act_on_gradients(device: str, options: dict[str, Any]) -> None:
    given = operands(12, device, sizes=(40, 56))
    grad_out = gradient_of_out(12, given)
    found = differentiate(attend, [*given.operands], grad_out, **options)
    expected = exact([*given.operands], grad_out, attn_mask=band(40, 56, **options))
    assert_near(found, expected, 4 * TOLERANCE[given.query.dtype])


@pytest.mark.parametrize("shape", [(37, 53), (1, 53), (2, 1, 1, 53), (4, 37, 53), (2, 4, 37, 53)])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_masks_act_on_gradients(device: str, shape: tuple[int, ...], heads: tuple[int, int]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.5
    mask[..., 0] = True
    options = {"attn_mask": mask.to(device), "enable_gqa": heads[0] != heads[1]}
    check(4, operands(4, device, heads=heads), **options)


@pytest.mark.parametrize("shape", [(37, 53), (53,), (1, 53), (4, 37, 1), (4, 1, 1), (2, 1, 37, 53), (2, 4, 37, 53)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_gradient_of_a_bias_is_summed_where_it_broadcasts(
    device: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = operands(3, device, dtype)
    bias = random(3, *shape, device=device, dtype=dtype)
    # That of a bias which all keys of a row share is 0 but for rounding.
    if shape[-1] == 1:
        leaves = [tensor.requires_grad_() for tensor in (*given.operands, bias)]
        (found,) = torch.autograd.grad(attend(*leaves).sum(), leaves[3:])
        assert found.shape == shape and found.abs().max() < 1e3 * TOLERANCE[dtype]
        return
    check(3, given, bias=bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 4, 37, 53), (53,)])
def test_a_bias_in_32_bits_has_its_gradient_in_32_bits(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(15, operands(15, device, dtype), bias=random(15, *shape, device=device, dtype=torch.float32))


def test_a_bias_of_grouped_heads_beside_a_causal_mask(device: str) -> None:
    given = operands(16, device, heads=(6, 2), sizes=(50, 50))
    bias = random(16, 6, 50, 50, device=device)
    grad_out = gradient_of_out(16, given)
    found = differentiate(attend, [*given.operands, bias], grad_out, is_causal=True, enable_gqa=True)

    # PyTorch takes no mask beside is_causal.
    def reference(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, **options: Any) -> Tensor:
        hidden = bias.masked_fill(~band(50, 50, is_causal=True), -torch.inf)
        return functional.scaled_dot_product_attention(query, key, value, hidden, **options)

    doubles = [tensor.cpu().double() for tensor in (*given.operands, bias)]
    expected = differentiate(reference, doubles, grad_out.cpu(), enable_gqa=True)
    assert_near(found, expected, 4 * TOLERANCE[given.query.dtype])


# How tensors of four axes lie in memory, made of others without changing their numbers.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "[B, S, H, D]": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "[B, H, D, S]": lambda tensor: tensor.transpose(2, 3).contiguous().transpose(2, 3),
    "part of a projection": lambda tensor: torch.cat([tensor, tensor], -1)[..., tensor.shape[-1] :],
    "rows at odd distances": lambda tensor: functional.pad(tensor, (1, 2))[..., 1:-2],
    "every other row": lambda tensor: tensor.repeat_interleave(2, 2)[:, :, ::2],
}


@pytest.mark.parametrize("of_out", ["dense", *LAYOUTS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_order(device: str, layout: str, of_out: str) -> None:
    given = operands(17, device, heads=(4, 2), channels=(64, 32))
    grad_out = gradient_of_out(17, given)

    def strided(*tensors: Tensor) -> Tensor:
        return attend(*(LAYOUTS[layout](tensor) for tensor in tensors), enable_gqa=True)

    lies = grad_out if of_out == "dense" else LAYOUTS[of_out](grad_out)
    found = differentiate(strided, [*given.operands], lies)
    expected = exact([*given.operands], grad_out, enable_gqa=True)
    assert_near(found, expected, 4 * TOLERANCE[given.query.dtype])


def test_queries_that_see_no_key_have_no_gradient(device: str) -> None:
    given = operands(4, device)
    mask = torch.rand(37, 53, generator=torch.Generator().manual_seed(4)) < 0.5
    mask[5] = False
    leaves = [tensor.requires_grad_() for tensor in given.operands]
    attend(*leaves, mask.to(device)).sum().backward()
    assert given.query.grad is not None and given.query.grad[:, :, 5].eq(0).all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_nothing_has_a_gradient_of_zeros(device: str, sizes: tuple[int, int]) -> None:
    leaves = [tensor.requires_grad_() for tensor in operands(18, device, sizes=sizes).operands]
    bias = random(18, *sizes, device=device).requires_grad_()
    for gradient in torch.autograd.grad(attend(*leaves, bias).sum(), [*leaves, bias]):
        assert gradient.eq(0).all()


@pytest.mark.parametrize("wanted", range(1, 16))
def test_any_of_them_may_be_asked_for(device: str, wanted: int) -> None:
    tensors = [*operands(5, device).operands, random(5, 37, 53, device=device)]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    whole = torch.autograd.grad(attend(*leaves).square().sum(), leaves)
    some = [tensor.clone().requires_grad_(bool(wanted >> at & 1)) for at, tensor in enumerate(tensors)]
    attend(*some).square().sum().backward()
    for found, expected in zip(some, whole, strict=True):
        assert found.grad is None if not found.requires_grad else torch.equal(found.grad, expected)


def test_finite_differences_agree() -> None:
    # Which need 64 bits.
    given = operands(6, "cpu", torch.float64, batch=(1,), heads=(2, 1), sizes=(3, 5), channels=(4, 3))
    leaves = [tensor.requires_grad_() for tensor in (*given.operands, torch.randn(2, 1, 5, dtype=torch.float64))]
    options: dict[str, Any] = {"enable_gqa": True, "window": (2, 1), "causal_alignment": "bottom_right"}
    assert torch.autograd.gradcheck(lambda *tensors: attend(*tensors, **options), leaves)


def test_tensors_that_broadcast_get_their_own_gradients(device: str) -> None:
    given = operands(7, device, sizes=(9, 11), channels=(8, 8))
    tensors = [given.query, given.key[:1, :1], given.value[:, :1]]
    grad_out = gradient_of_out(7, given)

    def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        wide = [tensor.expand(*query.shape[:2], -1, -1) for tensor in (key, value)]
        return functional.scaled_dot_product_attention(query, *wide)

    expected = differentiate(reference, [tensor.cpu().double() for tensor in tensors], grad_out.cpu())
    # Sums of gradients that were rounded each.
    assert_near(differentiate(attend, tensors, grad_out), expected, 8 * TOLERANCE[given.query.dtype])


def test_several_batch_axes(device: str) -> None:
    given = operands(19, device, batch=(2, 3), sizes=(9, 11), channels=(8, 8))
    bias = random(19, 3, 1, 9, 11, device=device)
    check(19, given, bias=bias)
    axis_last = [tensor.movedim(0, 1).contiguous().movedim(1, 0) for tensor in given.operands]
    check(19, Problem(*axis_last), bias=bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_are_the_same_in_every_run_and_memory_order(device: str, dtype: torch.dtype) -> None:
    given = operands(8, device, dtype)
    grad_out = gradient_of_out(8, given)
    first = differentiate(attend, [*given.operands], grad_out)
    swapped = [LAYOUTS["[B, S, H, D]"](tensor) for tensor in given.operands]
    for tensors in ([*given.operands], swapped):
        for found, expected in zip(differentiate(attend, tensors, grad_out), first, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients_are_the_same(device: str, backend: str) -> None:
    torch._dynamo.reset()
    tensors = [*operands(9, device).operands, random(9, 37, 53, device=device)]
    grad_out = torch.randn_like(tensors[0])
    compiled = torch.compile(lambda *leaves: attend(*leaves), fullgraph=True, backend=backend)
    for found, expected in zip(
        differentiate(compiled, tensors, grad_out), differentiate(attend, tensors, grad_out), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_operators_keep_pytorchs_rules(device: str, transposed: bool) -> None:
    tensors = operands(10, device, sizes=(5, 7), channels=(8, 8)).operands
    if transposed:
        query, key, value = (LAYOUTS["[B, S, H, D]"](tensor) for tensor in tensors)
        tensors = query, key, value
    leaves = [tensor.requires_grad_() for tensor in tensors]
    bias = random(10, 5, 7, device=device)
    settings: tuple[Any, ...] = (None, None, None, False, False)
    opcheck(torch.ops.fourtap.dense.default, (*leaves, *settings, True))
    opcheck(torch.ops.fourtap.dense.default, (*leaves, *settings, True, bias.clone().requires_grad_()))
    for mask, wanted in ((None, [True, False, True, False]), (bias, [False, True, False, True])):
        out, lse = torch.ops.fourtap.dense(*leaves, *settings, True, mask)
        assert not lse.requires_grad
        plain = [tensor.detach() for tensor in (torch.ones_like(out), *leaves)]
        opcheck(torch.ops.fourtap.dense_backward.default, (*plain, *settings, mask, out.detach(), lse, wanted))


def test_autocast_gives_gradients_in_the_tensors_own_types(device: str) -> None:
    tensors = problem(11, device=device, dtype=torch.float32).operands
    bias = random(11, 37, 53, device=device, dtype=torch.float32)
    leaves = [tensor.requires_grad_() for tensor in (*tensors, bias)]
    with torch.autocast(device, torch.bfloat16):
        out = attend(*leaves)
    assert out.dtype is torch.bfloat16
    grad_out = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, grad_out)
    assert all(gradient.dtype is torch.float32 for gradient in found)
    assert_near(found, exact(leaves, grad_out), 4 * TOLERANCE[torch.bfloat16])


def test_gradients_of_several_losses_at_once(device: str) -> None:
    leaves = [tensor.requires_grad_() for tensor in operands(20, device, sizes=(5, 7), channels=(8, 8)).operands]
    out = attend(*leaves)
    losses = torch.stack([torch.randn_like(out) for _ in range(3)])
    together = torch.autograd.grad(out, leaves, losses, is_grads_batched=True, retain_graph=True)
    for at, loss in enumerate(losses):
        for found, expected in zip(together, torch.autograd.grad(out, leaves, loss, retain_graph=True), strict=True):
            assert torch.equal(found[at], expected)


def test_second_derivatives_are_refused(device: str) -> None:
    query, key, value = operands(13, device).operands
    query.requires_grad_()
    (gradient,) = torch.autograd.grad(attend(query, key, value).square().sum(), query, create_graph=True)
    with pytest.raises(fourtap.UnsupportedError, match="expected to be differentiated once"):
        gradient.sum().backward()


def test_the_operator_alone_needs_the_lse(device: str) -> None:
    query, key, value = operands(14, device).operands
    with pytest.raises(fourtap.InputError, match="return_lse: expected True where gradients are wanted"):
        torch.ops.fourtap.dense(query.requires_grad_(), key, value, None, None, None, False, False, False)
