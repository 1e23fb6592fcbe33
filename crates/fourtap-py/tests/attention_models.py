"""Small models of transformers with random weights, whose attention is dense: one for each way to call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small_models import NO_DOWNLOAD, Built, image, resnet, rt_detr, transformers
from torch import Tensor, nn

# No dropout in attention: the operator has none. Elsewhere it stays where it is, and draws the same numbers for both.
TEXT: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
BATCH, LENGTH = 2, 13


def embeddings(length: int = LENGTH, channels: int = 64) -> Tensor:
    return torch.randn(BATCH, length, channels)


def padded(*, left: bool, length: int = LENGTH) -> Tensor:
    """Which tokens are there: the second sequence is shorter by four."""
    there = torch.ones(BATCH, length, dtype=torch.int64)
    there[1, slice(4) if left else slice(length - 4, None)] = 0
    return there


def vit() -> Built:
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": image(32, 32)}


def swin() -> Built:
    # Windows of 4 x 4 on 8 x 8 pixels, every other layer shifted: relative biases that learn, and masks beside them.
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=32, depths=[2, 1], num_heads=[2, 4], window_size=4, drop_path_rate=0.0
    )
    return transformers.SwinForImageClassification(config), {"pixel_values": image(32, 32)}


def detr() -> Built:
    config = transformers.DetrConfig(
        backbone_config=resnet(stages=("stage4",)),
        **NO_DOWNLOAD,
        d_model=64,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=7,
    )
    seen = torch.ones(2, 96, 128, dtype=torch.int64)
    seen[1, 70:, :] = 0
    seen[1, :, 90:] = 0
    return transformers.DetrForObjectDetection(config), {"pixel_values": image(), "pixel_mask": seen}


def bert() -> Built:
    config = transformers.BertConfig(**TEXT, attention_probs_dropout_prob=0.0)
    inputs = {"inputs_embeds": embeddings(), "attention_mask": padded(left=False)}
    return transformers.BertForSequenceClassification(config), inputs


def modernbert() -> Built:
    # A window to both sides.
    config = transformers.ModernBertConfig(
        **TEXT,
        local_attention=6,
        global_attn_every_n_layers=2,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    inputs = {"inputs_embeds": embeddings(), "attention_mask": padded(left=False)}
    return transformers.ModernBertForMaskedLM(config), inputs


def llama(**inputs: Tensor) -> Built:
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), {"inputs_embeds": embeddings(), **inputs}


def packed() -> Tensor:
    return torch.cat([torch.arange(5), torch.arange(LENGTH - 5)]).expand(BATCH, LENGTH)


def mistral() -> Built:
    config = transformers.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=4)
    inputs = {"inputs_embeds": embeddings(), "attention_mask": padded(left=True)}
    return transformers.MistralForCausalLM(config), inputs


def t5() -> Built:
    # A bias that learns, alone or beside a mask, and attention to an encoder.
    config = transformers.T5Config(
        vocab_size=61,
        d_model=64,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    inputs = {
        "inputs_embeds": embeddings(),
        "attention_mask": padded(left=False),
        "decoder_inputs_embeds": embeddings(9),
    }
    return transformers.T5ForConditionalGeneration(config), inputs


@dataclass
class Case:
    build: Callable[[], Built]
    calls: int
    "How often one pass attends densely."
    train: bool = True
    "Whether gradients are looked at as in training, or as in evaluation."


CASES = {
    "vit": Case(vit, 2),
    "swin": Case(swin, 3),
    "detr": Case(detr, 1 + 2 * 2),
    # With two small images, statistics of a batch would multiply rounding by thousands.
    "rt_detr": Case(rt_detr, 1 + 2, train=False),
    "bert-padded": Case(bert, 2),
    "modernbert-windows": Case(modernbert, 2),
    "llama-causal": Case(llama, 2),
    "llama-padded": Case(lambda: llama(attention_mask=padded(left=True)), 2),
    "llama-packed": Case(lambda: llama(position_ids=packed()), 2),
    "mistral-window": Case(mistral, 2),
    "t5": Case(t5, 2 + 2 * 2),
}


def build(name: str, device: str) -> Built:
    """The model with PyTorch's function, and weights in which nothing is zero."""
    torch.manual_seed(0)
    case = CASES[name]
    try:
        model, inputs = case.build()
    except AttributeError as error:
        if "module transformers has no attribute" in str(error):
            pytest.skip(str(error))
        raise
    if model.config._attn_implementation != "sdpa" or not model._supports_attention_backend:
        pytest.skip(f"this transformers does not ask the registered functions in {name}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.to(device).train(case.train), {name: tensor.to(device) for name, tensor in inputs.items()}


def floating(output: Any) -> dict[str, Tensor]:
    """The tensors of numbers in what a model returns."""
    return {name: found for name, found in output.items() if isinstance(found, Tensor) and found.is_floating_point()}


def step(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and gradients of a sum of them with fixed random weights by all parameters and inputs."""
    dtype = next(model.parameters()).dtype
    leaves = {
        name: tensor.detach().to(dtype).requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }
    torch.manual_seed(1)  # for dropout
    outputs = floating(model(**leaves))
    source = torch.Generator().manual_seed(5)
    total = torch.zeros((), device=next(model.parameters()).device)
    for output in outputs.values():
        weights = torch.randn(output.shape, generator=source).to(output.device)
        if output.requires_grad:
            total = total + (output.float() * weights).sum() / output.numel()
    model.zero_grad()
    total.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    gradients |= {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {name: output.detach() for name, output in outputs.items()}, gradients
