"""Batch norms with fixed statistics of transformers' detectors, against themselves as they come."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fourtap.compat import transformers as compat
from fourtap.compat._frozen_batch_norm import NAME, in_one_operator
from fourtap.compat._trial import Disagreement

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.unpatch()


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.found[str(function)] += 1
        return function(*args, **(kwargs or {}))


def classes() -> list[type[nn.Module]]:
    """Of all families that are installed and have one."""
    found = []
    for family in compat.FAMILIES:
        try:
            module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        except ImportError:
            continue
        found += [value for name, value in vars(module).items() if name.endswith(NAME)]
    return found


def layer_of(theirs: type[nn.Module], device: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layer = theirs(5)
    for name, buffer in layer.named_buffers():
        buffer.copy_(torch.rand(5) + (0.1 if name == "running_var" else -0.5))
    return layer.to(device, dtype)


def results(layer: nn.Module, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without gradients, with gradients, and the gradient."""
    with torch.no_grad():
        plain = layer(x)
    x = x.detach().requires_grad_()
    out = layer(x)
    (out.float() * weight).sum().backward()
    assert x.grad is not None
    return plain, out.detach(), x.grad


def test_there_are_some() -> None:
    assert len(classes()) >= 3


@pytest.mark.parametrize("theirs", classes(), ids=lambda theirs: theirs.__name__)
@pytest.mark.parametrize(
    ("of_x", "of_layer", "allowed"),
    [
        (torch.float32, torch.float32, 1e-6),
        (torch.float64, torch.float64, 1e-14),
        # As autocast has them: the result is f32.
        (torch.bfloat16, torch.float32, 1e-6),
        # A model in 16 bit: the composed form rounds after every step.
        (torch.bfloat16, torch.bfloat16, 2e-2),
        # Left to the composed form.
        (torch.float32, torch.bfloat16, 0.0),
    ],
)
def test_patched_ones_give_the_same(
    theirs: type[nn.Module], of_x: torch.dtype, of_layer: torch.dtype, allowed: float, device: str
) -> None:
    layer = layer_of(theirs, device, of_layer)
    x, weight = torch.randn(2, 2, 5, 7, 3, device=device)
    x = x.to(of_x)
    expected = results(layer, x, weight)
    assert any(name.endswith(theirs.__name__) for name in compat.patch())
    found = results(layer, x, weight)
    for mine, composed in zip(found, expected, strict=True):
        assert mine.dtype == composed.dtype
        assert (mine - composed).double().norm() <= allowed * composed.double().norm()


@pytest.mark.parametrize("theirs", classes(), ids=lambda theirs: theirs.__name__)
def test_it_is_one_operator_and_keeps_nothing_for_backward(theirs: type[nn.Module], device: str) -> None:
    layer, x = layer_of(theirs, device), torch.randn(2, 5, 7, 3, device=device)
    compat.patch()
    with torch.no_grad(), Counted() as counted:
        layer(x)
    computing = Counter({name: count for name, count in counted.found.items() if "empty" not in name})
    assert computing.total() == 1, counted.found

    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x.requires_grad_())
    assert all(tensor.numel() == 5 for tensor in kept), [tensor.shape for tensor in kept]


def test_shapes_of_other_ranks_and_empty_ones_stay_as_they_were(device: str) -> None:
    theirs = classes()[0]
    layer = layer_of(theirs, device)
    for shape in [(5, 7, 3), (0, 5, 7, 3)]:
        x = torch.randn(shape, device=device)
        expected = layer(x)
        compat.patch()
        assert torch.equal(layer(x), expected)
        compat.unpatch()


def test_changed_statistics_count_at_once(device: str) -> None:
    layer, x = layer_of(classes()[0], device), torch.randn(2, 5, 7, 3, device=device)
    compat.patch()
    before = layer(x)
    layer.get_buffer("running_mean").add_(1.0)
    layer.get_buffer("bias").data.mul_(2.0)
    after = layer(x)
    compat.unpatch()
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, layer(x))


def test_a_class_that_computes_something_else_is_left_alone() -> None:
    class OtherFrozenBatchNorm2d(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            for name in ("weight", "bias", "running_mean", "running_var"):
                self.register_buffer(name, torch.ones(channels))

        def forward(self, x: Tensor) -> Tensor:
            scale = self.get_buffer("weight") * (self.get_buffer("running_var") + 1e-3).rsqrt()
            shift = self.get_buffer("bias") - self.get_buffer("running_mean") * scale
            return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    class Unknown(nn.Module):
        pass

    with pytest.raises(Disagreement, match=r"^its results differ by .* with images$"):
        in_one_operator(OtherFrozenBatchNorm2d)
    with pytest.raises(Disagreement):
        in_one_operator(Unknown)
