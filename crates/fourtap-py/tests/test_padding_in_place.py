"""Padding is zeroed in place only in what nobody else has got, and ``out`` is known to be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fourtap
from fourtap import _joined, _native
from fourtap import nn as ours
from fourtap.nn import MSDeformAttn

SHAPES = [(6, 9), (3, 4)]
CHANNELS, HEADS, POINTS, PIXELS = 12, 3, 2, 66

Kept = list[Tensor]
"""What somebody got hold of, and after each a copy of what it was then."""
Watch = Callable[[nn.Module, Kept], AbstractContextManager[Any]]


def build(device: str) -> MSDeformAttn:
    torch.manual_seed(0)
    module = MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS, device=device, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def operands(device: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    tensors = {"query": torch.randn(2, 7, CHANNELS), "points": torch.rand(2, 7, 2, 2)}
    tensors["features"] = torch.randn(2, PIXELS, CHANNELS)
    return {name: tensor.to(device, torch.float64).requires_grad_() for name, tensor in tensors.items()}


def padding(device: str) -> Tensor:
    mask = torch.zeros(2, PIXELS, dtype=torch.bool, device=device)
    mask[0, 40:54] = mask[1, 3] = True
    return mask


def keep(kept: Kept, tensor: object) -> None:
    if isinstance(tensor, Tensor) and tensor.shape == (2, PIXELS, CHANNELS):
        kept += [tensor, tensor.detach().clone()]


@contextmanager
def removed(handle: Any) -> Iterator[None]:
    with handle:
        yield


def by_forward_hook(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    return removed(module.value_proj.register_forward_hook(lambda layer, inputs, output: keep(kept, output)))


def by_keyword_hook(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    def note(layer: nn.Module, inputs: Any, named: Any, output: Tensor) -> None:
        keep(kept, output)

    return removed(module.value_proj.register_forward_hook(note, with_kwargs=True, always_call=True))


def by_global_hook(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    return removed(
        hooks.register_module_forward_hook(
            lambda layer, inputs, output: keep(kept, output) if layer is module.value_proj else None
        )
    )


def by_own_forward(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    layer, patch = module.value_proj, pytest.MonkeyPatch.context()

    @contextmanager
    def patched() -> Iterator[None]:
        def forward(x: Tensor) -> Tensor:
            found = nn.Linear.forward(layer, x)
            keep(kept, found)
            return found

        with patch as monkey:
            monkey.setattr(layer, "forward", forward)
            yield

    return patched()


@contextmanager
def by_class(module: nn.Module, kept: Kept) -> Iterator[None]:
    theirs = nn.Linear.forward

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        found = theirs(self, x)
        if self is module.value_proj:
            keep(kept, found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", forward)
        yield


@contextmanager
def by_function(module: nn.Module, kept: Kept) -> Iterator[None]:
    theirs = nn.functional.linear

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        found = theirs(x, weight, bias)
        keep(kept, found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", linear)
        yield


def by_function_mode(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if function is nn.functional.linear:
                keep(kept, found)
            return found

    return Mode()


def by_dispatch_mode(module: nn.Module, kept: Kept) -> AbstractContextManager[Any]:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if function in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
                keep(kept, found)
            return found

    return Mode()


@contextmanager
def by_weight(module: nn.Module, kept: Kept) -> Iterator[None]:
    class Weight(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                found = function(*args, **(kwargs or {}))
            if function is nn.functional.linear:
                keep(kept, found)
            # A parameter keeps its type.
            return found.as_subclass(cls) if function is Tensor.detach else found

    layer = module.value_proj
    plain = layer.weight
    layer.weight = nn.Parameter(plain.detach().as_subclass(Weight))
    yield
    layer.weight = plain


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2 / 2


@contextmanager
def by_parametrization(module: nn.Module, kept: Kept) -> Iterator[None]:
    layer = module.value_proj
    parametrize.register_parametrization(layer, "weight", Doubled())
    layer.register_forward_hook(lambda layer, inputs, output: keep(kept, output))
    yield


WATCHES: list[Watch] = [
    by_forward_hook,
    by_keyword_hook,
    by_global_hook,
    by_own_forward,
    by_class,
    by_function,
    by_function_mode,
    by_dispatch_mode,
    by_weight,
    by_parametrization,
]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("watch", WATCHES)
def test_what_somebody_keeps_stays_as_it_was(device: str, watch: Watch, grad: bool) -> None:
    module, tensors, mask = build(device), operands(device), padding(device)
    expected = module(*tensors.values(), SHAPES, None, mask).detach()
    kept: Kept = []
    with watch(module, kept), torch.set_grad_enabled(grad):
        found = module(*tensors.values(), SHAPES, None, mask)
    assert kept
    for tensor, copy in zip(kept[::2], kept[1::2], strict=True):
        assert torch.equal(tensor, copy)
    reference.assert_close(found.detach(), expected, 1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
def test_compiled_or_not_hooks_keep_what_they_got(device: str, compiled: bool, everywhere: bool) -> None:
    module, tensors, mask = build(device), operands(device), padding(device)
    expected = module(*tensors.values(), SHAPES, None, mask).detach()
    kept: Kept = []
    with by_global_hook(module, kept) if everywhere else by_forward_hook(module, kept):
        torch._dynamo.reset()
        call = torch.compile(module, backend="aot_eager") if compiled else module
        found = call(*tensors.values(), SHAPES, None, mask)
    clean = module.value_proj(tensors["features"])
    assert kept
    reference.assert_close(kept[0], clean, 1e-12)
    reference.assert_close(found.detach(), expected, 1e-12)


def gradients(module: nn.Module, tensors: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, ...]:
    out = module(*tensors.values(), SHAPES, None, mask)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    return torch.autograd.grad(out, [*tensors.values(), *module.parameters()], weights)


@pytest.mark.parametrize("layer", ["value_proj", "sampling_offsets", "attention_weights"])
@pytest.mark.parametrize("kind", ["hook", "pre-hook", "global hook", "global pre-hook"])
def test_backward_hooks_are_called(device: str, layer: str, kind: str) -> None:
    module, tensors, mask = build(device), operands(device), padding(device)
    expected = gradients(module, tensors, mask)
    watched, seen = getattr(module, layer), []

    def note(found: nn.Module, *grads: Any) -> None:
        if found is watched:
            seen.append(grads[-1][0])

    register = {
        "hook": watched.register_full_backward_hook,
        "pre-hook": watched.register_full_backward_pre_hook,
        "global hook": hooks.register_module_full_backward_hook,
        "global pre-hook": hooks.register_module_full_backward_pre_hook,
    }[kind]
    with register(note):
        found = gradients(module, tensors, mask)
    assert len(seen) == 1
    if layer == "value_proj":
        assert not seen[0][mask].any() and seen[0].any()
    for one, other in zip(found, expected, strict=True):
        reference.assert_close(one, other, 1e-12)


def test_gradients_survive_what_autograd_allows(device: str) -> None:
    """Saved tensors packed by somebody, a graph that is kept, and a forward that is computed again."""
    module, tensors, mask = build(device), operands(device), padding(device)
    expected = gradients(module, tensors, mask)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda packed: packed):
        packed = gradients(module, tensors, mask)
    with torch.autograd.graph.save_on_cpu():
        moved = gradients(module, tensors, mask)
    for found in (packed, moved):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *arguments: Any) -> Tensor:
            return checkpoint(module, *arguments, use_reentrant=False)  # type: ignore[no-any-return]

    for one, other in zip(gradients(Recomputed(), tensors, mask), expected, strict=True):
        assert torch.equal(one, other)
    out = module(*tensors.values(), SHAPES, None, mask)
    first = torch.autograd.grad(out.sum(), tensors["features"], retain_graph=True)
    second = torch.autograd.grad(out.sum(), tensors["features"])
    assert torch.equal(first[0], second[0])


def test_without_watchers_it_is_in_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, tensors, mask = build(device), operands(device), padding(device)
    done: list[bool] = []
    zero = _native.torch_zero_pixels

    def note(value: Tensor, mask: Tensor) -> bool:
        done.append(zero(value, mask))
        return done[-1]

    monkeypatch.setattr(ours._native, "torch_zero_pixels", note)
    module(*tensors.values(), SHAPES, None, mask)
    with torch.device(device):
        module(*tensors.values(), SHAPES, None, mask)
    assert done == [True, True]
    assert _joined.owns_result(module.value_proj)


def written(entry: str, device: str, out: Tensor) -> Tensor:
    value, weights = torch.rand(1, 4, 1, 2, device=device), torch.ones(1, 3, 1, 1, 1, device=device)
    if entry == "ms_deform_attn":
        locations = torch.rand(1, 3, 1, 1, 1, 2, device=device)
        return fourtap.ms_deform_attn(value, [(2, 2)], locations, weights, out=out)
    points, offsets = torch.rand(1, 3, 1, 2, device=device), torch.rand(1, 3, 1, 1, 2, device=device)
    return fourtap.ms_deform_attn_from_projections(value, [(2, 2)], points, offsets, weights[..., 0], out=out)


ENTRIES = ["ms_deform_attn", "ms_deform_attn_from_projections"]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("cast", [False, True])
def test_autograd_hears_that_out_was_written(device: str, entry: str, cast: bool) -> None:
    dtype = torch.bfloat16 if cast else torch.float32
    factor = torch.ones(1, 3, 2, device=device, dtype=dtype, requires_grad=True)
    out = torch.rand(1, 3, 2, device=device, dtype=dtype)
    product = (factor * out).sum()
    with torch.autocast(device, torch.bfloat16, enabled=cast):
        assert written(entry, device, out) is out
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("entry", ENTRIES)
def test_out_may_be_an_inference_tensor(device: str, entry: str) -> None:
    with torch.inference_mode():
        out = torch.rand(1, 3, 2, device=device)
        assert written(entry, device, out) is out


@pytest.mark.parametrize("entry", ENTRIES)
def test_out_that_wants_a_gradient_is_refused(device: str, entry: str) -> None:
    out = torch.rand(1, 3, 2, device=device, requires_grad=True)
    with pytest.raises(fourtap.InputError, match="out: expected a tensor that requires no gradient, found one"):
        written(entry, device, out)
    with torch.no_grad():
        assert written(entry, device, out) is out
