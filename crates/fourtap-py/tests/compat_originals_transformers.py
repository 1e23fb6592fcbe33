"""The parts of transformers' families that are replaced; see ``compat_originals``."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from compat_originals import (
    CHANNELS,
    HEADS,
    LISTED,
    POINTS,
    SHAPES,
    Call,
    Given,
    Numbers,
    Original,
    core_call,
    initialised,
    module_calls,
    starts,
)
from torch import Tensor, nn

from fourtap.compat import transformers as compat

__all__ = ["of_transformers"]

_LAYER, _MODULE, _NORM = "MultiScaleDeformableAttention", "MultiscaleDeformableAttention", "FrozenBatchNorm2d"
_FUNCTION, _FUNCTION_V2 = (
    function.__name__
    for function in (compat.multi_scale_deformable_attention, compat.multi_scale_deformable_attention_v2)
)


def of_transformers(family: str) -> Original:
    """A fork of the family."""
    name = f"transformers.models.{family}.modeling_mutant"

    def home() -> ModuleType:
        return importlib.import_module(f"transformers.models.{family}.modeling_{family}")

    def sources() -> dict[str, str]:
        return {name: "\n\n".join(inspect.getsource(part) for part in _parts(home()).values())}

    def around() -> dict[str, Any]:
        return {key: thing for key, thing in vars(home()).items() if not key.startswith("__")}

    def patch(modules: Mapping[str, ModuleType], is_strict: bool) -> list[str]:
        return [replaced for replaced in compat.patch(strict=is_strict) if replaced.startswith(name)]

    return Original(name, functools.cache(sources), _calls, patch, compat.unpatch, around)


def _parts(home: ModuleType) -> dict[str, Any]:
    """What is written there of what is replaced."""
    return {
        key: thing
        for key, thing in vars(home).items()
        if key in (_LAYER, _FUNCTION, _FUNCTION_V2) or key.endswith((_MODULE, _NORM))
        if getattr(thing, "__module__", None) == home.__name__
    }


def _calls(home: ModuleType) -> Iterator[Call]:
    for key, part in _parts(home).items():
        if key == _LAYER:
            yield core_call(functools.partial(_call_of_layer, part))
        elif key == _FUNCTION:
            yield core_call(functools.partial(_call_of_function, part))
        elif key == _FUNCTION_V2:
            for options in ((), ("default",), ("discrete",)):
                yield core_call(functools.partial(_call_of_function, part, others=(LISTED, *options)), [sum(LISTED)])
        elif key.endswith(_NORM):
            yield from _norm_calls(part)
        else:
            for method in ("default", "discrete"):
                yield from _calls_of_a_module(part, method)


def _call_of_layer(layer: Any, value: Tensor, *places: Tensor) -> Any:
    return layer()(value, torch.tensor(SHAPES), SHAPES, starts(), *places, 64)


def _call_of_function(function: Any, value: Tensor, *places: Tensor, others: tuple[Any, ...] = ()) -> Any:
    return function(value, SHAPES, *places, *others)


def _calls_of_a_module(owner: type[nn.Module], method: str) -> Iterator[Call]:
    taken = inspect.signature(owner.forward).parameters
    # Those without positions are D-FINE's, whose numbers of points are a list.
    config = SimpleNamespace(
        d_model=CHANNELS,
        num_feature_levels=len(SHAPES),
        decoder_n_levels=len(SHAPES),
        decoder_attention_heads=HEADS,
        decoder_n_points=POINTS if "position_embeddings" in taken else LISTED,
        decoder_offset_scale=0.3,
        decoder_method=method,
        disable_custom_kernels=False,
    )
    options = {"config": config, "embed_dim": CHANNELS, "num_heads": HEADS, "n_levels": len(SHAPES), "n_points": POINTS}
    known = inspect.signature(owner).parameters
    module = initialised(owner(**{name: option for name, option in options.items() if name in known}))
    if method == "discrete" and not any(hasattr(module, name) for name in ("method", "decoder_method")):
        return

    def call(given: Given) -> Any:
        every = {
            "attention_mask": given.padding,
            "encoder_hidden_states": given.features,
            "position_embeddings": given.position,
            "reference_points": given.references,
            "spatial_shapes": torch.tensor(SHAPES),
            "spatial_shapes_list": SHAPES,
            "level_start_index": starts(),
            "output_attentions": True,
        }
        return module(given.query, **{name: one for name, one in every.items() if one is not None and name in taken})

    yield from module_calls(module, call)


def _norm_calls(owner: type[nn.Module]) -> Iterator[Call]:
    numbers = Numbers(11)
    module: Any = owner(4)  # type: ignore[call-arg]
    for name in ("weight", "bias", "running_mean", "running_var"):
        setattr(module, name, numbers.between(0.01, 2.0, 4).detach())
    x = numbers(3, 4, 5, 2, scale=3.0)
    yield Call(lambda: module(x), {"x": x})
    yield Call(lambda: module.eval()(x), {"x": x})
