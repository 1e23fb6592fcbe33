"""Tells PyTorch how our operators compute with DTensors as soon as there can be one."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

from fourtap.compat._imports import WhenImported

__all__ = ["first_that_matters", "register_sharding"]

_HOME = "torch.distributed.tensor"
_OPERATORS = ("msda", "msda_projected", "dense")


def register_sharding() -> None:
    """Register the rules if ``torch.distributed.tensor`` is there already, else when somebody imports it."""
    home = sys.modules.get(_HOME)
    if home is None or not hasattr(home, "DTensor"):
        _later.start()
    else:
        _register(home)


def first_that_matters(operator: Any) -> int:
    """The first argument, of those that are no tensors, that placements and shapes of results depend on.

    PyTorch caches these by tensors and by the arguments from that one on.
    """
    names = [argument.name for argument in operator._schema.arguments]
    return next((names.index(name) for name in ("left", "wanted") if name in names), len(names))


def _register(home: ModuleType) -> None:
    """Register what loads the rules when it is first asked: PyTorch may be in the middle of importing itself."""
    _later.stop()
    try:
        known = home.DTensor._op_dispatcher.sharding_propagator
        about = importlib.import_module(f"{_HOME}._op_schema").RuntimeSchemaInfo
        for operator in _defined():
            if operator not in known.op_strategy_funcs:
                known.register_op_strategy(operator, _load, about(first_that_matters(operator), needs_pytree=True))
    # A PyTorch that has these elsewhere. It refuses calls with DTensors itself, unless fourtap.distributed is imported.
    except (AttributeError, ImportError):
        pass


def _defined() -> list[Any]:
    """The operators of those of our modules that are imported. The others will call :func:`register_sharding`."""
    ways = [way for name in _OPERATORS for way in (name, f"{name}_backward")]
    return [getattr(torch.ops.fourtap, way).default for way in ways if hasattr(torch.ops.fourtap, way)]


def _load(schema: Any) -> Any:
    importlib.import_module("fourtap.distributed")
    known = sys.modules[_HOME].DTensor._op_dispatcher.sharding_propagator
    return known.op_strategy_funcs[schema.op](schema)


_later = WhenImported(_HOME.__eq__, _register)
