"""First derivatives inside transforms of torch.func, and calls mapped by vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vjp, vmap
from torch.nn import functional

import fourtap
from fourtap.nn import MSDeformAttn

LEVELS = [(3, 5), (2, 2)]
PIXELS, IMAGES, QUERIES, HEADS, POINTS, CHANNELS = 19, 2, 4, 2, 3, 8


@pytest.fixture(autouse=True)
def _nothing_is_slow() -> Iterator[None]:
    """No call falls back to PyTorch's loop over mapped calls, of which it warns."""
    with warnings.catch_warnings():
        if hasattr(torch.library, "register_vmap"):
            warnings.filterwarnings("error", message="There is a performance drop")
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def given(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [
        random(*mapped, IMAGES, PIXELS, HEADS, CHANNELS),
        random(*mapped, IMAGES, QUERIES, HEADS, 2, POINTS, 2).mul(0.3).add(0.5),
        random(*mapped, IMAGES, QUERIES, HEADS, 2, POINTS),
    ]
    return tensors, lambda value, locations, weights: fourtap.ms_deform_attn(value, LEVELS, locations, weights)


def projected(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [
        random(*mapped, IMAGES, PIXELS, HEADS, CHANNELS),
        random(*mapped, 1, QUERIES, 1, 2).mul(0.3).add(0.5),
        random(*mapped, IMAGES, QUERIES, HEADS, 2 * POINTS, 2),
        random(*mapped, IMAGES, QUERIES, HEADS, 2 * POINTS),
    ]
    mask = torch.rand(IMAGES, PIXELS) < 0.2

    def attend(value: Tensor, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(value, LEVELS, references, offsets, logits, value_mask=mask)

    return tensors, attend


def projected_in_one(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [
        random(*mapped, IMAGES, PIXELS, HEADS, CHANNELS),
        random(*mapped, IMAGES, QUERIES, 1, 4).abs().mul(0.3),
        random(*mapped, IMAGES, QUERIES, HEADS * 2 * POINTS * 3),
    ]

    def attend(value: Tensor, boxes: Tensor, both: Tensor) -> Tensor:
        return fourtap.ms_deform_attn_from_projections(value, LEVELS, boxes, both, None, box_scale=0.5)

    return tensors, attend


def dense(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [
        random(*mapped, IMAGES, HEADS, QUERIES, CHANNELS),
        random(*mapped, IMAGES, HEADS, 7, CHANNELS),
        random(*mapped, IMAGES, HEADS, 7, CHANNELS),
        random(*mapped, HEADS, 1, 7),
    ]
    return tensors, fourtap.scaled_dot_product_attention


def dense_of_two_axes(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [random(*mapped, QUERIES, CHANNELS), random(*mapped, 7, CHANNELS), random(*mapped, 7, CHANNELS)]
    return tensors, fourtap.scaled_dot_product_attention


def dense_of_five_axes(mapped: tuple[int, ...] = ()) -> tuple[list[Tensor], Callable[..., Tensor]]:
    tensors = [
        random(*mapped, 2, 3, 4, QUERIES, CHANNELS),
        random(*mapped, 2, 3, 2, 7, CHANNELS),
        random(*mapped, 2, 3, 2, 7, CHANNELS),
        random(*mapped, 3, 1, QUERIES, 7),
    ]
    return tensors, lambda *tensors: fourtap.scaled_dot_product_attention(*tensors, enable_gqa=True)


OPERATORS = [given, projected, projected_in_one, dense, dense_of_two_axes, dense_of_five_axes]


def gradients(attend: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """By autograd."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    attend(*leaves).square().sum().backward()
    return [leaf.grad for leaf in leaves]  # type: ignore[misc]


def squared(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *tensors: attend(*tensors).square().sum()


@pytest.mark.parametrize("operator", OPERATORS)
def test_grad_is_that_of_autograd(operator: Any) -> None:
    tensors, attend = operator()
    found = grad(squared(attend), argnums=tuple(range(len(tensors))))(*tensors)
    for one, other in zip(found, gradients(attend, tensors), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("operator", OPERATORS)
def test_vjp_and_jacrev_are_those_of_autograd(operator: Any) -> None:
    tensors, attend = operator()
    out, pull = vjp(attend, *tensors)
    assert torch.equal(out, attend(*tensors))
    for one, other in zip(pull(2 * out), gradients(attend, tensors), strict=True):
        torch.testing.assert_close(one, other)
    for at in range(len(tensors)):
        found = jacrev(attend, argnums=at)(*tensors)
        expected = torch.autograd.functional.jacobian(
            lambda tensor, at=at: attend(*tensors[:at], tensor, *tensors[at + 1 :]), tensors[at]
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_vmap_is_a_loop(operator: Any) -> None:
    tensors, attend = operator((3,))
    expected = torch.stack([attend(*one) for one in zip(*tensors, strict=True)])
    torch.testing.assert_close(vmap(attend)(*tensors), expected)
    last = [tensor.movedim(0, -1) for tensor in tensors]
    torch.testing.assert_close(vmap(attend, in_dims=-1)(*last), expected)
    for at in range(len(tensors)):
        dims = [None] * len(tensors)
        dims[at] = 0  # type: ignore[call-overload]
        some = [tensor if at == index else tensor[0] for index, tensor in enumerate(tensors)]
        expected = torch.stack([attend(*some[:at], one, *some[at + 1 :]) for one in some[at]])
        torch.testing.assert_close(vmap(attend, in_dims=tuple(dims))(*some), expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_of_samples_are_those_of_a_loop(operator: Any) -> None:
    tensors, attend = operator((3,))
    every = tuple(range(len(tensors)))
    expected = [gradients(attend, list(one)) for one in zip(*tensors, strict=True)]
    found = vmap(grad(squared(attend), argnums=every))(*tensors)
    for at in every:
        torch.testing.assert_close(found[at], torch.stack([one[at] for one in expected]))
    # One argument is mapped, all have gradients for each sample.
    for mapped in every:
        some = [tensor if at == mapped else tensor[0] for at, tensor in enumerate(tensors)]
        dims = tuple(0 if at == mapped else None for at in every)
        found = vmap(grad(squared(attend), argnums=every), in_dims=dims)(*some)
        for sample, one in enumerate(some[mapped]):
            expected = gradients(attend, [*some[:mapped], one, *some[mapped + 1 :]])
            for at in every:
                torch.testing.assert_close(found[at][sample], expected[at])


def test_gradients_of_samples_of_a_module() -> None:
    torch.manual_seed(1)
    module = MSDeformAttn(d_model=16, n_levels=2, n_heads=2, n_points=2).double()
    torch.nn.init.normal_(module.sampling_offsets.weight, std=0.1)
    torch.nn.init.normal_(module.attention_weights.weight, std=0.1)
    parameters = dict(module.named_parameters())
    query, features = random(3, 4, 16), random(3, PIXELS, 16)
    references = torch.rand(3, 4, 2, 2, dtype=torch.float64)

    def loss(parameters: Any, query: Tensor, references: Tensor, features: Tensor) -> Tensor:
        one = (query[None], references[None], features[None], LEVELS)
        return functional_call(module, parameters, one).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, query, references, features)
    for sample in range(3):
        module.zero_grad()
        loss(parameters, query[sample], references[sample], features[sample]).backward()
        for name, parameter in parameters.items():
            torch.testing.assert_close(found[name][sample], parameter.grad)


@pytest.mark.parametrize("operator", [given, projected, dense])
def test_second_derivatives_are_refused_by_name(operator: Any) -> None:
    tensors, attend = operator()
    name = "scaled_dot_product_attention" if operator is dense else "ms_deform_attn"
    with pytest.raises(fourtap.UnsupportedError, match=f"{name}.*differentiated once"):
        grad(lambda value: grad(squared(attend))(value, *tensors[1:]).sum())(tensors[0])
    with pytest.raises(fourtap.UnsupportedError, match="forward mode"):
        torch.func.jacfwd(attend)(*tensors)


def test_levels_are_not_mapped() -> None:
    (value, locations, weights), _ = given()
    levels = torch.tensor([LEVELS, LEVELS])
    with pytest.raises(fourtap.UnsupportedError, match="spatial_shapes: expected the same levels"):
        vmap(lambda one: fourtap.ms_deform_attn(value, one, locations, weights))(levels)


def test_a_bias_of_all_samples_agrees_with_pytorch() -> None:
    (query, key, value, bias), _ = dense((3,))
    ours = vmap(grad(squared(fourtap.scaled_dot_product_attention), argnums=3), in_dims=(0, 0, 0, None))
    theirs = grad(squared(functional.scaled_dot_product_attention), argnums=3)
    found = ours(query, key, value, bias[0])
    for sample in range(3):
        torch.testing.assert_close(found[sample], theirs(query[sample], key[sample], value[sample], bias[0]))
