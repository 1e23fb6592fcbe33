"""The two layers over the query as one matrix product: when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fourtap.nn import MSDeformAttn

SHAPES = [(6, 9), (3, 4)]


def build(device: str, dtype: torch.dtype = torch.float32) -> MSDeformAttn:
    torch.manual_seed(0)
    module = MSDeformAttn(12, len(SHAPES), n_heads=3, n_points=2, device=device, dtype=dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module.eval()


def operands(device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    query, features = torch.randn(2, 7, 12, device=device), torch.randn(2, 66, 12, device=device)
    return query.to(dtype), torch.rand(2, 7, 2, 2, device=device), features.to(dtype)


def expected_of(module: MSDeformAttn, tensors: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    state = {name: parameter.detach().double() for name, parameter in module.state_dict().items()}
    query, points, features = (tensor.double() for tensor in tensors)
    return reference.module(state, 3, 2, query, points, features, SHAPES)


def products_of(module: MSDeformAttn, *tensors: Tensor) -> list[int]:
    """How many columns each matrix product of the module has."""
    products: list[int] = []
    linear = nn.functional.linear

    def count(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        products.append(weight.shape[0])
        return linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", count)
        module(*tensors, SHAPES)
    return products


def test_one_product_computes_both_where_that_saves_something(device: str) -> None:
    module, tensors = build(device), operands(device)
    apart, together = [12, 24, 12, 12], [12, 36, 12]
    assert products_of(module, *tensors) == together
    with torch.no_grad():
        assert products_of(module, *tensors) == apart
        with torch.autocast(device, torch.bfloat16):
            assert products_of(module, *tensors) == together


def called_apart(module: MSDeformAttn, *tensors: Tensor) -> Tensor:
    """The module's result, with both layers called: a hook that does nothing sees to that."""
    handle = module.sampling_offsets.register_forward_hook(lambda layer, inputs, output: None)
    found = module(*tensors, SHAPES)
    handle.remove()
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_the_layers(device: str, bias: bool) -> None:
    module, tensors = build(device, torch.float64), operands(device, torch.float64)
    if not bias:
        module.sampling_offsets.bias = module.attention_weights.bias = None
    query, points, features = (tensor.double().requires_grad_() for tensor in tensors)
    wanted = [query, points, features, *module.parameters()]
    found = torch.autograd.grad(module(query, points, features, SHAPES).square().sum(), wanted)
    expected = torch.autograd.grad(called_apart(module, query, points, features).square().sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        assert one.any()
        reference.assert_close(one, other, 1e-12)


@pytest.mark.parametrize("frozen", ["sampling_offsets", "attention_weights", "both"])
def test_only_what_requires_gradients_gets_them(device: str, frozen: str) -> None:
    module, tensors = build(device), operands(device)
    layers = ["sampling_offsets", "attention_weights"]
    for name in layers if frozen == "both" else [frozen]:
        getattr(module, name).requires_grad_(False)
    module(*tensors, SHAPES).sum().backward()
    for name in layers:
        gradient = getattr(module, name).weight.grad
        assert (gradient is None) == (frozen in (name, "both"))


def test_with_gradients_there_is_one_product(device: str) -> None:
    module, tensors = build(device), operands(device)
    out = module(*tensors, SHAPES)
    functions, products = [out.grad_fn], 0
    while functions:
        function = functions.pop()
        products += type(function).__name__ == "AddmmBackward0"
        functions += [other for other, _ in function.next_functions if other is not None]
    assert products == 3


@torch.no_grad()
def test_another_dtype_is_noticed(device: str) -> None:
    module, tensors = build(device), operands(device)
    module(*tensors, SHAPES)
    with torch.autocast(device, torch.bfloat16):
        cast = module(*tensors, SHAPES)
    assert cast.dtype is torch.bfloat16
    reference.assert_close(cast, expected_of(module, tensors), 0.03)
    reference.assert_close(module(*tensors, SHAPES), expected_of(module, tensors), 1e-5)
    module.double()
    tensors = operands(device, torch.float64)
    reference.assert_close(module(*tensors, SHAPES), expected_of(module, tensors), 1e-12)


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def with_subclass(module: MSDeformAttn) -> None:
    layer = Scaled(12, 24)
    layer.load_state_dict(module.sampling_offsets.state_dict())
    module.sampling_offsets = layer.to(module.value_proj.weight.device)


def with_forward_hook(module: MSDeformAttn) -> None:
    module.sampling_offsets.register_forward_hook(lambda layer, inputs, output: output * 2)


def with_pre_hook(module: MSDeformAttn) -> None:
    module.sampling_offsets.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 0.5,))


def with_own_forward(module: MSDeformAttn) -> None:
    layer = module.sampling_offsets
    layer.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias) + 1  # type: ignore[method-assign]


def with_parametrization(module: MSDeformAttn) -> None:
    parametrizations.weight_norm(module.sampling_offsets)
    with torch.no_grad():
        module.sampling_offsets.parametrizations.weight.original0.mul_(2)


@pytest.mark.parametrize(
    "change", [with_subclass, with_forward_hook, with_pre_hook, with_own_forward, with_parametrization]
)
def test_layers_of_ones_own_are_called(device: str, change: Callable[[MSDeformAttn], None]) -> None:
    module, tensors = build(device), operands(device)
    with torch.no_grad():
        before = module(*tensors, SHAPES)
    change(module)
    expected = called_apart(module, *tensors)
    with torch.no_grad():
        found = module(*tensors, SHAPES)
    assert torch.equal(found, expected)
    assert not torch.allclose(found, before, atol=1e-3)


def test_inference_mode_and_no_grad_may_follow_each_other(device: str) -> None:
    module, tensors = build(device), operands(device)
    with torch.inference_mode():
        first = module(*tensors, SHAPES)
    with torch.no_grad():
        second = module(*tensors, SHAPES)
    assert torch.equal(first, second)
    with torch.inference_mode():
        made_there = build(device)
        reference.assert_close(made_there(*tensors, SHAPES), first, 1e-6)
