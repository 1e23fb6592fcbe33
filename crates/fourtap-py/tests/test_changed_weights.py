"""Weights changed in every way that PyTorch has: the next call must compute with the new ones."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import reference
import stand_ins
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from fourtap import ms_deform_attn
from fourtap.compat import rfdetr
from fourtap.compat._frozen_batch_norm import in_one_operator
from fourtap.compat.mmcv import MultiScaleDeformableAttention
from fourtap.nn import MSDeformAttn

SHAPES = [(6, 9), (3, 4)]
CHANNELS, HEADS, POINTS = 12, 3, 2


class FrozenBatchNorm2d(nn.Module):
    """As detectors' backbones write it down."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, variance = (
            tensor.reshape(1, -1, 1, 1) for tensor in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        scale = weight * (variance + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class InOneOperator(FrozenBatchNorm2d):
    forward = in_one_operator(FrozenBatchNorm2d)  # type: ignore[assignment]


@dataclass(frozen=True)
class Subject:
    """A module, how it is called, and the layer whose weight is changed."""

    build: Callable[[], nn.Module]
    call: Callable[..., Tensor]
    layer: str = "sampling_offsets"


def rf_detr() -> nn.Module:
    home = importlib.import_module("rfdetr.models.ops.modules.ms_deform_attn")
    module: nn.Module = home.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS)
    return module


def call_mmcv(module: Any, query: Tensor, points: Tensor, features: Tensor) -> Tensor:
    found: Tensor = module(query, value=features, reference_points=points, spatial_shapes=SHAPES)
    return found


def call_rf_detr(module: Any, query: Tensor, points: Tensor, features: Tensor) -> Tensor:
    levels = (torch.tensor(SHAPES, device=query.device), torch.tensor([0, 54], device=query.device))
    found: Tensor = module(query, points, features, *levels)
    return found


SUBJECTS = {
    "MSDeformAttn": Subject(
        lambda: MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS), lambda module, *tensors: module(*tensors, SHAPES)
    ),
    "mmcv": Subject(
        lambda: MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, batch_first=True), call_mmcv
    ),
    "rfdetr": Subject(rf_detr, call_rf_detr),
    "frozen batch norm": Subject(
        lambda: nn.Sequential(InOneOperator(CHANNELS)), lambda module, *tensors: module(tensors[0].mT[..., None]), "0"
    ),
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param != "rfdetr":
        yield SUBJECTS[request.param]
        return
    with stand_ins.installed(stand_ins.RF_DETR, tmp_path):
        rfdetr.patch()
        yield SUBJECTS[request.param]
        rfdetr.unpatch()


def built(subject: Subject, device: str) -> nn.Module:
    """A module whose tensors all matter: as initialised, the query has no influence on anything."""
    torch.manual_seed(0)
    module = subject.build().to(device).eval()
    for tensor in module.state_dict().values():
        tensor.add_(torch.rand_like(tensor) * 0.3)
    return module


def operands(device: str) -> list[Tensor]:
    torch.manual_seed(1)
    tensors = torch.randn(2, 7, CHANNELS), torch.rand(2, 7, len(SHAPES), 2), torch.randn(2, 66, CHANNELS)
    return [tensor.to(device) for tensor in tensors]


def expected_of(subject: Subject, module: nn.Module, tensors: list[Tensor]) -> Tensor:
    """What a new module computes with the same weights."""
    twin = subject.build().to(tensors[0].device).eval()
    with torch.no_grad():
        for path, tensor in twin.state_dict().items():
            layer, _, name = path.rpartition(".")
            tensor.copy_(getattr(module.get_submodule(layer), name))
        return subject.call(twin, *tensors)


def weight_of(module: nn.Module, subject: Subject) -> Tensor:
    weight: Tensor = module.get_submodule(subject.layer).weight  # type: ignore[assignment]
    return weight


def set_weight(module: nn.Module, subject: Subject, tensor: Tensor) -> None:
    layer = module.get_submodule(subject.layer)
    layer.weight = nn.Parameter(tensor) if isinstance(layer.weight, nn.Parameter) else tensor


def write_through_numpy(module: nn.Module, subject: Subject) -> None:
    weight = weight_of(module, subject)
    if weight.is_cuda:
        pytest.skip("NumPy does not see this memory")
    weight.detach().numpy()[...] *= 0.5


def write_and_count_nothing(module: nn.Module, subject: Subject) -> None:
    """As a kernel does that PyTorch knows nothing of."""
    weight = weight_of(module, subject)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
        weight.mul_(0.5)


def write_storage(module: nn.Module, subject: Subject) -> None:
    weight = weight_of(module, subject)
    weight.untyped_storage().copy_((weight.detach() * 0.5).contiguous().untyped_storage())


def write_into_a_flat_buffer(module: nn.Module, subject: Subject) -> None:
    """Parameters that are views of one tensor, as optimizers and FSDP make them."""
    weight = weight_of(module, subject)
    flat = weight.detach().reshape(-1).clone()
    weight.data = flat.view_as(weight)
    subject.call(module, *operands(str(weight.device)))
    flat.mul_(0.5)


def in_inference_mode(module: nn.Module, subject: Subject) -> None:
    with torch.inference_mode():
        weight_of(module, subject).mul_(0.5)


def by_inference_tensor(module: nn.Module, subject: Subject) -> None:
    with torch.inference_mode():
        set_weight(module, subject, weight_of(module, subject) * 0.5)


def step(**options: Any) -> Callable[[nn.Module, Subject], None]:
    def change(module: nn.Module, subject: Subject) -> None:
        weight = weight_of(module, subject)
        if not isinstance(weight, nn.Parameter):
            pytest.skip("it has no parameters")
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], lr=0.2, **options).step()

    return change


def load(*, assign: bool) -> Callable[[nn.Module, Subject], None]:
    def change(module: nn.Module, subject: Subject) -> None:
        other = {name: tensor * 0.5 + 0.25 for name, tensor in module.state_dict().items()}
        module.load_state_dict(other, assign=assign)

    return change


def there_and_back(module: nn.Module, subject: Subject) -> None:
    """Twice, with a call in between, and other weights in the same memory afterwards."""
    module.double()
    subject.call(module, *(tensor.double() for tensor in operands(str(weight_of(module, subject).device))))
    weight_of(module, subject).data.mul_(0.5)
    module.float()


def rounded(module: nn.Module, subject: Subject) -> None:
    weight_of(module, subject).data.mul_(0.5)
    module.bfloat16().float()


def by_vector(module: nn.Module, subject: Subject) -> None:
    if not list(module.parameters()):
        pytest.skip("it has no parameters")
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, module.parameters())


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


def by_parametrization(module: nn.Module, subject: Subject) -> None:
    layer = module.get_submodule(subject.layer)
    parametrize.register_parametrization(layer, "weight", Halved())


def by_changed_parametrization(module: nn.Module, subject: Subject) -> None:
    layer = module.get_submodule(subject.layer)
    parametrize.register_parametrization(layer, "weight", nn.Identity())
    subject.call(module, *operands(str(layer.bias.device)))  # type: ignore[union-attr]
    layer.parametrizations.weight.original.data.mul_(0.5)  # type: ignore[union-attr]


def by_weight_norm(module: nn.Module, subject: Subject) -> None:
    if weight_of(module, subject).dim() < 2:
        pytest.skip("it has a weight per channel")
    layer = parametrizations.weight_norm(module.get_submodule(subject.layer))
    layer.parametrizations.weight.original0.data.mul_(0.5)


def by_pruning(module: nn.Module, subject: Subject) -> None:
    if not list(module.parameters()):
        pytest.skip("it has no parameters")
    prune.l1_unstructured(module.get_submodule(subject.layer), "weight", amount=0.5)


def by_swapping(module: nn.Module, subject: Subject) -> None:
    weight = weight_of(module, subject)
    half = (weight * 0.5).detach()
    torch.utils.swap_tensors(weight, nn.Parameter(half) if isinstance(weight, nn.Parameter) else half)


def by_swapping_module(module: nn.Module, subject: Subject) -> None:
    other = copy.deepcopy(module.get_submodule(subject.layer))
    other.weight.data.mul_(0.5)  # type: ignore[union-attr]
    module.set_submodule(subject.layer, other)


def foreach(module: nn.Module, subject: Subject) -> None:
    torch._foreach_mul_([weight_of(module, subject)], 0.5)


CHANGES: dict[str, Callable[[nn.Module, Subject], Any]] = {
    "in place": lambda module, subject: weight_of(module, subject).mul_(0.5),
    "copy_": lambda module, subject: weight_of(module, subject).copy_(weight_of(module, subject) * 0.5),
    "indexed": lambda module, subject: weight_of(module, subject).__setitem__(0, 0.75),
    "data, in place": lambda module, subject: weight_of(module, subject).data.mul_(0.5),
    "data, assigned": lambda module, subject: setattr(
        weight_of(module, subject), "data", weight_of(module, subject).data * 0.5
    ),
    "detached, in place": lambda module, subject: weight_of(module, subject).detach().mul_(0.5),
    "average of models": lambda module, subject: weight_of(module, subject).data.lerp_(
        torch.ones_like(weight_of(module, subject)), 0.3
    ),
    "NumPy": write_through_numpy,
    "DLPack": lambda module, subject: torch.from_dlpack(weight_of(module, subject).detach()).mul_(0.5),
    "nothing counted": write_and_count_nothing,
    "storage": write_storage,
    "flat buffer": write_into_a_flat_buffer,
    "set_": lambda module, subject: weight_of(module, subject).set_(weight_of(module, subject) * 0.5),  # type: ignore[call-overload]
    "inference mode": in_inference_mode,
    "inference tensor": by_inference_tensor,
    "foreach": foreach,
    "optimizer, foreach": step(foreach=True),
    "optimizer, fused": step(fused=True),
    "optimizer, plain": step(foreach=False, fused=False),
    "load_state_dict": load(assign=False),
    "load_state_dict, assigned": load(assign=True),
    "double and back": there_and_back,
    "bfloat16 and back": rounded,
    "_apply": lambda module, subject: module._apply(lambda tensor: tensor * 0.5),
    "vector_to_parameters": by_vector,
    "new tensor": lambda module, subject: set_weight(module, subject, (weight_of(module, subject) * 0.5).detach()),
    "swap_tensors": by_swapping,
    "other layer": by_swapping_module,
    "parametrization": by_parametrization,
    "parametrization, changed": by_changed_parametrization,
    "weight_norm": by_weight_norm,
    "prune": by_pruning,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_call_has_the_new_weights(
    device: str, subject: Subject, change: str, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    module, tensors = built(subject, device), operands(device)
    with mode():
        before = subject.call(module, *tensors).detach().clone()
        subject.call(module, *tensors)
    with torch.no_grad():
        CHANGES[change](module, subject)
    if change == "inference tensor" and mode is torch.enable_grad:
        module.requires_grad_(False)
    with mode():
        found = subject.call(module, *tensors)
    expected = expected_of(subject, module, tensors)
    assert not torch.allclose(before, expected, atol=1e-3), "the change makes no difference"
    reference.assert_close(found.detach(), expected, 1e-5)


@torch.no_grad()
def test_functional_calls_have_their_own_weights(device: str, subject: Subject) -> None:
    module, tensors = built(subject, device), operands(device)
    before = subject.call(module, *tensors)
    other = {name: tensor * 0.5 for name, tensor in module.state_dict().items()}

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: Tensor) -> Tensor:
            return subject.call(self.module, *tensors)

    named = {f"module.{name}": tensor for name, tensor in other.items()}
    found = torch.func.functional_call(Called(), named, tuple(tensors))
    assert torch.equal(subject.call(module, *tensors), before)
    module.load_state_dict(other)
    reference.assert_close(found, expected_of(subject, module, tensors), 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_do_not_share_weights(device: str, subject: Subject, copied: Callable[[nn.Module], nn.Module]) -> None:
    module, tensors = built(subject, device), operands(device)
    before = subject.call(module, *tensors)
    twin = copied(module)
    assert torch.equal(subject.call(twin, *tensors), before)
    weight_of(twin, subject).data.mul_(0.5)
    assert torch.equal(subject.call(module, *tensors), before)
    reference.assert_close(subject.call(twin, *tensors), expected_of(subject, twin, tensors), 1e-5)


def test_the_next_call_has_the_new_level_sizes(device: str) -> None:
    value, weights = torch.rand(1, 8, 1, 2, device=device), torch.ones(1, 5, 1, 1, 3, device=device)
    locations = torch.rand(1, 5, 1, 1, 3, 2, device=device)
    shapes = torch.tensor([[2, 4]])
    before = ms_deform_attn(value, shapes, locations, weights)
    shapes.numpy()[...] = [[4, 2]]
    found = ms_deform_attn(value, shapes, locations, weights)
    assert not torch.allclose(found, before, atol=1e-3)
    assert torch.equal(found, ms_deform_attn(value, [(4, 2)], locations, weights))


@torch.no_grad()
def test_captured_graphs_have_the_new_weights(subject: Subject) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    module, tensors = built(subject, "cuda"), operands("cuda")
    if subject is SUBJECTS["rfdetr"]:
        pytest.skip("its caller here makes levels on the host")
    for _ in range(3):
        subject.call(module, *tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = subject.call(module, *tensors)
    weight_of(module, subject).data.mul_(0.5)
    graph.replay()
    reference.assert_close(found, expected_of(subject, module, tensors), 1e-5)
