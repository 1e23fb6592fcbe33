"""The compiled parts of mmcv and detrex, for those who have none: mmcv-lite, and detrex without its extension."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from fourtap.compat._extension import Extension
from fourtap.compat.deformable_detr import FUNCTIONS, ms_deform_attn_backward
from fourtap.errors import UnsupportedError
from fourtap.nn import SpatialShapes

__all__ = ["detrex_with_extension", "installed_names", "mmcv_with_extension", "uninstall"]

_MMCV = "mmcv.ops.multi_scale_deform_attn"
_DETREX = "detrex.layers.multi_scale_deform_attn"


def mmcv_with_extension() -> ModuleType:
    """mmcv's module of the operator, whose extension computes with fourtap, and is there in any case.

    The module's autograd function is not the only one that calls the extension: BEVFormer and those who copied from it
    have their own.
    """
    importlib.import_module("mmcv")
    try:
        importlib.import_module("mmcv._ext")
    except ImportError:
        # Every other module of mmcv.ops asks for its own functions in it when it is imported.
        pass
    _mmcv.install(force=True)
    try:
        return importlib.import_module(_MMCV)
    except ImportError:
        _mmcv.uninstall()
        raise


def detrex_with_extension() -> ModuleType:
    """detrex's module of the operator, with its class in any case."""
    home = importlib.import_module(_DETREX)
    theirs = vars(home).get(_CLASS)
    if not isinstance(theirs, type) or issubclass(theirs, nn.Module):
        return home
    # Without the extension, a class that can only raise has its place. All who have imported it get the real one.
    _detrex.install()
    former = dict(vars(home))
    importlib.reload(home)
    for name in (_CLASS, "MultiScaleDeformableAttnFunction", "multi_scale_deformable_attn_pytorch"):
        for module in list(sys.modules.values()):
            if name in former and getattr(module, "__dict__", {}).get(name) is former[name]:
                setattr(module, name, vars(home)[name])
    return home


def installed_names() -> list[str]:
    """What of the extensions is replaced now."""
    return [*_mmcv.names, *_detrex.names]


def uninstall() -> None:
    """Undoes it."""
    _mmcv.uninstall()
    _detrex.uninstall()


_CLASS = "MultiScaleDeformableAttention"


def _write_gradients(
    value: Tensor,
    spatial_shapes: SpatialShapes,
    level_start_index: Tensor | None,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int = 64,
) -> None:
    """As mmcv's extension has it, which writes them into tensors of the caller's."""
    gradients = ms_deform_attn_backward(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_output
    )
    for target, gradient in zip((grad_value, grad_sampling_loc, grad_attn_weight), gradients, strict=True):
        target.copy_(gradient)


def _missing(extension: str, name: str) -> Callable[..., Any]:
    """A function that says, when it is called, that it is missing."""
    # Whoever looks at modules asks for names like __path__ and __wrapped__.
    if name.startswith("_"):
        raise AttributeError(f"module {extension!r} has no attribute {name!r}")

    def missing(*arguments: Any, **named: Any) -> Any:
        raise UnsupportedError(
            f"{extension}.{name}: expected {extension.partition('.')[0]} with its compiled extension, found none that "
            "can be imported; fourtap has only ms_deform_attn_forward and ms_deform_attn_backward of it"
        )

    return missing


def _others_of_mmcv(name: str) -> Callable[..., Any]:
    # Reports about an installation name the compilers.
    if name in ("get_compiler_version", "get_compiling_cuda_version"):
        return lambda: "n/a"
    return _missing("mmcv._ext", name)


_mmcv = Extension("mmcv._ext", {**FUNCTIONS, "ms_deform_attn_backward": _write_gradients}, _others_of_mmcv)
_detrex = Extension("detrex._C", FUNCTIONS, functools.partial(_missing, "detrex._C"))
