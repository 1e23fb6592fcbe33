"""The attention modules of transformers, from their projections on, against themselves as they come."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
import watching
from small_models import CASES
from torch import Tensor, nn

import fourtap.nn
from fourtap.compat import transformers as compat

FAMILIES = [*compat.FAMILIES, "rt_detr_v2-discrete", "d_fine-discrete"]
ONLY_BOXES = ("rt_detr_v2", "d_fine", "deimv2")
WITHOUT_MASKS = ("d_fine", "deimv2")
# Their models keep the weights without asking for them.
KEEP_WEIGHTS = ("grounding_dino", "mm_grounding_dino", "omdet_turbo")
BATCH, QUERIES, SHAPES = 2, 7, [(6, 9), (5, 4), (3, 3), (2, 2)]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    compat.unpatch()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every call of the operator gets besides its other tensors."""
    seen: list[dict[str, Any]] = []
    is_tried = watching.trials(monkeypatch)
    real = fourtap.nn.from_projections

    def count(operands: Any, *options: Any) -> Tensor:
        if not is_tried():
            seen.append({"value_mask": operands[6], "mask_is_applied": operands[7][3]})
        return real(operands, *options)

    monkeypatch.setattr(fourtap.nn, "from_projections", count)
    return seen


@functools.lru_cache
def first_module(family: str) -> nn.Module:
    torch.manual_seed(0)
    try:
        model, _ = CASES[family].build()
    except (AttributeError, ImportError) as error:
        pytest.skip(str(error))
    return next(module for module in model.modules() if type(module).__name__.endswith("MultiscaleDeformableAttention"))


def build(family: str, device: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A module in which nothing is zero."""
    module = copy.deepcopy(first_module(family))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15)
    return module.to(device, dtype).eval()


def arguments(
    module: nn.Module, device: str, dtype: torch.dtype = torch.float64, *, boxes: bool = True, masked: bool = False
) -> dict[str, Any]:
    torch.manual_seed(2)
    family = type(module).__module__.split(".")[-2]
    shapes = SHAPES[: module.n_levels]
    pixels = sum(height * width for height, width in shapes)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64).to(device, dtype).requires_grad_()

    levels = 1 if family in ONLY_BOXES else module.n_levels
    references = torch.rand(BATCH, QUERIES, levels, 4 if boxes else 2, dtype=torch.float64)
    every: dict[str, Any] = {
        "hidden_states": random(BATCH, QUERIES, module.d_model),
        "encoder_hidden_states": random(BATCH, pixels, module.d_model),
        "position_embeddings": random(BATCH, QUERIES, module.d_model),
        "reference_points": references.to(device, dtype).requires_grad_(),
        "attention_mask": torch.rand(BATCH, pixels).to(device) < 0.7 if masked else None,
        "spatial_shapes": torch.tensor(shapes, device=device),
        "spatial_shapes_list": shapes,
    }
    known = inspect.signature(type(module).forward).parameters
    return {name: argument for name, argument in every.items() if name in known}


def differentiable(module: nn.Module, given: dict[str, Any]) -> dict[str, Tensor]:
    tensors = {name: tensor for name, tensor in given.items() if isinstance(tensor, Tensor) and tensor.requires_grad}
    tensors |= dict(module.named_parameters())
    if "discrete" in (getattr(module, "method", None), getattr(module, "decoder_method", None)):
        for name in ("reference_points", "sampling_offsets.weight", "sampling_offsets.bias"):
            del tensors[name]
    return tensors


def kinds(family: str) -> list[tuple[bool, bool]]:
    """Whether references are boxes, and pixels masked."""
    boxes = [True] if family.startswith(ONLY_BOXES) else [False, True]
    return [(box, mask) for box in boxes for mask in ([False] if family.startswith(WITHOUT_MASKS) else [False, True])]


@pytest.mark.parametrize("family", FAMILIES)
def test_result_and_gradients_are_those_of_transformers(family: str, device: str, calls: list[dict[str, Any]]) -> None:
    module = build(family, device)
    for boxes, masked in kinds(family):
        given = arguments(module, device, boxes=boxes, masked=masked)
        expected, weights = module(**given)
        compat.patch()
        found, unwanted = module(**given)
        compat.unpatch()
        assert len(calls) == 1 and (calls[0]["value_mask"] is not None) == masked
        calls.clear()
        assert torch.equal(unwanted, weights) if family in KEEP_WEIGHTS else unwanted is None
        reference.assert_close(found, expected, 1e-12)
        named = differentiable(module, given)
        reference.assert_same_gradients(found, expected, named, torch.randn_like(expected), 1e-11)


@pytest.mark.parametrize("family", [*ONLY_BOXES, "rt_detr_v2-discrete", "d_fine-discrete"])
@pytest.mark.parametrize("factors", ["of all points", "of levels", "of points"])
def test_the_scale_of_a_checkpoint_counts(family: str, factors: str, device: str, calls: list[dict[str, Any]]) -> None:
    module = build(family, device)
    name = "n_points_scale" if family.startswith("rt_detr_v2") else "num_points_scale"
    scale = getattr(module, name)
    state = module.state_dict()
    state[name] = {
        "of all points": scale * 2,
        "of levels": scale.square(),
        "of points": scale * (1 + torch.arange(len(scale), device=device)),
    }[factors]
    given = arguments(module, device)
    usual, _ = module(**given)
    module.load_state_dict(state)
    expected, _ = module(**given)
    assert (expected - usual).abs().max() > 1e-3
    compat.patch()
    found, _ = module(**given)
    compat.unpatch()
    assert len(calls) == 1
    reference.assert_close(found, expected, 1e-12)
    named = differentiable(module, given)
    reference.assert_same_gradients(found, expected, named, torch.randn_like(expected), 1e-11)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_is_as_accurate_as_that_of_transformers(
    family: str, dtype: torch.dtype, device: str, calls: list[dict[str, Any]]
) -> None:
    module = build(family, device, dtype)
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        given = arguments(module, device, dtype)
        wide = {
            name: tensor.double() if isinstance(tensor, Tensor) and tensor.is_floating_point() else tensor
            for name, tensor in given.items()
        }
        expected, _ = exact(**wide)
        theirs, _ = module(**given)
        compat.patch()
        found, _ = module(**given)
    assert found.dtype == theirs.dtype == dtype
    # Which pixel is nearest, transformers decides in 16 bits, and so it does.
    assert len(calls) == (0 if "discrete" in family and dtype is torch.bfloat16 else 1)
    off, allowed = ((tensor.double() - expected).abs().max().item() for tensor in (found, theirs))
    floor = torch.finfo(dtype).eps * expected.abs().max().item()
    assert off <= 2 * allowed + floor


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_returned_to_those_who_ask(family: str, device: str) -> None:
    module = build(family, device)
    given = arguments(module, device)
    _, expected = module(**given)
    compat.patch()
    if family in ("mask2former", "oneformer"):
        assert module(**given, output_attentions=False)[1] is None
        reference.assert_close(module(**given, output_attentions=True)[1], expected, 1e-12)
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    module(**given)
    handle.remove()
    reference.assert_close(seen[0], expected, 1e-12)


QUICK = ("deformable_detr", "grounding_dino", "omdet_turbo")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
@torch.no_grad()
def test_models_return_the_attentions_that_are_asked_for(family: str, device: str) -> None:
    torch.manual_seed(0)
    try:
        model, inputs = CASES[family].build()
    except (AttributeError, ImportError) as error:
        pytest.skip(str(error))
    model = model.to(device).eval()
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}

    def attentions() -> dict[str, Any]:
        output = model(**inputs, output_attentions=True)
        return {name: found for name, found in output.items() if "attention" in name}

    expected = attentions()
    assert expected or family == "pp_doclayout_v2"
    compat.patch()
    for _ in range(2):
        found = attentions()
        assert found.keys() == expected.keys()
        assert all(same(found[name], expected[name]) for name in expected)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-4)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(same(*pair) for pair in zip(found, expected, strict=True))
    return bool(found == expected)


def test_shapes_on_the_device_are_enough(device: str, calls: list[dict[str, Any]]) -> None:
    module = build("grounding_dino", device)
    given = arguments(module, device)
    expected, _ = module(**given)
    given["spatial_shapes_list"] = None
    given["level_start_index"] = torch.tensor([0, 54, 74, 83][: module.n_levels], device=device)
    compat.patch()
    reference.assert_close(module(**given)[0], expected, 1e-12)
    assert len(calls) == 1


def test_a_layer_of_ones_own_is_called(device: str, calls: list[dict[str, Any]]) -> None:
    module = build("rt_detr", device)
    given = arguments(module, device)
    compat.patch()

    class Zeros(nn.Module):
        def forward(self, value: Tensor, *others: Any) -> Tensor:
            return value.new_zeros(BATCH, QUERIES, module.d_model)

    module.attn = Zeros()
    reference.assert_close(module(**given)[0], module.output_proj.bias.expand(BATCH, QUERIES, -1), 1e-12)
    assert not calls


def test_a_hook_on_the_layer_is_called(device: str, calls: list[dict[str, Any]]) -> None:
    module = build("rt_detr", device)
    given = arguments(module, device)
    expected, _ = module(**given)
    compat.patch()
    seen: list[Tensor] = []
    module.attn.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    reference.assert_close(module(**given)[0], expected, 1e-12)
    assert len(seen) == 1 and not calls


def test_arguments_by_position_are_taken(device: str) -> None:
    module = build("deformable_detr", device)
    given = arguments(module, device, masked=True)
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    positional = [given.get(name) for name in names if name != "kwargs"]
    expected, _ = module(*positional)
    compat.patch()
    reference.assert_close(module(*positional)[0], expected, 1e-12)


def test_a_module_that_is_written_otherwise_keeps_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    module = first_module("rt_detr")
    modeling = sys.modules[type(module).__module__]
    original = type(module).forward

    def forward(self: Any, hidden_states: Tensor, **named: Any) -> Any:
        return original(self, self.another_layer(hidden_states), **named)

    monkeypatch.setattr(type(module), "forward", forward)
    names = compat.patch()
    assert type(module).forward is forward
    assert f"{modeling.__name__}.MultiScaleDeformableAttention" in names
    assert f"{modeling.__name__}.{type(module).__name__}" not in names


@pytest.mark.parametrize("family", ["deformable_detr", "mask2former", "rt_detr_v2", "d_fine"])
def test_patched_modules_compile_in_one_graph(family: str, device: str) -> None:
    module = build(family, device, torch.float32)
    given = arguments(module, device, torch.float32, masked=family == "mask2former")
    if "position_embeddings" in given:
        given["position_embeddings"] = None
    expected, _ = module(**given)
    try:
        torch.compile(module, fullgraph=True, backend="eager")(**given)
    except Exception as error:
        pytest.skip(f"these versions cannot compile the module as transformers has it: {error}")
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph.code)
        return graph

    compat.patch()
    found, _ = torch.compile(module, fullgraph=True, backend=backend)(**given)
    reference.assert_close(found, expected, 1e-5)
    assert len(graphs) == 1 and "msda_projected" in graphs[0] and "softmax" not in graphs[0]
    torch._dynamo.reset()
