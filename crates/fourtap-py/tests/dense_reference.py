"""What dense attention has to compute, by PyTorch's own function in f64, and problems to compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Query and key positions: one, few, not a multiple of any block, one less than one.
SIZES = [(1, 1), (239, 1), (799, 3), (113, 203), (1023, 1024)]


def usual_dtype(device: str) -> torch.dtype:
    """The type most used on this device."""
    return torch.float16 if device == "cuda" else torch.float32


@dataclass
class Problem:
    """Random operands."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


def problem(
    seed: int,
    *,
    device: str,
    dtype: torch.dtype | None = None,
    batch: tuple[int, ...] = (2,),
    heads: tuple[int, int] = (4, 4),
    sizes: tuple[int, int] = (37, 53),
    channels: tuple[int, int] = (64, 64),
) -> Problem:
    """Operands of the operator, the same for the same seed whatever the device."""
    source = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=source, dtype=torch.float64)
        return numbers.to(device, dtype or usual_dtype(device))

    (query_heads, key_heads), (queries, keys), (of_keys, of_values) = heads, sizes, channels
    return Problem(
        query=random(*batch, query_heads, queries, of_keys),
        key=random(*batch, key_heads, keys, of_keys),
        value=random(*batch, key_heads, keys, of_values),
    )


def band(
    queries: int, keys: int, *, is_causal: bool = False, causal_alignment: str = "top_left", window: Any = None
) -> Tensor:
    """Which key each query sees, straight from the definition."""
    shift = keys - queries if causal_alignment == "bottom_right" else 0
    left, right = window if isinstance(window, tuple) else (window, window)
    distance = torch.arange(keys)[None] - (torch.arange(queries)[:, None] + shift)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if is_causal:
        seen &= distance <= 0
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return seen


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool | None = None,
    **mask: Any,
) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the sums in f64; 0 and minus infinity for queries that see no key."""
    query, key, value = (tensor.detach().cpu().double() for tensor in (query, key, value))
    seen = band(query.shape[-2], key.shape[-2], **mask)
    bias = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.detach().cpu()
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=torch.float64).masked_fill(~attn_mask, -torch.inf)
        bias = bias + attn_mask.double()
    grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3] if enable_gqa is None else enable_gqa
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=scale, enable_gqa=grouped
        )
    if grouped:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale) + bias
    return out.where((logits > -torch.inf).any(-1)[..., None], 0), logits.logsumexp(-1)
