"""The two layers over the query as one matrix product: when, and never with old parameters."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import reference
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations

from fourtap import _joined
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


def is_joined(module: MSDeformAttn) -> bool:
    return module in _joined._joined


@torch.no_grad()
def test_one_product_computes_both(device: str) -> None:
    module, tensors = build(device), operands(device)
    products: list[int] = []
    linear = nn.functional.linear

    def count(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        products.append(weight.shape[0])
        return linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", count)
        found = module(*tensors, SHAPES)
    assert products == [12, 36, 12]
    assert is_joined(module)
    reference.assert_close(found, expected_of(module, tensors), 1e-5)


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
    # The joined parameters are kept only where they cannot get old.
    assert not is_joined(module)
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


def step(module: MSDeformAttn) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    with torch.enable_grad():
        module(*operands(str(module.value_proj.weight.device)), SHAPES).square().sum().backward()
    optimizer.step()


def load(module: MSDeformAttn, *, assign: bool = False) -> None:
    other = {name: tensor + 0.25 for name, tensor in module.state_dict().items()}
    module.load_state_dict(other, assign=assign)


def write_behind_the_back(module: MSDeformAttn) -> None:
    """As averages of a model do; they switch it to evaluation before they use it."""
    module.sampling_offsets.weight.data.mul_(3)
    module.eval()


def replace_a_parameter(module: MSDeformAttn) -> None:
    module.sampling_offsets.bias = nn.Parameter(module.sampling_offsets.bias + 1.0)


def replace_a_layer(module: MSDeformAttn) -> None:
    other = nn.Linear(12, 12).to(module.value_proj.weight)
    module.attention_weights = other


def assign_data(module: MSDeformAttn) -> None:
    module.attention_weights.weight.data = module.attention_weights.weight.data * 2


def there_and_back(module: MSDeformAttn) -> None:
    module.double()
    module.sampling_offsets.weight.mul_(1.5)
    module.float()


CHANGES: list[Callable[[MSDeformAttn], None]] = [
    step,
    load,
    lambda module: load(module, assign=True),
    write_behind_the_back,
    replace_a_parameter,
    replace_a_layer,
    assign_data,
    there_and_back,
    lambda module: module._reset_parameters(),
    lambda module: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(module.parameters()) * 0.5, module.parameters()
    ),
]


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changed_parameters_are_noticed(device: str, change: Callable[[MSDeformAttn], None]) -> None:
    module, tensors = build(device), operands(device)
    before = module(*tensors, SHAPES)
    assert is_joined(module)
    change(module)
    found, expected = module(*tensors, SHAPES), expected_of(module, tensors)
    assert not torch.allclose(before, found, atol=1e-3)
    reference.assert_close(found, expected, 1e-5)


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


@torch.no_grad()
def test_nothing_of_it_is_kept_with_the_module(device: str) -> None:
    module, tensors = build(device), operands(device)
    names, attributes = list(module.state_dict()), set(vars(module))
    expected = module(*tensors, SHAPES)
    assert list(module.state_dict()) == names and set(vars(module)) == attributes
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(*tensors, SHAPES), expected)
        twin.sampling_offsets.weight.mul_(2)
        assert torch.equal(module(*tensors, SHAPES), expected)
        assert not torch.equal(twin(*tensors, SHAPES), expected)
    kept = len(_joined._joined)
    del module, twin
    gc.collect()
    assert len(_joined._joined) < kept


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


@torch.no_grad()
def test_fake_tensors_are_not_kept(device: str) -> None:
    module, tensors = build(device), operands(device)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module(*(torch.empty_like(tensor) for tensor in tensors), SHAPES)
    assert not is_joined(module)
    reference.assert_close(module(*tensors, SHAPES), expected_of(module, tensors), 1e-5)


@torch.no_grad()
def test_functional_calls_use_their_own_parameters(device: str) -> None:
    module, tensors = build(device), operands(device)
    module(*tensors, SHAPES)
    other = {name: parameter * 2 for name, parameter in module.named_parameters()}
    found = torch.func.functional_call(module, other, (*tensors, SHAPES))
    module.load_state_dict(other)
    reference.assert_close(found, expected_of(module, tensors), 1e-5)
