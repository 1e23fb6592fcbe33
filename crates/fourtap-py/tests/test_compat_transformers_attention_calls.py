"""The attention function of transformers, call by call: against theirs for PyTorch, and what it refuses."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_models import TEXT
from dense_reference import usual_dtype
from small_models import transformers
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import fourtap
from fourtap.compat import _transformers_attention
from fourtap.compat import transformers as compat

SIZES = {"square": (11, 11), "decode": (1, 11), "room": (5, 11), "cross": (11, 7)}


class Layer(nn.Module):
    """What the functions want to know of the layer that calls."""

    def __init__(self, groups: int, is_causal: bool | None = None) -> None:
        super().__init__()
        self.num_key_value_groups = groups
        if is_causal is not None:
            self.is_causal = is_causal


def operands(device: str, sizes: tuple[int, int], groups: int = 1) -> list[Tensor]:
    """Queries, keys and values as models make them: heads next to channels in memory."""
    (queries, keys), heads = sizes, 4
    shapes = [(queries, heads, 16), (keys, heads // groups, 16), (keys, heads // groups, 16)]
    return [random(device, 2, *shape).transpose(1, 2).requires_grad_() for shape in shapes]


def random(device: str, *shape: int) -> Tensor:
    """In a type that has gradients on this device."""
    return torch.randn(shape, device=device).to(usual_dtype(device))


def masks(kind: str, device: str, sizes: tuple[int, int]) -> Tensor | None:
    seen = torch.rand(2, 1, *sizes, device=device) < 0.7
    seen[..., 0] = True
    if kind == "bool":
        return seen
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min) if kind == "numbers" else None


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("mask", ["none", "bool", "numbers"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("groups", "of_layer", "is_causal"),
    [(1, None, None), (1, False, None), (2, True, None), (4, True, False), (1, False, True)],
)
def test_results_and_gradients_are_those_for_sdpa(
    sizes: tuple[int, int],
    mask: str,
    biased: bool,
    groups: int,
    of_layer: bool | None,
    is_causal: bool | None,
    device: str,
) -> None:
    tensors = operands(device, sizes, groups)
    bias = random(device, 1, 4, *sizes).requires_grad_() if biased else None
    leaves = [*tensors, *([] if bias is None else [bias])]
    weights = torch.randn(2, sizes[0], 4, 16, device=device)
    hidden = masks(mask, device, sizes)

    def run(function: Any, dtype: torch.dtype) -> list[Tensor]:
        *given, added = (None if leaf is None else leaf.to(dtype) for leaf in (*tensors, bias))
        options: dict[str, Any] = {"scaling": 0.3, "is_causal": is_causal, "position_bias": added, "dropout": 0.0}
        out, nothing = function(Layer(groups, of_layer), *given, hidden, **options)
        assert out.is_contiguous() and out.shape == weights.shape and nothing is None
        return [out, *torch.autograd.grad((out.float() * weights).sum(), leaves)]

    dtype = usual_dtype(device)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-2
    expected = run(sdpa_attention_forward, torch.float32)
    for found, right in zip(run(compat.attention_forward, dtype), expected, strict=True):
        assert found.dtype is dtype
        assert (found.float() - right.float()).abs().max() < tolerance * max(1.0, right.abs().max())


def test_a_query_that_sees_nothing_stays_finite(device: str) -> None:
    tensors = operands(device, (5, 5))
    seen = torch.ones(2, 1, 5, 5, dtype=torch.bool, device=device)
    seen[1, :, :2] = False
    for bias in (None, random(device, 1, 4, 5, 5)):
        out, _ = compat.attention_forward(Layer(1), *tensors, seen, position_bias=bias)
        assert torch.all(out[1, :2] == 0) and torch.all(out[1, 2:] != 0)
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), tensors))


@torch.no_grad()
def test_the_result_is_not_copied(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    real = fourtap.attention.scaled_dot_product_attention

    def keep(*arguments: Any, **options: Any) -> Any:
        results.append(real(*arguments, **options))
        return results[-1]

    monkeypatch.setattr(fourtap.attention, "scaled_dot_product_attention", keep)
    out, _ = compat.attention_forward(Layer(1), *operands(device, (5, 7)), None, is_causal=False)
    assert out.data_ptr() == results[0].data_ptr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, "dropout: expected 0.0, as .* found 0.1 in Layer"),
        ({"output_attentions": True}, "output_attentions: expected False, .* found True in Layer"),
        ({"softcap": 50.0}, "softcap: expected None, .* found 50.0 in Layer"),
        ({"s_aux": torch.zeros(4)}, r"s_aux: expected None, .* found shape \[4\] in Layer"),
        ({"head_mask": torch.ones(4)}, r"head_mask: expected None, .* found shape \[4\] in Layer"),
        ({"indices": torch.zeros(2, 5, 3)}, r"indices: expected None, .* found shape \[2, 5, 3\] in Layer"),
        ({"block_indices": torch.zeros(2, 5)}, r"block_indices: expected None, .* found shape \[2, 5\] in Layer"),
        ({"cache": "some cache"}, "cache: expected None, .* found 'some cache' in Layer"),
    ],
)
def test_what_would_change_the_result_is_refused(options: dict[str, Any], message: str, device: str) -> None:
    with pytest.raises(fourtap.UnsupportedError, match=message):
        compat.attention_forward(Layer(1), *operands(device, (5, 5)), None, **options)


def test_packed_sequences_need_a_mask(device: str) -> None:
    tensors = operands(device, (5, 5))
    ends = torch.tensor([0, 2, 5], dtype=torch.int32)
    with pytest.raises(fourtap.InputError, match=r"attention_mask: expected one .* found None for 2 sequences"):
        compat.attention_forward(Layer(1), *tensors, None, cu_seq_lens_q=ends)
    compat.attention_forward(Layer(1), *tensors, masks("bool", device, (5, 5)), cu_seq_lens_q=ends)
    compat.attention_forward(Layer(1), *tensors, None, cu_seq_lens_q=ends[::2])


def test_what_changes_nothing_is_taken(device: str) -> None:
    tensors = operands(device, (5, 5))
    expected, _ = compat.attention_forward(Layer(1), *tensors, None)
    given = dict.fromkeys(("softcap", "s_aux", "head_mask", "indices", "block_indices", "cache", "cu_seq_lens_q"))
    others = {"use_cache": True, "sliding_window": 9, "position_ids": torch.arange(5), "output_attentions": False}
    found, _ = compat.attention_forward(Layer(1), *tensors, None, **given, **others)
    assert torch.equal(found, expected)


@pytest.fixture
def words(device: str) -> Tensor:
    compat.register_attention()
    return torch.randint(1, TEXT["vocab_size"], (2, 7)).to(device)


def test_dropout_of_a_model_is_refused_in_training_only(words: Tensor) -> None:
    # BERT drops 0.1 of its attention weights unless told otherwise.
    model = transformers.BertModel(transformers.BertConfig(**TEXT)).to(words.device)
    model.set_attn_implementation("fourtap")
    with torch.no_grad():
        model.eval()(words)
    with pytest.raises(fourtap.UnsupportedError, match=r"dropout: expected 0.0, .* found 0.1 in BertSelfAttention"):
        model.train()(words)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("Gemma2", {"head_dim": 16}, "softcap"),
        ("GptOss", {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
    ],
)
def test_models_with_more_than_attention_are_refused(
    kind: str, options: dict[str, Any], name: str, words: Tensor
) -> None:
    config = getattr(transformers, f"{kind}Config")(**TEXT, num_key_value_heads=2, **options)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(words.device).eval()
    model.set_attn_implementation("fourtap")
    with pytest.raises(fourtap.UnsupportedError, match=f"{name}: expected None, .* in {kind}Attention"):
        model(words)


def test_attention_weights_of_a_model_are_refused(words: Tensor) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)).to(words.device)
    model.set_attn_implementation("fourtap")
    with pytest.raises(fourtap.UnsupportedError, match=r"output_attentions: expected False, .* in LlamaAttention"):
        model(words, output_attentions=True)


def test_no_transformers_or_an_old_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old:
        old.setattr(_transformers_attention.importlib, "import_module", lambda name: Old)
        with pytest.raises(fourtap.UnsupportedError, match=r"transformers: expected 4.53 or later .* found 4.52.1"):
            compat.register_attention()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fourtap.UnsupportedError, match="transformers: expected it to be installed"):
        compat.register_attention()


class Old:
    """A transformers that can register functions, but no masks."""

    __version__ = "4.52.1"
    AttentionInterface = transformers.AttentionInterface


# What models hand over that needs nothing done: how FlashAttention splits packed sequences and its options, and what
# masks and rotations were made of.
NOTHING_TO_DO = {
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "deterministic",
    "max_length_k",
    "max_length_q",
    "output_attentions",
    "position_ids",
    "sliding_window",
}


def keywords_of_calls() -> Iterator[tuple[str, str]]:
    """The keywords with which models of the installed transformers call attention functions, and who does."""
    for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        source = path.read_text()
        for call in re.finditer(r"^( *)\S.*= attention_interface\(\n(?:\1 .*\n)*\1\)", source, re.MULTILINE):
            statement = ast.parse(inspect.cleandoc(call[0].strip())).body[0]
            assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
            yield from ((keyword.arg, path.stem) for keyword in statement.value.keywords if keyword.arg)


def test_every_keyword_of_transformers_is_known() -> None:
    # One that a later version adds would be ignored, as all others that a model was called with must be.
    taken = set(inspect.signature(compat.attention_forward).parameters) | set(_transformers_attention._REFUSED)
    found = list(keywords_of_calls())
    assert len(found) > 500
    assert [(keyword, model) for keyword, model in found if keyword not in taken | NOTHING_TO_DO] == []


def test_models_that_do_not_look_up_their_attention_are_refused() -> None:
    compat.register_attention()
    compat.register_attention()
    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    falcon = transformers.FalconConfig(**small)
    swin = transformers.Swinv2Config(
        image_size=32, patch_size=4, embed_dim=16, depths=[1], num_heads=[2], window_size=4
    )
    for owner, config in ((transformers.FalconForCausalLM, falcon), (transformers.Swinv2Model, swin)):
        message = rf"^attn_implementation: expected 'eager' or 'sdpa' for {owner.__name__}, .* found 'fourtap'"
        model = owner(config)
        before = model.config._attn_implementation
        with pytest.raises(fourtap.UnsupportedError, match=message):
            model.set_attn_implementation("fourtap")
        assert model.config._attn_implementation == before
        with pytest.raises(fourtap.UnsupportedError, match=message):
            owner._from_config(config, attn_implementation="fourtap")
        model.set_attn_implementation("eager")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, intermediate_size=64))
    llama.set_attn_implementation("fourtap")
    assert llama.config._attn_implementation == "fourtap"
