"""What computes something else than fourtap does is left alone, and nobody notices that it was tried."""

from __future__ import annotations

import importlib
import inspect
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reference
import stand_ins
import torch
from torch import Tensor, nn

import fourtap
from fourtap.compat import _trial, rtdetr
from fourtap.compat import transformers as compat
from fourtap.compat._trial import Case, Disagreement, bare_module, require_agreement, require_arguments

transformers = pytest.importorskip("transformers")

LAYER, MODULE = "MultiScaleDeformableAttention", "RTDetrMultiscaleDeformableAttention"
# What is written in RT-DETR of transformers, and what a fork has instead.
FORKS = {
    "border": ('padding_mode="zeros"', 'padding_mode="border"'),
    "corners": ("align_corners=False", "align_corners=True"),
    "softmax over heads": ("F.softmax(attention_weights, -1)", "F.softmax(attention_weights, -2)"),
    "twice": ("+ sampling_offsets / offset", "+ 2 * sampling_offsets / offset"),
    "minus": ("+ sampling_offsets / offset", "- sampling_offsets / offset"),
    "residual": ("output = self.output_proj(output)", "output = self.output_proj(output) + hidden_states"),
    "heights first": (
        "spatial_shapes[..., 1], spatial_shapes[..., 0]",
        "spatial_shapes[..., 0], spatial_shapes[..., 1]",
    ),
    "layer in training": ("output.transpose(1, 2)", "(2 if self.training else 1) * output.transpose(1, 2)"),
    "usual number": ("sampling_offsets / self.n_points", "sampling_offsets / 4"),
    "limited values": ("self.value_proj(encoder_hidden_states)", "self.value_proj(encoder_hidden_states).clamp(-8, 8)"),
    "limited offsets": ("+ sampling_offsets / self.n_points", "+ sampling_offsets.clamp(-8, 8) / self.n_points"),
    "another mask": (
        "self.value_proj(encoder_hidden_states)",
        "self.value_proj(encoder_hidden_states) * (1 if encoder_attention_mask is None else 2)",
    ),
}
FORKS_OF_THE_LAYER = ("border", "corners", "layer in training")
# The same for the stand-in of its repository, and what no names would show.
REPOSITORY_FORKS = {
    "softmax over heads": ("reshape(*sizes[:3], -1), dim=-1)", "reshape(*sizes[:3], -1), dim=-2)"),
    "twice": ("around + offsets /", "around + 2 * offsets /"),
    "minus": ("around + offsets /", "around - offsets /"),
    "residual": ("return output", "return output + query"),
    "heights first": ("flip([1])", "flip([0])"),
    "masks of the padding": ("value * value_mask.unsqueeze(-1)", "value * ~value_mask.unsqueeze(-1)"),
    "no gradient": ("(value, value_spatial_shapes", "(value.detach(), value_spatial_shapes"),
    "in training": ("return output", "return output * (2 if self.training else 1)"),
    "without gradients": ("return output", "return output * (1 if torch.is_grad_enabled() else 2)"),
    "noise": ("return output", "return output + torch.rand(1)"),
    "in place": ("value = self.value_proj(value)", "value_mask = value_mask and value_mask.zero_()"),
    "an option": ("value_mask: Any = None", "value_mask: Any = None, option: Any = None"),
    "a layer that others have": ("return output", "return output if getattr(self, 'norm', None) is None else query"),
    "kept weights": ("return output", "self.kept = weights; return output"),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.unpatch()
    rtdetr.unpatch()


def family(name: str, *changes: tuple[str, str]) -> ModuleType:
    """A family of transformers: RT-DETR's layer and module with changes; nobody has imported it yet."""
    home = importlib.import_module("transformers.models.rt_detr.modeling_rt_detr")
    source = "\n\n".join(inspect.getsource(getattr(home, part)) for part in (LAYER, MODULE))
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    fork = ModuleType(f"transformers.models.{name}.modeling_{name}")
    vars(fork).update({key: value for key, value in vars(home).items() if not key.startswith("__")})
    exec(compile(source, f"{name}.py", "exec"), vars(fork))
    return fork


def built(fork: Any) -> nn.Module:
    config = transformers.RTDetrConfig(d_model=32, num_feature_levels=2)
    torch.manual_seed(0)
    module: nn.Module = getattr(fork, MODULE)(config, num_heads=4, n_points=3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module


def attended(module: Any, corners: int) -> Tensor:
    torch.manual_seed(1)
    shapes = [(5, 8), (3, 2)]
    random: dict[str, Any] = {"dtype": torch.float64}
    found: Tensor = module(
        torch.randn(2, 7, 32, **random),
        encoder_hidden_states=torch.randn(2, 46, 32, **random),
        attention_mask=torch.rand(2, 46) < 0.7,
        reference_points=torch.rand(2, 7, 2, corners, **random),
        spatial_shapes=torch.tensor(shapes),
        spatial_shapes_list=shapes,
        level_start_index=torch.tensor([0, 40]),
    )[0]
    return found


def register(monkeypatch: pytest.MonkeyPatch, fork: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, fork.__name__, fork)


@pytest.mark.parametrize("change", list(FORKS))
def test_forks_of_transformers_are_left_alone(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fork = family("fork", FORKS[change])
    register(monkeypatch, fork)
    module = built(fork)
    before = [attended(module, corners) for corners in (2, 4)]
    names = [name for name in compat.patch() if name.startswith(fork.__name__)]
    is_layer = change in FORKS_OF_THE_LAYER
    # What is as it was is replaced all the same.
    assert names == ([] if is_layer else [f"{fork.__name__}.{LAYER}"])
    for corners, expected in zip((2, 4), before, strict=True):
        reference.assert_close(attended(module, corners), expected, 1e-12)
    (line,) = [record.getMessage() for record in caplog.records if fork.__name__ in record.getMessage()]
    assert line.startswith(f"{fork.__name__}.{LAYER if is_layer else MODULE}: expected what fourtap computes, found")
    assert " differ by " in line and line.endswith("; it is left alone")
    # It is not tried, nor said, again.
    caplog.clear()
    compat.patch()
    assert not caplog.records


def test_an_invented_family_is_left_alone_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes = ("border", "softmax over heads", "residual")
    source = inspect.getsource(importlib.import_module("transformers.models.rt_detr.modeling_rt_detr"))
    for change in changes:
        source = source.replace(*FORKS[change])
    folder = tmp_path / "invented"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "modeling_invented.py").write_text(source.replace("from .config", "from ..rt_detr.config"))
    models: Any = importlib.import_module("transformers.models")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    compat.patch()
    name = "transformers.models.invented.modeling_invented"
    try:
        invented = importlib.import_module(name)
        assert not [found for found in compat.patch() if found.startswith(name) and "BatchNorm" not in found]
        assert [record for record in caplog.records if record.getMessage().startswith(f"{name}.{LAYER}: ")]
        module = built(invented)
        found = attended(module, 2)
        compat.unpatch()
        assert torch.equal(found, attended(module, 2))
        for loaded in ("transformers.models.invented", name):
            del sys.modules[loaded]
        compat.patch(strict=True)
        with pytest.raises(fourtap.UnsupportedError, match=rf"^{name}\.{LAYER}: expected what fourtap computes"):
            importlib.import_module(name)
    finally:
        for loaded in ("transformers.models.invented", name):
            sys.modules.pop(loaded, None)


def test_a_copy_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    # Written otherwise, but the same.
    changes = [
        ("self.value_proj(encoder_hidden_states)", "getattr(self, 'value_proj')(encoder_hidden_states)"),
        ("sampling_offsets / self.n_points * reference", "0.25 * sampling_offsets * (4 / self.n_points) * reference"),
    ]
    fork = family("fork", *changes)
    register(monkeypatch, fork)
    module = built(fork)
    expected = attended(module, 4)
    names = compat.patch(strict=True)
    assert {f"{fork.__name__}.{LAYER}", f"{fork.__name__}.{MODULE}"} <= set(names)
    reference.assert_close(attended(module, 4), expected, 1e-12)


def test_strict_refuses_and_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compat.patch()
    fork = family("fork", FORKS["residual"])
    register(monkeypatch, fork)
    message = (
        rf"^{fork.__name__}\.{MODULE}: expected what fourtap computes, found that its results differ by [0-9.e+-]+ of "
    )
    for _ in range(2):
        with pytest.raises(fourtap.UnsupportedError, match=message):
            compat.patch(strict=True)
        home: Any = importlib.import_module("transformers.models.rt_detr.modeling_rt_detr")
        assert getattr(home, LAYER).forward is not compat.MultiScaleDeformableAttention.forward
    # Without it, it does not matter.
    assert compat.patch()


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Callable[[str, str], Any]]:
    """Imports the stand-in of RT-DETR's repository, with a change of its module."""
    with stand_ins.installed(stand_ins.REPOSITORY, tmp_path):

        def changed(before: str, after: str) -> Any:
            file = tmp_path / "repository" / "zoo" / "rtdetr_decoder.py"
            source = file.read_text()
            assert before in source
            file.write_text(source.replace(before, after))
            importlib.invalidate_caches()
            return importlib.import_module("repository.zoo.rtdetr_decoder")

        yield changed


@pytest.mark.parametrize("change", list(REPOSITORY_FORKS))
def test_forks_of_a_repository_are_left_alone(
    change: str, repository: Callable[[str, str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    home = repository(*REPOSITORY_FORKS[change])
    torch.manual_seed(0)
    state = torch.get_rng_state()
    names = rtdetr.patch(home)
    assert torch.equal(torch.get_rng_state(), state)
    assert names == ["repository.zoo.utils.deformable_attention_core_func"]
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].name == "fourtap.compat"
    with pytest.raises(fourtap.UnsupportedError, match=r"^repository\.zoo\.rtdetr_decoder\.MSDeformableAttention"):
        rtdetr.patch(home, strict=True)
    assert rtdetr.patch(home) == names


def test_what_the_original_cannot_compute_does_not_count(repository: Callable[[str, str], Any]) -> None:
    # As RT-DETR's repository has it, which no model calls with masks.
    home = repository("value_mask.unsqueeze(-1)", "value_mask.astype(value.dtype).unsqueeze(-1)")
    names = rtdetr.patch(home, strict=True)
    assert "repository.zoo.rtdetr_decoder.MSDeformableAttention.forward" in names


def test_nothing_is_disturbed_and_nothing_disturbs() -> None:
    program = """
import importlib, os, random
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from fourtap.compat import transformers as compat

home = importlib.import_module("transformers.models.rt_detr.modeling_rt_detr")
importlib.import_module("transformers.models.d_fine.modeling_d_fine")

def fails(*_, **__):
    raise AssertionError("it must not be called")

class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        fails()

# The engine starts threads for GPUs, and processes that are forked after that cannot use it.
torch.autograd.backward = torch.autograd.grad = fails
torch.autograd.graph._engine_run_backward = fails
torch.cuda._lazy_init = torch._C._cuda_init = fails
torch.set_default_dtype(torch.float16)
torch.set_default_device("meta")
torch.set_num_threads(3)
states = torch.get_rng_state(), random.getstate()
with Seeing(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    names = compat.patch(strict=True)
    assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
assert len(names) == 7, names
assert torch.equal(states[0].cpu(), torch.get_rng_state()) and states[1] == random.getstate()
assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float16
assert torch.empty(1).device.type == "meta" and torch.get_num_threads() == 3
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_gradients_are_those_of_autograd() -> None:
    problem = reference.problem(1, device="cpu")
    for function in (reference.ms_deform_attn, rtdetr.deformable_attention_core_func):
        result = function(problem.value, problem.shapes, problem.locations, problem.weights)
        results = [result, result.square() + problem.weights.sum(), problem.value * 2]
        inputs = [*problem.differentiable, torch.ones(1, requires_grad=True)]
        *found, of_unused = _trial._gradients(results, inputs)
        weights = [
            (torch.arange(part.numel(), dtype=torch.float64) * 0.7).cos().reshape(part.shape) for part in results
        ]
        total = sum(((part * weight).sum() for part, weight in zip(results, weights, strict=True)), torch.zeros(()))
        expected = torch.autograd.grad(total, inputs[:-1])
        assert of_unused is None
        for ours, theirs in zip(found, expected, strict=True):
            assert ours is not None
            reference.assert_close(ours, theirs, 1e-14)


class Scaled(nn.Module):
    scale = 2.0

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return x * self.scale


def cases(module: nn.Module) -> list[Case]:
    tensors = {"x": torch.arange(3.0, dtype=torch.float64)}
    return [Case("three numbers", tensors, lambda function, given: function(module, given["x"]), module)]


def test_a_difference_is_told_with_its_size() -> None:
    require_agreement(Scaled.forward, lambda self, x: x + x, cases(bare_module(Scaled, {})))
    with pytest.raises(Disagreement, match=r"^its results differ by 2 of 4 with three numbers$") as refused:
        require_agreement(Scaled.forward, lambda self, x: x, cases(bare_module(Scaled, {})))
    assert refused.value.is_measured
    with pytest.raises(Disagreement, match=r"^its gradients of x differ by 2 of 2 with three numbers$"):
        require_agreement(Scaled.forward, lambda self, x: x.detach() * 2, cases(bare_module(Scaled, {})))
    with pytest.raises(Disagreement, match=r"^its results differ by nan of 4 with"):
        require_agreement(Scaled.forward, lambda self, x: x * torch.nan, cases(bare_module(Scaled, {})))
    with pytest.raises(Disagreement, match=r"^its results are \[3\] in torch.float64 instead of \[1, 3\] in"):
        require_agreement(Scaled.forward, lambda self, x: x[None] * 2, cases(bare_module(Scaled, {})))


def test_attributes_that_nobody_knows_are_noticed() -> None:
    class Asking(Scaled):
        def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
            return x * (3 if hasattr(self, "unusual") else 2)

    with pytest.raises(Disagreement, match=r"^it reads self\.unusual$"):
        require_agreement(Asking.forward, Scaled.forward, cases(bare_module(Asking, {})))
    require_agreement(Asking.forward, lambda self, x: x * 3, cases(bare_module(Asking, {"unusual": 1})))


def test_arguments_that_ours_would_ignore_are_refused() -> None:
    def reads(self: Any, x: Tensor, **kwargs: Any) -> Tensor:
        return x * kwargs.get("scale", 2)

    def reads_inside(self: Any, x: Tensor, **kwargs: Any) -> Any:
        return lambda: x * kwargs.get("scale", 2)

    def takes_any(self: Any, *operands: Any) -> Any:
        return operands

    def takes_another(self: Any, x: Tensor, scale: float = 2) -> Tensor:
        return x * scale

    require_arguments(Scaled.forward, ("self", "x"))
    for theirs, words in (
        (reads, r"^it reads any arguments, \*kwargs$"),
        (reads_inside, r"^it reads any arguments, \*kwargs$"),
        (takes_any, r"^it reads any arguments, \*operands$"),
        (takes_another, r"^it takes an argument that is not known, scale$"),
    ):
        with pytest.raises(Disagreement, match=words):
            require_arguments(theirs, ("self", "x"))
