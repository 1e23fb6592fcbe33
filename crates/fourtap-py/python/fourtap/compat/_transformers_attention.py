"""Dense attention for all models of transformers: ``attn_implementation="fourtap"``.

Models of transformers do not call an attention function, but look one up by the name in their configuration. So one
more name is registered, in the table of functions and in that of masks. Some models do not look one up: transformers
leaves them with the attention that they have, and at most logs a warning. So two methods of its base class refuse them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fourtap import attention
from fourtap.compat._drop_in import require_installed
from fourtap.errors import InputError, UnsupportedError

__all__ = ["attention_forward", "register_attention"]

_NAME = "fourtap"
# An attribute of methods of transformers that are changed already.
_MARK = "_is_fourtap"
# What models hand over that changes the result, and that the operator cannot do: name, what it is.
_REFUSED = {
    "softcap": "logits are not capped",
    "s_aux": "there are no attention sinks",
    "head_mask": "heads are not masked",
    "indices": "keys are not selected by indices",
    "block_indices": "keys are not selected by blocks",
    "cache": "there is no paged cache, as continuous batching has it",
}


def register_attention() -> None:
    """Makes ``"fourtap"`` an attention implementation of transformers, beside ``"sdpa"`` and ``"eager"``::

        fourtap.compat.transformers.register_attention()
        model = AutoModel.from_pretrained(name, attn_implementation="fourtap")
        model.set_attn_implementation("fourtap")  # or for one that exists already

    Models make the masks that they make for ``"sdpa"``. Nothing changes for models that do not ask for it, and it does
    not matter how often this is called. A model that asks for it, but would go on with other attention as its layers do
    not look up theirs (Falcon, GPT-J, Swin V2), is refused with :class:`fourtap.UnsupportedError`.

    Raises:
        fourtap.UnsupportedError: There is no transformers, or one before 4.53, which cannot register masks.

    """
    require_installed("transformers")
    theirs: Any = importlib.import_module("transformers")
    functions: Any = getattr(theirs, "AttentionInterface", None)
    masks: Any = getattr(theirs, "AttentionMaskInterface", None)
    if not hasattr(functions, "register") or not hasattr(masks, "register"):
        raise UnsupportedError(
            "transformers: expected 4.53 or later with a PyTorch that it takes, so that attention functions and masks "
            f"can be registered, found {theirs.__version__}"
        )
    # The mask first: a model that finds the function, but no way to make masks, goes without them.
    masks.register(_NAME, masks()["sdpa"])
    functions.register(_NAME, attention_forward)
    base = theirs.PreTrainedModel
    for method, wrapped in (
        # When a model is made, and when it exists.
        ("_check_and_adjust_attn_implementation", _refusing_to_make),
        ("set_attn_implementation", _refusing_to_set),
    ):
        original = vars(base).get(method)
        if original is not None and not hasattr(original, _MARK):
            changed = wrapped(original)
            setattr(changed, _MARK, True)
            setattr(base, method, changed)


def _refusing_to_make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check(self: Any, attn_implementation: Any, *others: Any, **named: Any) -> Any:
        if attn_implementation == _NAME:
            _require_lookup(self)
        return original(self, attn_implementation, *others, **named)

    return check


def _refusing_to_set(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_attn_implementation(self: Any, attn_implementation: Any, *others: Any, **named: Any) -> Any:
        if attn_implementation == _NAME:
            # All parts at once, before any of them is changed.
            for module in self.modules():
                if hasattr(module, "_can_set_attn_implementation"):
                    _require_lookup(module)
        elif isinstance(attn_implementation, dict) and attn_implementation.get("") == _NAME:
            _require_lookup(self)
        return original(self, attn_implementation, *others, **named)

    return set_attn_implementation


def _require_lookup(model: Any) -> None:
    """Refuse a model that goes by no table of attention functions."""
    can_set = getattr(model, "_can_set_attn_implementation", None)
    if can_set is not None and not can_set():
        name = type(model).__name__
        raise UnsupportedError(
            f"attn_implementation: expected 'eager' or 'sdpa' for {name}, whose layers do not look up their attention "
            f"in transformers' table, found {_NAME!r} (where only a part of a model is a {name}, give each part its "
            f"own: attn_implementation={{'': {_NAME!r}, 'vision_config': 'eager'}}, say)"
        )


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as models of transformers call it; the arguments are those of their function for ``"sdpa"``.

    Args:
        module: The layer that calls, asked for its ``is_causal`` where the argument is None.
        query: ``[B, Hq, Sq, D]``.
        key: ``[B, Hk, Sk, D]``; Hq may be a multiple of Hk, and nothing is repeated then.
        value: ``[B, Hk, Sk, Dv]``.
        attention_mask: Booleans, true where a query sees a key, or numbers to add; broadcast to ``[B, Hq, Sq, Sk]``. A
            sliding window is part of it.
        dropout: Must be 0, as it is outside of training, and in training of most models.
        scaling: By default ``1 / sqrt(D)``.
        is_causal: Counts where there is no mask and more than one query.
        position_bias: Numbers to add to the logits, as T5 has them; with a gradient.
        kwargs: Whatever else the model was called with. What would change the result is refused.

    Returns:
        ``[B, Sq, Hq, Dv]``, contiguous, and None in place of attention weights, which are never computed.

    Raises:
        fourtap.UnsupportedError: Dropout, attention weights, soft caps, sinks, head masks, selected keys, paged caches.
        fourtap.InputError: Packed sequences without a mask that keeps them apart.

    """
    _refuse(module, dropout, attention_mask, kwargs)
    causal = False
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        # A single query is the newest position, which sees all keys. The size may be a symbol, so this is no "and".
        if query.shape[2] == 1:
            causal = False
    out = attention.scaled_dot_product_attention(
        query,
        key,
        value,
        _with_bias(attention_mask, position_bias),
        is_causal=causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    # The result lies in memory as query does: after the transpose that models make, this copies nothing.
    return out.transpose(1, 2).contiguous(), None


def _refuse(module: nn.Module, dropout: float, attention_mask: Tensor | None, given: dict[str, Any]) -> None:
    layer = type(module).__name__
    if dropout:
        # PyTorch's function in its place would be another implementation than the one that was asked for.
        raise UnsupportedError(
            "dropout: expected 0.0, as dense attention drops nothing (set the attention dropout in the model's "
            f"configuration to 0, or train with attn_implementation='sdpa'), found {dropout} in {layer}"
        )
    if given.get("output_attentions"):
        raise UnsupportedError(
            "output_attentions: expected False, as attention weights are never computed (use "
            f"attn_implementation='eager' for them), found True in {layer}"
        )
    for name, reason in _REFUSED.items():
        found = given.get(name)
        if found is not None:
            what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
            raise UnsupportedError(f"{name}: expected None, as {reason} by 'fourtap', found {what} in {layer}")
    lengths = given.get("cu_seq_lens_q")
    if attention_mask is None and lengths is not None and len(lengths) > 2:
        # Models make the mask from position_ids that start anew; without it, sequences would see each other.
        raise InputError(
            "attention_mask: expected one that keeps packed sequences apart (hand over position_ids beside "
            f"cu_seq_lens_q, and no past_key_values), found None for {len(lengths) - 1} sequences in {layer}"
        )


def _with_bias(attention_mask: Tensor | None, position_bias: Tensor | None) -> Tensor | None:
    """One tensor for both."""
    if position_bias is None or attention_mask is None:
        return attention_mask if position_bias is None else position_bias
    if attention_mask.dtype is torch.bool:
        return torch.where(attention_mask, position_bias, -torch.inf)
    return position_bias + attention_mask
