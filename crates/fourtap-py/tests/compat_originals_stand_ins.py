"""The stand-ins of all other projects; see ``compat_originals``."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import reference
import stand_ins
import torch
from compat_originals import (
    CHANNELS,
    HEADS,
    LISTED,
    POINTS,
    SHAPES,
    Call,
    Given,
    Original,
    core_call,
    initialised,
    module_calls,
    starts,
)
from torch import Tensor

from fourtap.compat import groundingdino, mmcv, rfdetr, rtdetr, ultralytics

__all__ = ["STAND_INS", "ms_deform_attn_backward", "ms_deform_attn_forward"]

# Nearest pixels of the repositories are those of squares.
SQUARES = [(7, 7), (5, 5), (3, 3)]
# Instead of the compiled parts, which cannot compute.
EXTENSION = "from compat_originals_stand_ins import ms_deform_attn_backward, ms_deform_attn_forward\n"


def ms_deform_attn_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor, step: int = 0, **options: int
) -> Tensor:
    return reference.ms_deform_attn(value, shapes.tolist(), locations, weights)


def ms_deform_attn_backward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    locations: Tensor,
    weights: Tensor,
    grad_output: Tensor,
    *others: Any,
    **options: int,
) -> list[Tensor]:
    """Both kinds: mmcv's writes into tensors of the caller's."""
    operands = [tensor.detach().requires_grad_() for tensor in (value, locations, weights)]
    with torch.enable_grad():
        result = reference.ms_deform_attn(operands[0], shapes.tolist(), *operands[1:])
    found = torch.autograd.grad(result, operands, grad_output)
    for target, gradient in zip(others, found, strict=False):
        if isinstance(target, Tensor):
            target.copy_(gradient)
    return list(found)


def _sources(files: Mapping[str, str]) -> dict[str, str]:
    """Of the stand-ins, with that of what they have from the tests."""
    helper = textwrap.indent(f"@staticmethod\n{inspect.getsource(reference.ms_deform_attn)}", "    ")
    whole = f"from torch.nn import functional\n\n\nclass reference:\n{helper}"
    written = {}
    for name, file in files.items():
        text = Path(stand_ins.__file__).with_name(f"{file}.py").read_text()
        written[name] = EXTENSION if file == "mmcv_ext" else text.replace("import reference\n", whole)
    return written


def _original(
    name: str,
    files: Mapping[str, str],
    drop_in: Any,
    calls: Callable[[Any], Iterator[Call]],
    patch: Callable[[Mapping[str, ModuleType], bool], list[str]] | None = None,
) -> Original:
    def patch_all(modules: Mapping[str, ModuleType], is_strict: bool) -> list[str]:
        found: list[str] = drop_in.patch(strict=is_strict)
        return found

    sources = functools.cache(lambda: _sources(files))
    return Original(name, sources, calls, patch or patch_all, drop_in.unpatch, files=files)


def _of_repository(file: str, calls: Callable[[Any], Iterator[Call]], *others: str) -> Original:
    wanted = [f"repository.zoo.{one}" for one in ("utils", *others, file)]
    files = {name: stand_ins.REPOSITORY[name] for name in dict.fromkeys(wanted)}

    def patch(modules: Mapping[str, ModuleType], is_strict: bool) -> list[str]:
        # RT-DETRv2's does not name the function itself, so that it is found by a model.
        owner = getattr(modules[wanted[-1]], "MSDeformableAttention", None)
        models = [] if owner is None else [_module_of_repository(owner, "default")]
        return rtdetr.patch(*modules.values(), *models, strict=is_strict)

    return _original(wanted[-1], files, rtdetr, calls, patch)


def _module_of_repository(owner: Any, method: str) -> Any:
    options = (POINTS,) if owner.__module__.endswith(".rtdetr_decoder") else (LISTED, method, 0.3)
    return initialised(owner(CHANNELS, HEADS, len(SHAPES), *options))


def _calls_of_repository_functions(home: Any) -> Iterator[Call]:
    yield core_call(lambda value, *places: home.deformable_attention_core_func(value, SHAPES, *places))
    for shapes, options in ((SHAPES, ()), (SHAPES, ("default",)), (SQUARES, ("discrete",))):

        def call(value: Tensor, *places: Tensor, shapes: Any = shapes, options: Any = options) -> Any:
            return home.deformable_attention_core_func_v2(value, shapes, *places, LISTED, *options)

        yield core_call(call, [sum(LISTED)], shapes)


def _calls_of_repository_modules(home: Any) -> Iterator[Call]:
    name = home.__name__.rpartition(".")[2]
    for method, shapes in (("default", SHAPES), ("discrete", SQUARES)):
        levels = [list(shape) for shape in shapes]
        module = _module_of_repository(home.MSDeformableAttention, method)

        def call(given: Given, module: Any = module, levels: Any = levels) -> Any:
            if name != "dfine_decoder":
                mask = None if given.padding is None else ~given.padding
                return module(given.query, given.references, given.features, levels, mask)
            heads = given.features.unflatten(-1, (HEADS, -1)).permute(0, 2, 3, 1)
            parts = heads.split([height * width for height, width in levels], dim=-1)
            return module(given.query, given.references, parts, levels)

        yield from module_calls(module, call, shapes)


def _calls_of_ultralytics_function(home: Any) -> Iterator[Call]:
    function = home.multi_scale_deformable_attn_pytorch
    for samples in ((len(SHAPES), POINTS), (len(SHAPES) * POINTS,)):
        yield core_call(lambda value, *places: function(value, SHAPES, *places), samples)


def _calls_of_ultralytics(home: Any) -> Iterator[Call]:
    module = initialised(home.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS))
    yield from module_calls(
        module, lambda given: module(given.query, given.references, given.features, SHAPES, given.padding)
    )


def _calls_of_rf_detr(home: Any) -> Iterator[Call]:
    def function(value: Tensor, locations: Tensor, weights: Tensor, *listed: Any) -> Any:
        shapes = torch.tensor(SHAPES)
        return home.ms_deform_attn_core_pytorch(
            value.permute(0, 2, 3, 1), shapes, locations, weights.flatten(3), *listed
        )

    yield core_call(function)
    yield core_call(lambda *operands: function(*operands, SHAPES), [len(SHAPES) * POINTS])
    module = initialised(home.MSDeformAttn(CHANNELS, len(SHAPES), HEADS, POINTS))
    for listed in ((), (SHAPES,)):
        for is_exported in (False, True):

            def call(given: Given, listed: Any = listed, is_exported: bool = is_exported) -> Any:
                module._export = is_exported
                levels = (torch.tensor(SHAPES), starts())
                return module(given.query, given.references, given.features, *levels, given.padding, *listed)

            yield from module_calls(module, call)


def _calls_of_mmcv(home: Any) -> Iterator[Call]:
    """And of detrex and Grounding DINO."""
    levels = (torch.tensor(SHAPES), starts())
    yield core_call(lambda value, *places: home.multi_scale_deformable_attn_pytorch(value, levels[0], *places))
    yield core_call(lambda value, *places: home.MultiScaleDeformableAttnFunction.apply(value, *levels, *places, 64))
    for batch_first in (True, False):
        options = {"batch_first": batch_first}
        module = initialised(home.MultiScaleDeformableAttention(CHANNELS, HEADS, len(SHAPES), POINTS, **options))

        def call(given: Given, module: Any = module, batch_first: bool = batch_first) -> Any:
            def ordered(tensor: Tensor | None) -> Tensor | None:
                return tensor if tensor is None or batch_first else tensor.transpose(0, 1)

            return module(
                ordered(given.query),
                value=ordered(given.features),
                query_pos=ordered(given.position),
                key_padding_mask=given.padding,
                reference_points=given.references,
                spatial_shapes=levels[0],
                level_start_index=levels[1],
            )

        yield from module_calls(module, call)


_GROUNDING_DINO = {"groundingdino._C": "mmcv_ext", **stand_ins.GROUNDING_DINO}
_MMCV = {"mmcv._ext": "mmcv_ext", "mmcv.ops.multi_scale_deform_attn": "mmcv_multi_scale_deform_attn"}
_DETREX = {"detrex._C": "mmcv_ext", "detrex.layers.multi_scale_deform_attn": "detrex_multi_scale_deform_attn"}

STAND_INS = {
    "rtdetr functions": _of_repository("utils", _calls_of_repository_functions),
    "rtdetr": _of_repository("rtdetr_decoder", _calls_of_repository_modules),
    "rtdetrv2": _of_repository("rtdetrv2_decoder", _calls_of_repository_modules, "dfine_decoder"),
    "dfine": _of_repository("dfine_decoder", _calls_of_repository_modules),
    "ultralytics function": _original(
        "ultralytics.nn.modules.utils", stand_ins.ULTRALYTICS, ultralytics, _calls_of_ultralytics_function
    ),
    "ultralytics": _original(
        "ultralytics.nn.modules.transformer", stand_ins.ULTRALYTICS, ultralytics, _calls_of_ultralytics
    ),
    "rfdetr": _original(next(iter(stand_ins.RF_DETR)), stand_ins.RF_DETR, rfdetr, _calls_of_rf_detr),
    "groundingdino": _original(next(reversed(_GROUNDING_DINO)), _GROUNDING_DINO, groundingdino, _calls_of_mmcv),
    "mmcv": _original(next(reversed(_MMCV)), _MMCV, mmcv, _calls_of_mmcv),
    "detrex": _original(next(reversed(_DETREX)), _DETREX, mmcv, _calls_of_mmcv),
}
