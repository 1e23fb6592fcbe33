"""Multi-scale deformable attention for CUDA and CPU: fast, accurate in every dtype, bitwise reproducible.

:func:`ms_deform_attn` is the operator, for PyTorch tensors (CPU or CUDA) and NumPy arrays, and
:func:`ms_deform_attn_from_projections` the same from what a model's linear layers put out;
:class:`fourtap.nn.MSDeformAttn` is the module around it; :mod:`fourtap.compat` has drop-in replacements for other
projects; :mod:`fourtap.onnx` is for models in ONNX Runtime. :func:`scaled_dot_product_attention` is the second
operator, dense attention.
``python -m fourtap doctor`` reports what this machine has and what is missing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from fourtap import _native
from fourtap._flops import register_when_imported as _register_flops
from fourtap._kernels import installed_folder as _installed_folder
from fourtap._lazy import import_lazily as _import_lazily
from fourtap._native import __version__
from fourtap.errors import CudaError, DTypeError, Error, InputError, OutOfMemoryError, UnsupportedError

if TYPE_CHECKING:
    from fourtap import compat, nn, onnx
    from fourtap._decomposed import decompositions
    from fourtap.attention import (
        ms_deform_attn,
        ms_deform_attn_backward,
        ms_deform_attn_from_projections,
        scaled_dot_product_attention,
    )

__all__ = [
    "CudaError",
    "DTypeError",
    "Error",
    "InputError",
    "OutOfMemoryError",
    "UnsupportedError",
    "__version__",
    "compat",
    "decompositions",
    "ms_deform_attn",
    "ms_deform_attn_backward",
    "ms_deform_attn_from_projections",
    "nn",
    "onnx",
    "scaled_dot_product_attention",
]

_native.set_pack_folder(_installed_folder())
if os.environ.get("FOURTAP_CHECK", "") not in ("", "0"):
    importlib.import_module("fourtap._finite").check_from_now_on()
_register_flops()

# These import PyTorch, which takes seconds, so they are imported on first use: `fourtap --help` does not need them.
_FUNCTIONS = {
    "ms_deform_attn",
    "ms_deform_attn_backward",
    "ms_deform_attn_from_projections",
    "scaled_dot_product_attention",
}
_MODULES = {"compat", "nn", "onnx"}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        found = getattr(_import_lazily("fourtap.attention"), name)
    elif name == "decompositions":
        found = _import_lazily("fourtap._decomposed").decompositions
    elif name in _MODULES:
        found = _import_lazily(f"fourtap.{name}")
    else:
        raise AttributeError(f"module 'fourtap' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
