"""Models of transformers, small and with random weights, with fourtap against their own implementation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import CASES, Built
from torch import Tensor, nn
from watching import shapes_of_calls

from fourtap.compat import transformers as compat


def build(name: str, device: str, seed: int = 0, images: int = 2) -> Built:
    """The model in eval mode, with weights in which nothing is zero: offsets that do not depend on the query would
    leave half of the gradients unseen."""
    torch.manual_seed(seed)
    try:
        model, inputs = CASES[name].build()
    except (AttributeError, ImportError) as error:
        if "module transformers has no attribute" in str(error) or "library but it was not found" in str(error):
            pytest.skip(str(error))
        raise
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    # All are of two images; of words there may be several rows for each.
    part = {name: tensor[: len(tensor) // 2 * images] for name, tensor in inputs.items()}
    return model.to(device).eval(), {name: tensor.to(device) for name, tensor in part.items()}


def floating(name: str, output: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors of numbers in what a model returns."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
    elif isinstance(output, dict):
        for key, value in output.items():
            yield from floating(f"{name}.{key}" if name else key, value)
    elif isinstance(output, list | tuple):
        for index, value in enumerate(output):
            yield from floating(f"{name}[{index}]", value)


def run(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and the gradients of a sum of them with fixed random weights by all parameters that have one."""
    outputs = dict(floating("", model(**inputs, output_hidden_states=True)))
    source = torch.Generator().manual_seed(5)
    loss = torch.zeros((), device=next(model.parameters()).device)
    for output in outputs.values():
        weights = torch.randn(output.shape, generator=source).to(output.device)
        if output.requires_grad:
            loss = loss + (output.masked_fill(output.isinf(), 0.0) * weights).sum() / output.numel()
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {name: output.detach() for name, output in outputs.items()}, gradients


AROUND_THE_OPERATOR = ("sampling_offsets", "attention_weights", "value_proj", "output_proj")


def gradient_scales(gradients: dict[str, Tensor]) -> dict[str, float]:
    """The magnitude that an error in each gradient is compared with.

    For the layers around the operator it is the gradient's own. Others may be zero but for rounding (a softmax does not
    notice the bias of its keys), so there it is the largest in the part of the model that they belong to, or 1e-4.
    """
    own = {name: gradient.abs().max().item() for name, gradient in gradients.items()}
    scales = {}
    for name, scale in own.items():
        *part, layer, _ = name.split(".")
        if layer not in AROUND_THE_OPERATOR:
            scale = max(1e-4, *(other for also, other in own.items() if also.startswith(".".join(part))))
        scales[name] = scale
    return scales


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The spatial shapes of every call of the operator, and transformers as it was afterwards."""
    seen = shapes_of_calls(monkeypatch)
    # Rounded differently, nearly equal inputs of a convolution after the attention would become unequal.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield seen
    compat.unpatch()


# One for each function of transformers that is replaced; all of them take most of the time of the Python tests.
QUICK = ("deformable_detr", "rt_detr_v2", "rf_detr")


def all_cases(*quick: str, **others: Any) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(name, *others.values(), marks=[] if name in quick else slow) for name in CASES]


@pytest.mark.parametrize("name", all_cases("d_fine"))
@torch.no_grad()
def test_outputs_under_autocast_have_the_types_they_have_without_us(
    name: str, device: str, calls: list[object]
) -> None:
    model, inputs = build(name, device)

    def types() -> dict[str, torch.dtype]:
        with torch.autocast(device, torch.bfloat16):
            outputs = floating("", model(**inputs, output_hidden_states=True))
            return {name: output.dtype for name, output in outputs}

    expected = types()
    compat.patch()
    assert types() == expected
    assert len(calls) == CASES[name].calls


@pytest.mark.parametrize("name", all_cases("pp_doclayout_v3"))
@torch.no_grad()
def test_float32_is_as_accurate_as_without_us(name: str, device: str, calls: list[object]) -> None:
    # Where a model makes a rounding larger, its own are as large: both are compared with float64.
    model, inputs = build(name, device)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    exact = dict(floating("", copy.deepcopy(model).double()(**wide)))
    theirs = dict(floating("", model(**inputs)))
    compat.patch()
    ours = dict(floating("", model(**inputs)))
    assert len(calls) == CASES[name].calls and ours.keys() == exact.keys()
    for output, expected in exact.items():
        finite = expected.isfinite()
        assert torch.equal(ours[output].isfinite(), finite), output
        off, allowed = ((found[output] - expected)[finite].abs().max() for found in (ours, theirs))
        assert off <= 2 * allowed + 4 * torch.finfo(torch.float32).eps * expected[finite].abs().max(), output


@pytest.mark.parametrize(("name", "images"), [*all_cases(*QUICK, images=2), *all_cases("d_fine-normed", images=1)])
def test_model_computes_the_same_with_fourtap(name: str, images: int, device: str, calls: list[object]) -> None:
    model, inputs = build(name, device, images=images)
    outputs, gradients = run(model, inputs)
    assert not calls
    compat.patch()
    found_outputs, found_gradients = run(model, inputs)
    assert len(calls) == CASES[name].calls
    # Older versions of OneFormer have no list to hand over.
    assert name == "oneformer" or all(isinstance(shapes, list | tuple) for shapes in calls)

    assert found_outputs.keys() == outputs.keys()
    for output, expected in outputs.items():
        found = found_outputs[output]
        infinite = expected.isinf()
        assert torch.equal(found.isinf(), infinite)
        found, expected = found.masked_fill(infinite, 0), expected.masked_fill(infinite, 0)
        off = (found - expected).abs().max().item()
        # Some outputs are small differences of numbers near one, in which one more bit of rounding is no fault.
        scale = max(expected.abs().max().item(), 1e-3)
        assert off <= 1e-4 * scale, f"{output}: off by {off}, scale {scale}"
    assert found_gradients.keys() == gradients.keys()
    scales = gradient_scales(gradients)
    for parameter, expected in gradients.items():
        off = (found_gradients[parameter] - expected).abs().max().item()
        assert off <= 1e-4 * scales[parameter], f"gradient by {parameter}: off by {off}, scale {scales[parameter]}"

    # What goes into the operator has gradients, so that its own were needed for all of the above.
    matter = {"attention_weights"} if "discrete" in name else {"attention_weights", "sampling_offsets"}
    for layer in matter:
        of_layer = [gradient for parameter, gradient in gradients.items() if f".{layer}." in parameter]
        assert of_layer and all(gradient.abs().max() > 0 for gradient in of_layer), layer

    compat.unpatch()
    calls.clear()
    run(model, inputs)
    assert not calls
