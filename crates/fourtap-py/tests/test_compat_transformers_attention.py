"""Models of transformers with ``attn_implementation="fourtap"``, against the same with PyTorch's function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_models import CASES, TEXT, build, floating, padded, step
from small_models import transformers
from torch import Tensor, nn
from torch.nn import functional

from fourtap import attention
from fourtap.compat import transformers as compat


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What every call of our operator was given; PyTorch's is noted as an empty one."""
    compat.register_attention()
    seen: list[dict[str, Any]] = []
    ours, theirs = attention.scaled_dot_product_attention, functional.scaled_dot_product_attention

    def note(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, **options: Any) -> Any:
        seen.append({"query": query, "key": key, "value": value, "attn_mask": attn_mask, **options})
        return ours(query, key, value, attn_mask, **options)

    def note_theirs(*arguments: Any, **options: Any) -> Any:
        seen.append({})
        return theirs(*arguments, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", note)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", note_theirs)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield seen
    torch._dynamo.reset()


Tensors = dict[str, Tensor]


def errors(found: Tensors, expected: Tensors) -> dict[str, float]:
    """How far each tensor is off, by its norm; or, if it is zero but for rounding, by a part of the largest."""
    assert found.keys() == expected.keys()
    floor = 1e-3 * max(tensor.float().norm().item() for tensor in expected.values())
    return {
        name: (found[name].float() - right.float()).norm().item() / max(right.float().norm().item(), floor)
        for name, right in expected.items()
    }


def state(model: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_ours_only(calls: list[dict[str, Any]], number: int) -> None:
    assert len(calls) == number and all(calls)
    calls.clear()


Step = tuple[Tensors, Tensors]


def outputs_of(model: nn.Module, inputs: Tensors) -> Step:
    """As `step`, without gradients: on CUDA there are none in 32 bits. The outputs twice."""
    torch.manual_seed(1)  # for dropout
    with torch.no_grad():
        outputs = floating(model(**inputs))
    return outputs, outputs


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_same(name: str, device: str, calls: list[dict[str, Any]]) -> None:
    run = step if device == "cpu" else outputs_of
    model, inputs = build(name, device)
    before = state(model)
    outputs, gradients = run(model, inputs)
    assert len(calls) == CASES[name].calls and not any(calls)
    calls.clear()
    model.load_state_dict(before)
    model.set_attn_implementation("fourtap")
    found_outputs, found_gradients = run(model, inputs)
    assert_ours_only(calls, CASES[name].calls)
    assert run is outputs_of or any(given in gradients for given in inputs)
    for off in (errors(found_outputs, outputs), errors(found_gradients, gradients)):
        assert max(off.values()) < 1e-4, {name: error for name, error in off.items() if error >= 1e-4}


def in_16_bits(model: nn.Module, inputs: Tensors) -> tuple[Tensors, Step, Step]:
    """Makes model and inputs bfloat16. Returns those inputs, PyTorch's step with them, and the same in 32 bits."""
    model.bfloat16()
    inputs = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    before = state(model)
    theirs = step(model, inputs)
    model.float().load_state_dict(before)
    expected = step(model, inputs)
    model.bfloat16().load_state_dict(before)
    return inputs, theirs, expected


def assert_as_near(found: Step, theirs: Step, expected: Step, factor: float) -> None:
    """Asserts that we are not much further from what is right than PyTorch is."""
    for ours, pytorch, right in zip(found, theirs, expected, strict=True):
        assert all(ours[name].dtype is pytorch[name].dtype for name in right)
        allowed = errors(pytorch, right)
        for name, error in errors(ours, right).items():
            assert error < factor * allowed[name] + 1e-3 * factor, (name, error, allowed[name])


# In RT-DETR, which queries there are depends on an order of numbers that 16 bits cannot tell apart.
@pytest.mark.parametrize("name", [name for name in CASES if name != "rt_detr"])
def test_in_16_bits_they_are_as_near_as_those_of_pytorch(name: str, device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = build(name, device)
    inputs, theirs, expected = in_16_bits(model, inputs)
    calls.clear()
    model.set_attn_implementation("fourtap")
    found = step(model, inputs)
    assert_ours_only(calls, CASES[name].calls)
    # On CUDA, PyTorch chooses among kernels that round in other places than ours.
    assert_as_near(found, theirs, expected, 2 if device == "cpu" else 4)


def test_keys_are_not_repeated_and_nothing_is_copied(device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = build("llama-causal", device)
    model.set_attn_implementation("fourtap")
    outputs_of(model, inputs)
    for call in calls:
        assert call["query"].shape[1] == 4 and call["key"].shape[1] == call["value"].shape[1] == 2
        assert call["enable_gqa"] and call["is_causal"] and call["attn_mask"] is None
    calls.clear()
    # Padding on the left: the first rows see no key, so there must be a mask, and it is one for all heads.
    outputs_of(model, {**inputs, "attention_mask": padded(left=True).to(device)})
    for call in calls:
        assert call["attn_mask"].dtype is torch.bool and call["attn_mask"].shape[1] == 1 and not call["is_causal"]


def generating(name: str, device: str) -> tuple[nn.Module, dict[str, Tensor]]:
    model, _ = build(name, device)
    words = torch.randint(1, TEXT["vocab_size"], (2, 13)).to(device)
    left = name != "t5"
    return model.eval(), {"input_ids": words, "attention_mask": padded(left=left).to(device)}


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama-padded", "mistral-window", "t5"])
def test_generating_with_a_cache(name: str, cache: str | None, device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = generating(name, device)
    options: dict[str, Any] = {
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
        "cache_implementation": cache,
        "disable_compile": True,
        "return_dict_in_generate": True,
        "output_logits": True,
    }

    def logits(**given: Tensor) -> Tensor:
        return torch.stack(model.generate(**given, **options).logits)

    words = inputs["input_ids"]
    expected, without_padding = logits(**inputs), logits(input_ids=words)
    calls.clear()
    model.set_attn_implementation("fourtap")
    found = logits(**inputs)
    assert all(calls) and sum(call["query"].shape[2] == 1 for call in calls) >= 2 * 5
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    # Where there is no mask, a prompt is causal, and goes before empty keys if the cache has room for more.
    calls.clear()
    found = logits(input_ids=words)
    assert all(calls) and (found - without_padding).abs().max() < 1e-4 * without_padding.abs().max()


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("vit", "aot_eager"),
        ("llama-causal", "aot_eager"),
        *(
            pytest.param(name, backend, marks=pytest.mark.slow)
            for name, backend in [
                ("swin", "aot_eager"),
                ("bert-padded", "aot_eager"),
                ("mistral-window", "aot_eager"),
                ("t5", "aot_eager"),
                ("llama-padded", "inductor"),
                ("vit", "inductor"),
            ]
        ),
    ],
)
def test_compiled_models_are_the_same(name: str, backend: str, device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = build(name, device)
    # Without dropout elsewhere, whose numbers depend on the backend.
    model.eval()
    if device == "cpu":
        expected = theirs = step(model, inputs)
    else:
        inputs, theirs, expected = in_16_bits(model, inputs)
    calls.clear()
    model.set_attn_implementation("fourtap")
    model.compile(fullgraph=True, backend=backend)
    found = step(model, inputs)
    # Noted while it is traced.
    assert_ours_only(calls, CASES[name].calls)
    if device != "cpu":
        assert_as_near(found, theirs, expected, 4)
        return
    for ours, right in zip(found, expected, strict=True):
        assert max(errors(ours, right).values()) < 1e-4


def test_one_compilation_serves_all_lengths(device: str) -> None:
    compat.register_attention()
    torch._dynamo.reset()
    compilations = 0

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal compilations
        compilations += 1
        return module.forward

    model, _ = build("llama-causal", device)
    model.eval().set_attn_implementation("fourtap")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 12), (5, 30)):
            words = torch.randint(1, TEXT["vocab_size"], (batch, length)).to(device)
            found, expected = (run(words, use_cache=False).logits for run in (compiled, model))
            assert (found - expected).abs().max() < 1e-4
    assert compilations == 1


def test_autocast_and_checkpoints(device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = build("llama-padded", device)
    model.gradient_checkpointing_enable()

    def types() -> tuple[Any, ...]:
        with torch.autocast(device, torch.bfloat16):
            outputs, gradients = step(model, inputs)
        return {name: found.dtype for name, found in outputs.items()}, gradients

    _, exact = step(model, inputs)
    expected_types, theirs = types()
    calls.clear()
    model.set_attn_implementation("fourtap")
    found_types, found = types()
    assert found_types == expected_types
    # Each layer once more for its gradients.
    assert_ours_only(calls, 2 * CASES["llama-padded"].calls)
    # Both are off from f32: as near as PyTorch's.
    off, usual = errors(found, exact), errors(theirs, exact)
    assert all(error <= 4 * usual[name] + 3e-2 for name, error in off.items()), (off, usual)


@torch.no_grad()
def test_a_model_is_loaded_with_it(tmp_path: Path, device: str, calls: list[dict[str, Any]]) -> None:
    model, inputs = build("vit", device)
    expected = model(**inputs).logits
    calls.clear()
    model.save_pretrained(tmp_path)
    for load in (transformers.AutoModelForImageClassification, transformers.ViTForImageClassification):
        loaded = load.from_pretrained(tmp_path, attn_implementation="fourtap").to(device)
        assert (loaded(**inputs).logits - expected).abs().max() < 1e-4
        assert_ours_only(calls, CASES["vit"].calls)
    # Nobody else gets it.
    transformers.AutoModelForImageClassification.from_pretrained(tmp_path).to(device)(**inputs)
    assert not any(calls)
